#include "actors/storage/storage_node.hpp"

#include <deque>
#include <utility>

#include "actors/protocol/messages.hpp"
#include "actors/storage/actor_executor.hpp"
#include "actors/storage/kv_index.hpp"
#include "actors/storage/kv_tier.hpp"
#include "actors/storage/scrubber.hpp"
#include "actors/storage/storage_target.hpp"
#include "actors/storage/store_client.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum storage_node_timer : uint8_t { storage_node_tick = 1 };

class storage_node_state {
 public:
  using interface = storage_node_actor;
  static inline const char* name = "storage_node";
  explicit storage_node_state(interface::pointer self) : self_(self), links_(self) {}
  ~storage_node_state() {
    if (home_) home_->close();
    for (const auto& h : children_) end_actor(h);
    if (session_) session_->close();
  }

  interface::behavior_type make_behavior(role_context context, std::shared_ptr<storage_host> host,
                                         storage_times times) {
    context_ = std::move(context);
    host_ = std::move(host);
    times_ = times;
    home_ = std::make_shared<actor_executor>(self_, storage_node_tick);
    host_->open([this, home = home_](result<opened_storage> r) {
      auto opened = std::make_shared<result<opened_storage>>(std::move(r));
      home->post([this, opened] { begin(std::move(*opened)); });
    });
    return {
        [this](const kv_hello& m) { return hello(m); }, [this](const storage_query&) { return query(); },
        [this](const cluster_view& v) { follow(v); },   [this](const drain_request& m) { return drain(m); },
        [this](const tick& t) { home_->run(t); },
    };
  }

 private:
  void begin(result<opened_storage> r) {
    if (!r) {
      log::error("storage: this node cannot take its seat: {}", r.error().message);
      set(role_state::failed, r.error().message);
      return;
    }
    opened_ = std::move(*r);
    for (const auto& n : opened_.notes) log::info("storage: {}", n);
    const auto& keep = opened_.keep;
    kv_index_options i;
    if (opened_.snapshots.entry_bytes > 0) {
      auto memory = opened_.plane->allocate(opened_.snapshot_bytes);
      if (!memory) return set(role_state::failed, memory.error().message);
      kv_tier_options t;
      t.keep = keep;
      t.plane = opened_.plane;
      t.tier = opened_.snapshots;
      auto tier = spawn_kv_tier(self_, std::move(t), std::move(*memory));
      tier_ = tier.actor;
      i.snapshots = tier.entries;
      children_.push_back(caf::actor_cast<any_handle>(tier_));
    }
    i.keep = keep;
    i.id = kv::owner_id{opened_.seat + 1};
    i.index = opened_.index;
    i.blocking = opened_.blocking;
    i.wall = opened_.wall;
    index_ = spawn_kv_index(self_, std::move(i));
    children_.push_back(caf::actor_cast<any_handle>(index_));
    local_storage local;
    local.seat = opened_.seat;
    local.index = opened_.index;
    local.blocking = opened_.blocking;
    for (const auto& d : opened_.targets) {
      if (!d.store) {
        ++absent_;
        entries_.push_back({d.id, nullptr, d.text});
        log::warn("storage: target {} is absent: {}", d.id.value, d.text);
        continue;
      }
      auto region = opened_.plane->allocate(opened_.staging_bytes);
      if (!region) {
        set(role_state::failed, region.error().message);
        return;
      }
      storage_target_options o;
      o.keep = keep;
      o.id = d.id;
      o.store = d.store;
      o.blocking = opened_.blocking;
      o.plane = opened_.plane;
      o.staging_bytes = opened_.staging_bytes;
      o.staging_hold = times_.staging_hold;
      auto target = spawn_storage_target(self_, std::move(o), std::move(*region));
      targets_.push_back(target);
      children_.push_back(caf::actor_cast<any_handle>(target));
      entries_.push_back({d.id, children_.back(), d.text});
      local.targets[d.id] = d.store;
    }
    session_ = std::make_shared<store_session>();
    store_client_options c;
    c.keep = keep;
    c.identity = context_.identity;
    c.directory = context_.directory;
    c.plane = opened_.plane;
    c.compute = opened_.blocking;
    c.wall = opened_.wall;
    c.scheme = opened_.scheme;
    c.client = opened_.client;
    c.local = std::move(local);
    c.staging_bytes = opened_.staging_bytes;
    client_ = spawn_store_client(self_, session_, std::move(c));
    children_.push_back(caf::actor_cast<any_handle>(client_));
    scrubber_options s;
    s.owner = kv::owner_id{opened_.seat + 1};
    s.session = session_;
    s.wall = opened_.wall;
    s.reclaim = opened_.reclaim;
    s.bytes_per_s = opened_.scrub_bytes_per_s;
    s.index_lost = opened_.index_lost;
    s.index_complete = [f = opened_.index_complete, keep = opened_.keep] {
      if (f) f();
    };
    s.reclaim_every = times_.reclaim_every;
    s.repair_after = times_.repair_after;
    s.scrub_every = times_.scrub_every;
    scrubber_ = spawn_scrubber(self_, std::move(s));
    children_.push_back(caf::actor_cast<any_handle>(scrubber_));
    // An actor of the node that ends by itself leaves it in doubt: so does this one, and the node begins anew.
    for (const auto& h : children_) {
      links_.watch(h, [this](const error& e) {
        log::error("storage: an actor of this node ended: {}", e.message);
        self_->quit(caf::exit_reason::unhandled_exception);
      });
    }
    set(role_state::waiting, "");
    if (view_.version > 0) {
      const auto v = std::exchange(view_, {});
      follow(v);
    }
  }

  void set(role_state s, const std::string& text) {
    at_ = s;
    text_ = text;
    role_update u;
    u.seat = context_.assignment.seat();
    u.state = s;
    if (opened_.plane) u.ep_address = opened_.plane->address();
    u.group = group_;
    u.text = text;
    if (text.empty() && absent_ > 0) u.text = fmt::format("{} of {} disks absent", absent_, entries_.size());
    tell(self_, context_.agent, std::move(u));
  }

  void follow(const cluster_view& v) {
    if (v.version < view_.version) return;
    view_ = v;
    if (at_ != role_state::waiting && at_ != role_state::ready) return;
    tell(self_, index_, v);
    for (const auto& t : targets_) tell(self_, t, v);
    tell(self_, client_, v);
    tell(self_, scrubber_, v);
    for (const auto& g : v.groups) {
      if (g.group != context_.assignment.group || g.epoch == group_) continue;
      for (const auto& m : g.members) {
        if (m.rank != context_.assignment.index || m.inc != context_.identity.inc) continue;
        group_ = g.epoch;
        set(role_state::ready, "");
      }
    }
  }

  kv_welcome hello(const kv_hello& m) const {
    kv_welcome w;
    if (at_ != role_state::ready) {
      w.outcome = {errc::unavailable, fmt::format("it is {}{}{}", to_string(at_), text_.empty() ? "" : ": ", text_)};
      return w;
    }
    if (!m.any_scheme) {
      if (auto same = kv::check_same_scheme(m.scheme, opened_.scheme, "the store of the cluster"); !same) {
        w.outcome = to_status(same.error());
        return w;
      }
    }
    w.scheme = opened_.scheme;
    w.data = opened_.data;
    w.parity = opened_.parity;
    w.seat = opened_.seat;
    w.seats = opened_.seats;
    w.disks = opened_.disks;
    w.address = opened_.plane->address();
    w.targets = entries_;
    w.index = caf::actor_cast<any_handle>(index_);
    w.scrubber = caf::actor_cast<any_handle>(scrubber_);
    w.tier = caf::actor_cast<any_handle>(tier_);
    w.notes = opened_.notes;
    return w;
  }

  // -- report ---------------------------------------------------------------------------------------------------

  struct gathering {
    storage_report out;
    promise<storage_report> to;
    uint32_t open = 1;
  };

  promise<storage_report> query() {
    auto g = std::make_shared<gathering>();
    g->to = self_->make_response_promise<promise<storage_report>>();
    g->out.state = at_;
    g->out.epoch = storage_epoch_of(view_);
    g->out.targets = static_cast<uint32_t>(entries_.size());
    g->out.absent = absent_;
    g->out.text = text_;
    const auto limit = std::chrono::seconds(2);
    auto settle = [g] {
      if (--g->open == 0) g->to.deliver(g->out);
    };
    for (const auto& t : targets_) {
      ++g->open;
      links_.ask(
          self_, t, limit, kv_usage_query{},
          [g, settle](const kv_usage_reply& r) {
            auto& u = g->out.usage;
            u.capacity += r.usage.capacity;
            u.allocated += r.usage.allocated;
            u.payload += r.usage.payload;
            u.shards += r.usage.shards;
            u.chunks += r.usage.chunks;
            u.largest_free = std::max(u.largest_free, r.usage.largest_free);
            g->out.reads_staged += r.staging_used > 0 ? 1 : 0;
            if (!r.trouble.empty()) g->out.troubles.push_back(r.trouble);
            settle();
          },
          [settle](const error&) { settle(); });
    }
    if (index_) {
      g->open += 2;
      links_.ask(
          self_, index_, limit, kv_stats_query{},
          [g, settle](const kv_stats_reply& r) {
            g->out.index = r.stats;
            settle();
          },
          [settle](const error&) { settle(); });
      links_.ask(
          self_, scrubber_, limit, kv_scrub_query{},
          [g, settle](const kv_scrub_state& r) {
            g->out.scrubbing = r.running;
            g->out.scrub = r.report;
            g->out.reclaimed = r.reclaimed;
            settle();
          },
          [settle](const error&) { settle(); });
    }
    if (tier_) {
      ++g->open;
      links_.ask(
          self_, tier_, limit, tier_query{},
          [g, settle](const tier_report& r) {
            g->out.snapshots = r.entries;
            g->out.snapshot_room = r.capacity;
            settle();
          },
          [settle](const error&) { settle(); });
    }
    auto p = g->to;
    settle();
    return p;
  }

  // -- leaving --------------------------------------------------------------------------------------------------

  promise<drain_reply> drain(const drain_request& m) {
    auto p = self_->make_response_promise<promise<drain_reply>>();
    auto left = std::make_shared<std::pair<uint32_t, uint32_t>>(1, 0);  // open questions, requests left
    auto settle = [this, p, left]() mutable {
      if (--left->first > 0) return;
      set(role_state::drained, "");
      p.deliver(drain_reply{{left->second ? errc::timeout : errc{}, ""}, left->second});
    };
    set(role_state::draining, "");
    const auto limit = std::chrono::milliseconds(m.deadline_ms) + std::chrono::seconds(1);
    auto ask = [&](const auto& actor) {
      ++left->first;
      links_.ask(
          self_, actor, limit, m,
          [left, settle](const drain_reply& r) mutable {
            left->second += r.left;
            settle();
          },
          [settle](const error&) mutable { settle(); });
    };
    if (index_) ask(index_);
    if (tier_) ask(tier_);
    for (const auto& t : targets_) ask(t);
    settle();
    return p;
  }

  interface::pointer self_;
  peer_links links_;
  role_context context_;
  std::shared_ptr<storage_host> host_;
  storage_times times_;
  std::shared_ptr<actor_executor> home_;
  opened_storage opened_;
  role_state at_ = role_state::starting;
  std::string text_;
  group_epoch group_;
  cluster_view view_;
  kv_index_actor index_;
  kv_tier_actor tier_;  // null: this node keeps no window snapshots
  std::vector<storage_target_actor> targets_;
  std::vector<kv_target_entry> entries_;
  uint32_t absent_ = 0;
  std::shared_ptr<store_session> session_;
  store_client_actor client_;
  scrubber_actor scrubber_;
  std::vector<any_handle> children_;
};

}  // namespace

role_actors start_storage_role(const role_context& context, std::shared_ptr<storage_host> host,
                               const storage_times& times) {
  role_context own = context;
  own.parent = nullptr;
  auto node = spawn<storage_node_state>(context.parent, std::move(own), std::move(host), times);
  role_actors out;
  out.named = {{context.assignment.seat() + "/storage", caf::actor_cast<any_handle>(node)}};
  out.viewers = {node};
  out.drain_order = {node};
  out.all = {caf::actor_cast<any_handle>(node)};
  return out;
}

}  // namespace troupe::actors
