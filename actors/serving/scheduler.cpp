#include "actors/serving/scheduler.hpp"

#include <algorithm>
#include <map>

#include "actors/protocol/front.hpp"
#include "actors/protocol/messages.hpp"
#include "actors/serving/batch.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum scheduler_timer : uint8_t {
  resend_timer = 1,
  patience_timer = 2,
  drain_timer = 3,
  attach_timer = 4,
  lease_timer = 5
};
constexpr auto lease_life = std::chrono::seconds(10);  // docs/decisions.md, detail 32
constexpr auto attach_retry = std::chrono::milliseconds(100);

class scheduler_state {
 public:
  using interface = scheduler_actor;
  static inline const char* name = "scheduler";
  explicit scheduler_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(role what, node_identity identity, rank_actor rank,
                                         scheduler_options options) {
    what_ = what;
    identity_ = identity;
    rank_ = std::move(rank);
    options_ = options;
    batch_ = std::make_unique<batch>(what, options.queue_limit, options.verify_budget, options.plans_ahead,
                                     options.step_budget);
    if (options.prefix.store) batch_->use_cache(options.prefix);
    links_.watch(rank_, [this](const error& e) { rank_lost(e); });
    attach();
    return {
        [this](const attach_front& m) { return attach_one(m); },
        [this](const enqueue_request& m) { return enqueue(m); },
        [this](const lease_request& m) { return lease(m); },
        [this](const rank_load_query& m) { return load(m); },
        [this](const cancel_request& m) { return cancel(m); },
        [this](const token_ack& m) { acknowledge(m); },
        [this](const cluster_view& m) { follow(m); },
        [this](const rank_update& m) { follow(m); },
        [this](const step_done& m) {
          batch_->apply(m.result, m.tickets, m.pages_held);
          pump();
        },
        [this](const fetch_done& m) {
          batch_->fetched(m);
          pump();
        },
        [this](const prefix_done& m) {
          batch_->read_done(m);
          pump();
        },
        [this](const pool_update& m) {
          batch_->held(m.pages_held);
          pump();
        },
        [this](const transfer_close& m) { return close_transfer(m); },
        [this](const drain_request& m) { return drain(m); },
        [this](const scheduler_query&) {
          scheduler_report r;
          r.state = draining_ ? role_state::draining : rank_state_.state;
          batch_->describe(r);
          return r;
        },
        [this](const tick& t) { ticked(t); },
    };
  }

 private:
  struct front {
    uint32_t number = 0;
    actor_key key;
    entrypoint_actor handle;  // null: the connection ended, its requests were cancelled
    bool seen = false;        // in a cluster view
  };

  void attach() {
    links_.ask(
        self_, rank_, std::chrono::seconds(1), rank_attach{}, [this](const rank_update& m) { follow(m); },
        [this](const error&) { attach_timer_.arm(self_, attach_retry); });
  }

  void follow(const rank_update& m) {
    const bool was_ready = rank_state_.state == role_state::ready;
    rank_state_ = m;
    if (m.state == role_state::ready && !configured_) {
      configured_ = true;
      batch_->configure(m.facts, m.limits);
    }
    if (m.state == role_state::ready)
      patience_.stop();
    else if (was_ready)
      patience_.arm(self_, options_.group_patience);
    if (m.state == role_state::failed || m.state == role_state::drained)
      batch_->fail_all(errc::unavailable, "the rank has ended: " + m.text);
    pump();
  }

  // A front that was in the view and is no more has been given up, whether or not its connection has ended.
  void follow(const cluster_view& view) {
    if (view.version <= view_version_) return;
    view_version_ = view.version;
    for (auto& [inc, f] : fronts_) {
      const bool there = std::any_of(view.nodes.begin(), view.nodes.end(),
                                     [&](const node_entry& n) { return n.node == f.key.node && n.inc == inc; });
      if (f.seen && !there && f.handle) drop(f);
      f.seen = f.seen || there;
    }
    pump();
  }

  void rank_lost(const error& e) {
    batch_->fail_all(errc::peer_lost, "the rank is gone: " + e.message);
    pump();
    finish_drains({});
    self_->quit(caf::exit_reason::unhandled_exception);
  }

  front* find(incarnation inc) {
    auto it = fronts_.find(inc);
    return it == fronts_.end() || !it->second.handle ? nullptr : &it->second;
  }

  attach_reply attach_one(const attach_front& m) {
    attach_reply reply;
    reply.inc = identity_.inc;
    reply.what = what_;
    reply.queue_limit = options_.queue_limit;
    auto refuse = [&](errc code, std::string text) {
      reply.outcome = {code, std::move(text)};
      return reply;
    };
    if (m.epoch != identity_.epoch) return refuse(errc::stale, "another cluster epoch");
    if (draining_) return refuse(errc::unavailable, "draining");
    if (!configured_) return refuse(errc::unavailable, "no engine yet: " + rank_state_.text);
    auto handle = caf::actor_cast<entrypoint_actor>(self_->current_sender());
    for (auto& [inc, f] : fronts_) {
      if (f.key.node != m.front.node || f.key.name != m.front.name || inc == m.front.inc) continue;
      if (inc > m.front.inc) return refuse(errc::stale, "a newer incarnation of this front is attached");
      drop(f);
    }
    std::erase_if(fronts_, [](auto& f) { return !f.second.handle; });
    if (fronts_.size() >= options_.max_fronts && !fronts_.contains(m.front.inc))
      return refuse(errc::exhausted, fmt::format("{} fronts are attached", fronts_.size()));
    auto [it, fresh] = fronts_.try_emplace(m.front.inc);
    auto& f = it->second;
    if (fresh) f = {next_front_++, m.front, {}, false};
    if (f.handle && f.handle != handle) links_.unwatch(f.handle);
    f.handle = handle;
    links_.watch(handle, [this, inc = m.front.inc](const error&) {
      if (auto* gone = find(inc)) drop(*gone);
      pump();
    });
    reply.facts = rank_state_.facts;
    reply.limits = rank_state_.limits;
    return reply;
  }

  void drop(front& f) {
    links_.unwatch(f.handle);
    f.handle = nullptr;
    batch_->drop_front(f.number);
  }

  enqueue_reply enqueue(const enqueue_request& m) {
    auto* f = find(m.front);
    enqueue_reply reply;
    if (m.epoch != identity_.epoch || !f) {
      reply.outcome = {errc::stale, f ? "another cluster epoch" : "this front is not attached"};
      return reply;
    }
    reply = batch_->enqueue(f->number, m, !draining_ && rank_state_.state == role_state::ready, now(self_));
    pump();
    return reply;
  }

  enqueue_reply lease(const lease_request& m) {
    auto* f = find(m.front);
    if (m.epoch != identity_.epoch || !f) return {{errc::stale, "this front is not attached"}, 0, 0};
    auto reply =
        batch_->lease(f->number, m, !draining_ && rank_state_.state == role_state::ready, now(self_) + lease_life);
    if (!leases_.armed()) leases_.arm(self_, lease_life);
    return reply;
  }

  rank_load load(const rank_load_query& m) const {
    rank_load out;
    if (m.epoch != identity_.epoch) {
      out.outcome = {errc::stale, "another cluster epoch"};
    } else if (!configured_) {
      out.outcome = {errc::unavailable, "no engine yet: " + rank_state_.text};
    } else {
      out = batch_->load();
    }
    return out;
  }

  caf::result<ack> cancel(const cancel_request& m) {
    auto* f = find(m.front);
    if (m.epoch != identity_.epoch || !f) return ack{{errc::stale, "this front is not attached"}};
    const batch::key k{f->number, m.request, m.attempt};
    switch (batch_->cancel(k)) {
      case batch::cancelled::unknown:
        return ack{{errc::not_found, "no such request"}};
      case batch::cancelled::done:
        pump();
        return ack{};
      case batch::cancelled::closing:
        break;
    }
    auto p = self_->make_response_promise<promise<ack>>();
    cancels_.emplace(k, p);
    pump();
    return p;
  }

  void acknowledge(const token_ack& m) {
    auto* f = find(m.front);
    if (!f) return;
    for (auto& item : m.items) batch_->acknowledge(f->number, item);
    check_drained();
  }

  // From a front that does not use a ticket: the rank decides whether it is one of its own.
  caf::result<ack> close_transfer(const transfer_close& m) {
    auto p = self_->make_response_promise<promise<ack>>();
    links_.ask(
        self_, rank_, std::chrono::seconds(1), m, [p](const ack& a) mutable { p.deliver(a); },
        [p](const error& e) mutable { p.deliver(ack{to_status(e)}); });
    return p;
  }

  // Before the plan that closes the slot.
  void write_back() {
    for (auto& w : batch_->take_writes()) tell(self_, rank_, std::move(w));
  }

  // Moves on whatever can move: plans to the rank, items to the fronts, answers to those who wait.
  void pump() {
    write_back();
    while (rank_state_.state == role_state::ready) {
      auto next = batch_->plan();
      write_back();
      if (!next.any) break;
      tell(self_, rank_,
           submit_plan{rank_state_.group, std::move(next.plan), std::move(next.grow), std::move(next.imports),
                       std::move(next.reads), next.follows});
    }
    for (auto& w : batch_->take_snapshot_writes()) tell(self_, rank_, std::move(w));
    for (auto& d : batch_->take_drops()) tell(self_, rank_, std::move(d));
    for (auto& f : batch_->take_fetches()) tell(self_, rank_, std::move(f));
    for (auto& d : batch_->take_read_drops()) tell(self_, rank_, std::move(d));
    for (auto& r : batch_->take_reads()) tell(self_, rank_, std::move(r));
    std::map<uint32_t, token_batch> out;
    for (auto& [number, item] : batch_->take_output()) out[number].items.push_back(std::move(item));
    for (auto& [inc, f] : fronts_) {
      auto it = out.find(f.number);
      if (it == out.end()) continue;
      it->second.inc = identity_.inc;
      tell(self_, f.handle, std::move(it->second));
    }
    for (auto& k : batch_->take_forgotten()) {
      auto range = cancels_.equal_range(k);
      for (auto it = range.first; it != range.second; ++it) it->second.deliver(ack{});
      cancels_.erase(range.first, range.second);
    }
    if (batch_->has_unacknowledged() && !resend_.armed()) resend_.arm(self_, options_.resend_after);
    check_drained();
  }

  void ticked(const tick& t) {
    if (resend_.fired(t)) {
      for (auto& [inc, f] : fronts_) {
        auto late = batch_->overdue(f.number);
        if (!late.empty()) tell(self_, f.handle, token_batch{identity_.inc, std::move(late)});
      }
      if (batch_->has_unacknowledged()) resend_.arm(self_, options_.resend_after);
    }
    if (patience_.fired(t)) {
      batch_->fail_all(errc::peer_lost, "the group lost a rank and no new group view came in time");
      pump();
    }
    if (drain_.fired(t)) finish_drains({errc::timeout, "requests did not finish in time"});
    if (attach_timer_.fired(t)) attach();
    if (leases_.fired(t)) {
      batch_->expire_leases(now(self_));
      if (batch_->has_leases()) leases_.arm(self_, lease_life / 4);
      pump();
    }
  }

  // -- draining: no admission; what runs may finish and be acknowledged ------------------------------------------

  caf::result<drain_reply> drain(const drain_request& m) {
    draining_ = true;
    auto p = self_->make_response_promise<promise<drain_reply>>();
    drains_.push_back(p);
    drain_.arm(self_, std::chrono::milliseconds(std::max<int64_t>(0, m.deadline_ms)));
    check_drained();
    return p;
  }

  void check_drained() {
    if (!draining_ || drains_.empty() || batch_->unfinished() > 0 || batch_->has_unacknowledged()) return;
    finish_drains({});
  }

  void finish_drains(const status& outcome) {
    drain_.stop();
    for (auto& p : drains_) p.deliver(drain_reply{outcome, static_cast<uint32_t>(batch_->unfinished())});
    drains_.clear();
  }

  interface::pointer self_;
  peer_links links_;
  role what_ = role::none;
  node_identity identity_;
  rank_actor rank_;
  scheduler_options options_;
  std::unique_ptr<batch> batch_;
  rank_update rank_state_;
  bool configured_ = false, draining_ = false;
  std::map<incarnation, front> fronts_;  // bounded by max_fronts
  uint32_t next_front_ = 1;
  uint64_t view_version_ = 0;
  std::multimap<batch::key, promise<ack>> cancels_;  // bounded by the open requests
  std::vector<promise<drain_reply>> drains_;
  timer resend_{resend_timer}, patience_{patience_timer}, drain_{drain_timer}, attach_timer_{attach_timer},
      leases_{lease_timer};
};

}  // namespace

scheduler_actor spawn_scheduler(caf::local_actor* parent, role what, const node_identity& identity, rank_actor rank,
                                scheduler_options options) {
  return spawn<scheduler_state>(parent, what, identity, std::move(rank), options);
}

}  // namespace troupe::actors
