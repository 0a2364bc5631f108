#include "actors/serving/rank.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "actors/protocol/messages.hpp"
#include "actors/serving/rank_prefix.hpp"
#include "actors/serving/rank_transfers.hpp"
#include "kernels/engine/page_pool.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum rank_timer : uint8_t { regroup_timer = 2, rank_drain_timer = 5 };  // and those of its parts
constexpr auto regroup_retry = std::chrono::milliseconds(500);          // doubles from try to try of one view
constexpr uint32_t regroup_tries = 4;                                   // then only another view helps

class rank_state {
 public:
  using interface = rank_actor;
  static inline const char* name = "rank";
  explicit rank_state(interface::pointer self)
      : self_(self),
        links_(self),
        transfers_(self, links_, options_,
                   {[this](fetch_done m) { tell(self_, scheduler_, std::move(m)); },
                    [this](pool_update m) { tell(self_, scheduler_, std::move(m)); }}),
        snapshots_(self_, options_, [this](uint64_t number, bool here) { prefix_.snapshot_over(number, here); }),
        prefix_(self_, options_, snapshots_,
                {[this](prefix_done m) { tell(self_, scheduler_, std::move(m)); },
                 [this] { return transfers_.tell_held(); }, [this] { transfers_.freed(); }}) {}
  ~rank_state() {
    if (options_.host) options_.host->stop();
  }

  interface::behavior_type make_behavior(rank_options options) {
    options_ = std::move(options);
    interface me = caf::actor_cast<interface>(self_);
    options_.host->open(
        [me](kernels::step_result r) { post(me, engine_step{std::move(r)}); },
        [me](result<std::string> address) {
          post(me, address ? engine_opened{{}, *address} : engine_opened{to_status(address.error()), {}});
        });
    return {
        [this](const rank_attach&) {
          scheduler_ = caf::actor_cast<scheduler_actor>(self_->current_sender());
          links_.watch(scheduler_, [this](const error&) { scheduler_ = nullptr; });
          return update();
        },
        [this](const submit_plan& m) { submit(m); },
        [this](const cluster_view& m) { follow(m); },
        [this](const engine_opened& m) { opened(m); },
        [this](const engine_grouped& m) { grouped(m); },
        [this](const engine_step& m) { stepped(m.result); },
        [this](const transfer_open& m) { return transfers_.open(m); },
        [this](const transfer_close& m) { return transfers_.close(m); },
        [this](const fetch_start& m) { transfers_.start(m); },
        [this](const fetch_drop& m) { transfers_.drop(m); },
        [this](const engine_fetched& m) { transfers_.fetched(m); },
        [this](const prefix_read& m) { prefix_.read(m); },
        [this](const prefix_drop& m) { prefix_.drop(m); },
        [this](const prefix_write& m) {
          const auto it = slots_.find(m.slot);
          prefix_.write(m, it == slots_.end() ? std::vector<kernels::page_id>{} : it->second);
        },
        [this](const prefix_event& m) {
          prefix_.finished(m);
          check_drained(false);
        },
        [this](const snapshot_write& m) { snapshots_.write(m); },
        [this](const snapshot_event& m) { snapshots_.finished(m); },
        [this](const drain_request& m) { return drain(m); },
        [this](const rank_query&) { return report(); },
        [this](const tick& t) {
          if (regroup_timer_.fired(t)) try_regroup();
          transfers_.ticked(t);
          prefix_.ticked(t);
          if (drain_timer_.fired(t)) check_drained(true);
        },
    };
  }

 private:
  // Its scheduler has been drained before: what is left is the engine, and what the store still writes.
  caf::result<drain_reply> drain(const drain_request& m) {
    options_.host->stop();
    auto p = self_->make_response_promise<promise<drain_reply>>();
    drains_.push_back(p);
    drain_timer_.arm(self_, std::chrono::milliseconds(std::max<int64_t>(0, m.deadline_ms)));
    check_drained(false);
    return p;
  }

  void check_drained(bool at_once) {
    if (drains_.empty() || (prefix_.writing() > 0 && !at_once)) return;
    drain_timer_.stop();
    set_state(role_state::drained, "drained");
    for (auto& p : std::exchange(drains_, {})) p.deliver(drain_reply{{}, 0});
  }

  struct open_plan {
    uint64_t id = 0;
    std::vector<std::pair<kernels::slot_id, std::vector<kernels::page_id>>> pages;  // given with the plan
    std::vector<uint32_t> places;                  // of the handoff memory, until the plan's first result
    std::map<kernels::slot_id, uint32_t> exports;  // which of them is for what a slot exports
    bool follows = false;                          // work waited when the step before ended
    std::vector<uint32_t> windows;                 // places of snapshots that slots start from, until the same
    std::vector<uint32_t> takes;                   // of snapshots that are to be taken, until they are
  };

  void set_state(role_state state, std::string text) {
    state_ = state;
    text_ = std::move(text);
    log::info("{}: {} {}", options_.assignment.seat(), to_string(state_), text_);
    tell(self_, options_.agent, role_update{options_.assignment.seat(), state_, address_, group_, text_});
    tell(self_, scheduler_, update());
  }

  rank_update update() const {
    rank_update u;
    u.state = state_;
    u.group = group_;
    u.text = text_;
    if (auto* e = options_.host->engine()) {
      u.facts = e->facts();
      u.limits = e->limits();
    }
    u.pages_free = pool_ ? pool_->free() : 0;
    return u;
  }

  void opened(const engine_opened& m) {
    if (state_ != role_state::starting) return;
    if (!m.outcome.ok()) return set_state(role_state::failed, m.outcome.text);
    address_ = m.ep_address;
    set_state(role_state::waiting, "waits for its group");
    try_regroup();
  }

  void follow(const cluster_view& view) {
    for (const auto& g : view.groups) {
      if (g.group != options_.assignment.group || g.epoch <= wanted_.epoch) continue;
      const bool member = std::any_of(g.members.begin(), g.members.end(), [this](const group_member& m) {
        return m.node == options_.identity.node && m.inc == options_.identity.inc &&
               m.rank == options_.assignment.index;
      });
      if (member) wanted_ = g;  // a view without this rank is not for it: its node will be told to join again
    }
    try_regroup();
  }

  void try_regroup() {
    const bool can = state_ == role_state::waiting || state_ == role_state::ready;
    if (!can || regrouping_ || address_.empty() || wanted_.epoch <= group_ || wanted_.epoch == given_up_) return;
    regroup_timer_.stop();
    regrouping_ = true;
    if (regrouping_to_.epoch != wanted_.epoch) failed_tries_ = 0;
    regrouping_to_ = wanted_;
    interface me = caf::actor_cast<interface>(self_);
    options_.host->regroup(wanted_, [me, epoch = wanted_.epoch](result<void> r) {
      post(me, engine_grouped{r ? status{} : to_status(r.error()), epoch});
    });
  }

  void grouped(const engine_grouped& m) {
    regrouping_ = false;
    if (state_ != role_state::waiting && state_ != role_state::ready) return;
    if (!m.outcome.ok()) {
      const bool next = wanted_.epoch > m.group, again = !next && ++failed_tries_ < regroup_tries;
      if (!next && !again) given_up_ = m.group;
      set_state(role_state::waiting, fmt::format("group view {}: {}{}", m.group.value, m.outcome.text,
                                                 next || again ? "" : "; waits for another view"));
      if (next) try_regroup();
      if (again) regroup_timer_.arm(self_, regroup_retry * (1 << (failed_tries_ - 1)));
      return;
    }
    group_ = m.group;
    view_ = regrouping_to_;
    ++groups_;
    auto* engine = options_.host->engine();
    TROUPE_CHECK(engine != nullptr, "the host has no engine after a regroup");
    tell(self_, options_.shard, shard_group{group_, groups_ - 1});
    if (!pool_) pool_ = std::make_unique<kernels::page_pool>(engine->limits().pages);
    transfers_.configure(*pool_, engine->limits().handoffs);
    prefix_.configure(*pool_, engine->facts().page_bytes);
    snapshots_.configure(engine->limits().snapshots, engine->facts().snapshot_bytes);
    if (broken_ == groups_)
      set_state(role_state::waiting, fmt::format("group view {} failed at once", group_.value));
    else
      set_state(role_state::ready, fmt::format("group {} view {}, {} of {} ranks", view_.group, group_.value,
                                               view_.members.size(), view_.ranks));
    try_regroup();
  }

  // -- plans ----------------------------------------------------------------------------------------------------

  void reject(uint64_t plan, errc code, std::string text) {
    kernels::step_result r;
    r.plan = plan;
    r.plan_done = true;
    r.failure = code;
    r.applied = false;
    r.failure_text = std::move(text);
    rejected_.push_back(std::move(r));
    flush_rejected();
  }

  // Results come in the order of plans, so a rejection waits for the plans before it.
  void flush_rejected() {
    while (plans_.empty() && !rejected_.empty()) {
      tell(self_, scheduler_,
           step_done{group_, std::move(rejected_.front()), pool_ ? pool_->free() : 0, transfers_.tell_held(), {}});
      rejected_.pop_front();
    }
  }

  // What a plan that is not even looked at would have brought into its slots is let go.
  void reject_whole(const submit_plan& m, errc code, std::string text) {
    transfers_.discard(m.imports);
    for (uint64_t number : m.reads) {
      auto brought = prefix_.take(number);
      if (!brought) continue;
      pool_->release(brought->pages, kernels::page_owner::request);
      if (brought->snapshot) snapshots_.free(*brought->snapshot);
    }
    reject(m.plan.id, code, std::move(text));
  }

  void submit(const submit_plan& m) {
    if (state_ != role_state::ready || m.group != group_)
      return reject_whole(m, errc::stale, fmt::format("plan of group view {}, now {}", m.group.value, group_.value));
    if (!rejected_.empty()) return reject_whole(m, errc::stale, "an earlier plan was rejected");
    if (m.grow.size() != m.plan.sequences.size() || m.reads.size() != m.plan.open.size())
      return reject_whole(m, errc::invalid_argument, "parts of a plan differ in length");
    open_plan open{m.plan.id, {}, {}, {}, m.follows, {}, {}};
    kernels::step_plan plan = m.plan;
    // Taken first: whatever goes wrong later, they are given back with the plan.
    std::map<kernels::slot_id, std::vector<kernels::page_id>> read;
    bool missing = false;
    for (size_t i = 0; i < plan.open.size(); ++i) {
      if (m.reads[i] == 0) continue;
      auto brought = prefix_.take(m.reads[i]);
      auto& windows = plan.open[i].windows;
      missing = missing || !brought || (windows.position > 0 && !brought->snapshot);
      if (!brought) continue;
      open.pages.emplace_back(plan.open[i].slot, brought->pages);
      read.emplace(plan.open[i].slot, std::move(brought->pages));
      if (!brought->snapshot) continue;
      windows.place = *brought->snapshot;
      open.windows.push_back(windows.place);
      if (windows.position > 0) snapshots_.used();
    }
    snapshots_.prepare(plan, open.takes);
    const auto ready = transfers_.prepare(m.imports, plan, open.places);
    for (const auto& o : plan.open)
      if (ready && o.imported.rows > 0) open.pages.emplace_back(o.slot, o.imported.pages);
    if (!ready || missing) {
      give_back(open);
      return reject(m.plan.id, ready ? errc::stale : ready.error().code,
                    ready ? "a read of cached blocks is not here" : ready.error().message);
    }
    for (const auto& s : plan.sequences)
      if (s.export_to != kernels::no_handoff) open.exports.emplace(s.slot, s.export_to);
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      auto& s = plan.sequences[i];
      if (auto it = read.find(s.slot); it != read.end()) s.pages = std::move(it->second);
      if (m.grow[i] == 0) continue;
      auto pages = pool_->take(m.grow[i]);
      if (!pages) {
        give_back(open);
        return reject(m.plan.id, errc::exhausted, pages.error().message);
      }
      s.pages.insert(s.pages.end(), pages->begin(), pages->end());
      open.pages.emplace_back(s.slot, std::move(*pages));
    }
    if (auto done = options_.host->engine()->submit(std::move(plan)); !done) {
      give_back(open);
      return reject(m.plan.id, done.error().code, done.error().message);
    }
    for (auto& s : m.plan.open) slots_.try_emplace(s.slot);
    plans_.push_back(std::move(open));
  }

  void give_back(const open_plan& plan) {
    for (auto& [slot, pages] : plan.pages) pool_->release(pages, kernels::page_owner::request);
    transfers_.free_places(plan.places);
    snapshots_.free(plan.windows);
    snapshots_.free(plan.takes);
  }

  // What the plan's step has exported is kept for a while, whatever becomes of its slot.
  std::vector<slot_ticket> offer(open_plan& plan, const kernels::step_result& r) {
    std::vector<slot_ticket> out;
    for (const auto& s : r.sequences) {
      const auto it = plan.exports.find(s.slot);
      if (s.exported.rows == 0 || it == plan.exports.end()) continue;
      auto pages = slots_[s.slot];
      for (const auto& [slot, more] : plan.pages)
        if (slot == s.slot) pages.insert(pages.end(), more.begin(), more.end());
      out.push_back({s.slot, transfers_.offer(pages, s.exported, it->second)});
      std::erase(plan.places, it->second);
    }
    plan.exports.clear();
    return out;
  }

  void stepped(const kernels::step_result& r) {
    if (r.plan == 0) return group_failed(r);  // the group failed while no plan of this rank was running
    TROUPE_CHECK(!plans_.empty() && plans_.front().id == r.plan, "result of plan {}, expected {}", r.plan,
                 plans_.empty() ? 0 : plans_.front().id);
    ++steps_;
    add(r.times);
    split_steps_ += r.micro_batches > 1;
    // Further steps of a plan follow the first by themselves.
    if (std::exchange(plans_.front().follows, true) && r.rows > 0) {
      ++gaps_.steps;
      gaps_.gap += r.times.gap;
      gaps_.waited += r.times.gap_waited;
      gaps_.busy += r.times.total;
    }
    std::vector<slot_ticket> tickets;
    if (r.failure == errc{} || r.applied) {
      auto& plan = plans_.front();
      if (r.failure == errc{}) tickets = offer(plan, r);
      transfers_.free_places(std::exchange(plan.places, {}));  // imports have been read
      snapshots_.free(std::exchange(plan.windows, {}));
      snapshots_.taken(r, plan.takes);
    }
    if (r.plan_done) {
      auto plan = std::move(plans_.front());
      plans_.pop_front();
      if (r.failure != errc{} && !r.applied) {
        give_back(plan);
      } else {
        snapshots_.free(plan.takes);
        for (auto& [slot, pages] : plan.pages) {
          auto& held = slots_[slot];
          held.insert(held.end(), pages.begin(), pages.end());
        }
      }
    }
    for (auto slot : r.closed) {
      auto it = slots_.find(slot);
      if (it == slots_.end()) continue;
      pool_->release(it->second, kernels::page_owner::request);
      slots_.erase(it);
    }
    tell(self_, scheduler_, step_done{group_, r, pool_->free(), transfers_.tell_held(), std::move(tickets)});
    flush_rejected();
    if (r.failure != errc{}) group_failed(r);
  }

  // The engine counts the ranks of its view; the director knows them by their index in the whole group.
  void group_failed(const kernels::step_result& r) {
    if (r.failure == errc{}) return;
    broken_ = r.regroups + 1;
    if (state_ != role_state::ready && broken_ <= groups_) return;
    if (r.regroups + 1 < groups_) {
      // A step of an older group: the engine has the next one already and goes on in it.
      log::info("{}: step {} of an older group: {}: {}", options_.assignment.seat(), r.step, to_string(r.failure),
                r.failure_text);
      return;
    }
    // A result of the next group may come before the news that the engine has it.
    const group_view& view = broken_ > groups_ ? regrouping_to_ : view_;
    suspects_found found{options_.assignment.group, view.epoch, {}};
    for (uint32_t i : r.suspects)
      if (i < view.members.size()) found.ranks.push_back(view.members[i].rank);
    if (!found.ranks.empty()) tell(self_, options_.agent, std::move(found));
    set_state(role_state::waiting, fmt::format("step {}: {}: {}", r.step, to_string(r.failure), r.failure_text));
    try_regroup();
  }

  void add(const kernels::step_times& t) {
    times_.total += t.total;
    times_.attention += t.attention;
    times_.dispatch += t.dispatch;
    times_.experts += t.experts;
    times_.combine += t.combine;
    times_.sampling += t.sampling;
    times_.idle_before += t.idle_before;
    times_.gap += t.gap;
    times_.gap_waited += t.gap_waited;
  }

  rank_report report() const {
    rank_report r;
    r.state = state_;
    r.group = group_;
    const auto pages = pool_ ? pool_->counts() : kernels::page_counts{};
    r.pages_total = pages.total;
    r.pages_free = pages.free;
    r.pages_owned = pages.owned;
    r.pages_request = pages.request;
    r.pages_transfer = pages.transfer;
    r.pages_write_back = pages.write_back;
    uint32_t known = transfers_.wanted_pages() + prefix_.wanted_pages();
    for (auto& [slot, held] : slots_) known += static_cast<uint32_t>(held.size());
    for (auto& plan : plans_)
      for (auto& [slot, held] : plan.pages) known += static_cast<uint32_t>(held.size());
    TROUPE_CHECK(known == pages.request, "{} pages of slots, plans and fetches, the pool counts {}", known,
                 pages.request);
    r.transfers = transfers_.counts(prefix_.held_pages());
    r.prefix = prefix_.counts();
    r.snapshots = snapshots_.counts();
    if (options_.prefix.store) r.store = options_.prefix.store->load();
    r.slots_open = static_cast<uint32_t>(slots_.size());
    r.plans_open = static_cast<uint32_t>(plans_.size());
    r.steps = steps_;
    r.split_steps = split_steps_;
    r.times = times_;
    r.gaps = gaps_;
    return r;
  }

  interface::pointer self_;
  peer_links links_;
  rank_options options_;
  rank_transfers transfers_;  // uses options_
  rank_snapshots snapshots_;  // the same, and tells prefix_
  rank_prefix prefix_;        // the same, transfers_ and snapshots_
  scheduler_actor scheduler_;
  role_state state_ = role_state::starting;
  std::string text_, address_;
  group_view wanted_;                // the newest view with this rank
  group_view regrouping_to_, view_;  // the one under way, the one that the engine runs
  group_epoch group_;                // of view_
  uint64_t groups_ = 0;              // that the engine was given, see step_result::regroups
  uint64_t broken_ = 0;              // the last of them that failed
  bool regrouping_ = false;
  uint32_t failed_tries_ = 0;  // of the view that is tried
  group_epoch given_up_;       // a view that was tried often enough
  std::unique_ptr<kernels::page_pool> pool_;
  std::map<kernels::slot_id, std::vector<kernels::page_id>> slots_;  // open slots and their pages
  std::deque<open_plan> plans_;                                      // in the engine; bounded by the engine's queue
  std::deque<kernels::step_result> rejected_;                        // bounded by the scheduler's two plans
  uint64_t steps_ = 0;
  uint64_t split_steps_ = 0;
  kernels::step_times times_;
  gap_counts gaps_;
  std::vector<promise<drain_reply>> drains_;
  timer regroup_timer_{regroup_timer}, drain_timer_{rank_drain_timer};
};

}  // namespace

rank_actor spawn_rank(caf::local_actor* parent, rank_options options) {
  return spawn<rank_state>(parent, std::move(options));
}

}  // namespace troupe::actors
