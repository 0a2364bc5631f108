#include "actors/storage/store_client.hpp"

#include <algorithm>
#include <utility>

#include "actors/protocol/messages.hpp"
#include "actors/storage/remote.hpp"
#include "actors/storage/snapshot_client.hpp"
#include "kv/store/local_owner.hpp"
#include "kv/store/local_target.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum store_client_timer : uint8_t { store_client_tick = 1, retry_timer = 2, poll_timer = 3 };

// Lives as long as anything of the client is under way; calls hold it.
struct store_body {
  std::shared_ptr<void> keep;  // first: goes last
  std::shared_ptr<actor_executor> home;
  std::unique_ptr<kept_worker> compute, blocking;
  std::shared_ptr<remote_store> store;
  std::map<kv::target_id, std::unique_ptr<kv::target>> targets;
  std::vector<std::unique_ptr<kv::owner>> owners;
  std::unique_ptr<kv::client> client;
  std::unique_ptr<snapshot_client> snapshots;
};

}  // namespace

class store_client_state {
 public:
  using interface = store_client_actor;
  static inline const char* name = "store_client";
  explicit store_client_state(interface::pointer self) : self_(self), links_(self) {}
  ~store_client_state() {
    if (!body_) return;
    {
      std::lock_guard lock(session_->mutex_);
      session_->home_ = nullptr;
      session_->self_ = nullptr;
      session_->state_ = nullptr;
      session_->ended_ = true;
    }
    for (auto& p : peers_) forget_plane(*p);
    body_->home->close();
    if (body_->store->room) body_->store->room->clear();
  }

  interface::behavior_type make_behavior(std::shared_ptr<store_session> session, store_client_options options) {
    options_ = std::move(options);
    session_ = std::move(session);
    body_ = std::make_shared<store_body>();
    body_->keep = options_.keep;
    body_->home = std::make_shared<actor_executor>(self_, store_client_tick);
    body_->compute = std::make_unique<kept_worker>(*options_.compute);
    body_->compute->keep(body_);
    if (options_.local) {
      body_->blocking = std::make_unique<kept_worker>(*options_.local->blocking);
      body_->blocking->keep(body_);
    }
    auto s = std::make_shared<remote_store>();
    body_->store = s;
    s->self = self_;
    s->links = &links_;
    s->home = body_->home;
    s->compute = body_->compute.get();
    s->plane = options_.plane;
    s->book = std::make_shared<region_book>(options_.plane);
    s->body = body_;
    s->origin = {{}, options_.identity.node, options_.identity.inc};
    s->timeout = options_.timeout;
    if (auto region = options_.plane->allocate(options_.staging_bytes))
      s->room = std::make_unique<staging>(std::move(*region), options_.waiting_max);
    else
      failure_ = region.error();
    state_.home = body_->home.get();
    {
      std::lock_guard lock(session_->mutex_);
      session_->state_ = this;
      session_->home_ = body_->home;
      session_->self_ = caf::strong_actor_ptr{self_->ctrl()};
      for (auto& t : session_->early_) body_->home->post(std::move(t));
      session_->early_.clear();
    }
    if (options_.director) poll();
    return {
        [this](const cluster_view& v) { follow(v); },
        [this](const tick& t) {
          if (body_->home->run(t)) return;
          if (retry_.fired(t)) connect_all();
          if (poll_.fired(t)) poll();
        },
    };
  }

  store_state& state() { return state_; }

  void when_ready(nanoseconds limit, std::function<void(result<void>, store_state&)> f) {
    auto w = std::make_shared<waiter>(waiter{std::move(f), false});
    waiters_.push_back(w);
    body_->home->post_after(limit, [this, w] {
      if (w->told) return;
      w->told = true;
      std::erase(waiters_, w);
      w->f(fail(why_not()), state_);
    });
    settle();
  }

 private:
  struct waiter {
    std::function<void(result<void>, store_state&)> f;
    bool told = false;
  };

  // -- view -----------------------------------------------------------------------------------------------------

  void poll() {
    links_.ask(
        self_, options_.director, std::chrono::seconds(2), status_query{},
        [this](const status_report& r) {
          tell(self_, options_.directory, r.view);
          follow(r.view);
          poll_.arm(self_, options_.poll);
        },
        [this](const error& e) {
          if (view_.version == 0) failure_ = error{errc::unavailable, "the director does not answer: " + e.message};
          poll_.arm(self_, options_.poll);
        });
  }

  void follow(const cluster_view& v) {
    if (v.version < view_.version || (v.version == view_.version && v.version != 0)) return;
    view_ = v;
    log::debug("store client: view {} with {} nodes", v.version, v.nodes.size());
    const auto before = body_->store->origin.epoch;
    body_->store->origin.epoch = std::max(before, storage_epoch_of(v));
    state_.epoch = body_->store->origin.epoch;
    std::vector<bool> named(peers_.size());
    for (const auto& n : v.nodes) {
      for (const auto& r : n.roles) {
        if (r.assignment.what != role::storage || r.state != role_state::ready) continue;
        auto& p = peer(r.assignment.index);
        named.resize(peers_.size());
        named[p.seat] = true;
        if (p.node == n.node && p.inc == n.inc) continue;
        drop(p, "it was started anew");
        p.node = n.node;
        p.inc = n.inc;
        tried_[p.seat] = false;
      }
    }
    for (auto& p : peers_) {
      if (named[p->seat] || p->node == node_number{}) continue;
      drop(*p, "it is not in the cluster now");
      p->node = {};
      p->inc = {};
    }
    connect_all();
    rebuild();
    settle();
  }

  struct known_peer : store_peer {
    any_handle actor;  // of the storage_node
    caf::node_id handle_node;
    uint64_t attempt = 0;  // of introductions: late results of older ones are ignored
    bool asking = false;
    std::vector<kv_target_entry> entries;
    std::vector<std::string> notes;
  };

  known_peer& peer(uint32_t seat) {
    while (peers_.size() <= seat) {
      auto p = std::make_shared<known_peer>();
      p->seat = static_cast<uint32_t>(peers_.size());
      p->why = "it is not in the cluster now";
      peers_.push_back(std::move(p));
      tried_.push_back(true);
    }
    return *peers_[seat];
  }

  // -- connections ----------------------------------------------------------------------------------------------

  bool is_local(const known_peer& p) const { return options_.local && options_.local->seat == p.seat; }

  void connect_all() {
    for (size_t i = 0; i < peers_.size(); ++i) {
      auto& p = *peers_[i];
      if (p.node != node_number{} && !p.up && !p.asking && !refused_) introduce(p);
    }
  }

  void introduce(known_peer& p) {
    p.asking = true;
    const auto attempt = ++p.attempt;
    log::debug("store client: storage node {} (node {}) is introduced, attempt {}", p.seat, p.node.value, attempt);
    links_.ask(
        self_, options_.directory, std::chrono::seconds(5),
        resolve_request{{p.node, p.inc, fmt::format("{}/{}/storage", storage_group, p.seat)}},
        [this, seat = p.seat, attempt](const resolve_reply& r) {
          auto& p = *peers_[seat];
          if (p.attempt != attempt) return;
          if (!r.outcome.ok()) return failed(p, {r.outcome.code, r.outcome.text});
          hello(p, r.handle);
        },
        [this, seat = p.seat, attempt](const error& e) {
          if (peers_[seat]->attempt == attempt) failed(*peers_[seat], e);
        });
  }

  void hello(known_peer& p, const any_handle& handle) {
    p.actor = handle;
    if (handle) p.handle_node = handle->node();
    log::debug("store client: storage node {} is at {}", p.seat, caf::to_string(handle));
    const auto attempt = p.attempt;
    links_.watch(handle, [this, seat = p.seat, attempt](const error& e) {
      auto& p = *peers_[seat];
      if (p.attempt != attempt) return;
      drop(p, "the connection to it is lost: " + e.message);
      retry_.arm(self_, options_.retry);
      rebuild();
      settle();
    });
    kv_hello m;
    m.from = body_->store->origin;
    m.any_scheme = !options_.scheme;
    if (options_.scheme) m.scheme = *options_.scheme;
    links_.ask(
        self_, caf::actor_cast<storage_node_actor>(handle), std::chrono::seconds(5), std::move(m),
        [this, seat = p.seat, attempt](const kv_welcome& w) {
          if (peers_[seat]->attempt == attempt) welcome(*peers_[seat], w);
        },
        [this, seat = p.seat, attempt](const error& e) {
          if (peers_[seat]->attempt == attempt) failed(*peers_[seat], e);
        });
  }

  void welcome(known_peer& p, const kv_welcome& w) {
    if (!w.outcome.ok()) {
      if (w.outcome.code == errc::unsupported) {
        failure_ = error{w.outcome.code, w.outcome.text};
        refused_ = true;  // asking again cannot help
      }
      return failed(p, {w.outcome.code, w.outcome.text});
    }
    if (body_->client && (w.scheme != state_.scheme || w.data != state_.data || w.parity != state_.parity ||
                          w.seats != state_.seats || w.disks != state_.disks))
      return failed(p, {errc::unsupported, "it is of another store than the other nodes"});
    if (!is_local(p)) {
      auto plane = options_.plane->add_peer(w.address);
      if (!plane) return failed(p, plane.error());
      p.plane = *plane;
    }
    p.index = caf::actor_cast<kv_index_actor>(w.index);
    p.scrubber = caf::actor_cast<scrubber_actor>(w.scrubber);
    p.tier = w.tier;
    p.address = w.address;
    p.targets.clear();
    for (const auto& t : w.targets)
      if (t.actor) p.targets[t.id] = caf::actor_cast<storage_target_actor>(t.actor);
    p.entries = w.targets;
    p.notes = w.notes;
    p.up = true;
    p.asking = false;
    p.why.clear();
    log::debug("store client: storage node {} is met, {} targets", p.seat, p.targets.size());
    tried_[p.seat] = true;
    if (!body_->client) begin(w);
    rebuild();
    settle();
  }

  // The first node that answered says what the store is.
  void begin(const kv_welcome& w) {
    state_.scheme = w.scheme;
    state_.data = w.data;
    state_.parity = w.parity;
    state_.seats = w.seats;
    state_.disks = w.disks;
    if (w.seats > 0) peer(w.seats - 1);
    for (uint32_t s = 0; s < w.seats; ++s) {
      auto& p = peers_[s];
      const kv::owner_id owner{s + 1};
      if (is_local(*p))
        body_->owners.push_back(std::make_unique<kv::local_owner>(owner, *options_.local->index, *body_->blocking,
                                                                  *body_->home, *options_.wall));
      else
        body_->owners.push_back(make_remote_owner(owner, p, body_->store));
      for (uint32_t d = 0; d < w.disks; ++d) {
        const kv::target_id id{s * w.disks + d + 1};
        if (!is_local(*p)) {
          body_->targets[id] = make_remote_target(id, p, body_->store);
        } else if (auto it = options_.local->targets.find(id); it != options_.local->targets.end()) {
          body_->targets[id] = std::make_unique<kv::local_target>(id, *it->second, *body_->blocking, *body_->home);
        } else {
          body_->targets[id] = std::make_unique<kv::absent_target>(id, "its disk is absent", *body_->home);
        }
      }
    }
    auto o = options_.client;
    o.data = w.data;
    o.parity = w.parity;
    o.scheme = w.scheme.id();
    o.memory = [book = body_->store->book](size_t bytes) { return book->allocate(bytes); };
    body_->client = std::make_unique<kv::client>(o, members(), *body_->home, *body_->compute, *options_.wall);
    state_.client = body_->client.get();
    body_->snapshots = std::make_unique<snapshot_client>(
        body_->store,
        [this](const kv::block_hash& slot) {
          const auto* owner = kv::primary_of(body_->client->who(), slot);
          return owner ? std::shared_ptr<store_peer>(peers_[owner->id().value - 1]) : nullptr;
        },
        [this](uint32_t seat) { return seat < peers_.size() ? std::shared_ptr<store_peer>(peers_[seat]) : nullptr; });
    state_.snapshots = body_->snapshots.get();
  }

  kv::members members() const {
    kv::members m;
    m.epoch = body_->store->origin.epoch;
    m.replicas = state_.parity;
    for (const auto& [id, t] : body_->targets) m.targets[id] = t.get();
    for (const auto& o : body_->owners) m.owners.push_back(o.get());
    for (uint32_t s = 0; s < state_.seats; ++s) {
      const auto& p = *peers_[s];
      if (!p.up) m.away.push_back(kv::owner_id{s + 1});
      if (!p.up) continue;
      for (const auto& [id, t] : p.targets) {
        (void)t;
        m.placing.push_back({id.value, uint64_t{s} + 1, 1});
      }
    }
    return m;
  }

  void rebuild() {
    if (!body_->client) return;
    body_->client->set_members(members());
    state_.nodes.clear();
    for (uint32_t s = 0; s < state_.seats; ++s) {
      const auto& p = *peers_[s];
      state_.nodes.push_back({s, p.up, p.why, p.scrubber, p.entries, p.notes});
    }
  }

  void failed(known_peer& p, const error& e) {
    p.asking = false;
    p.why = e.message;
    if (!refused_ || e.code != errc::unsupported) log::debug("store client: storage node {}: {}", p.seat, e.message);
    links_.unwatch(p.actor);
    p.actor = nullptr;
    tried_[p.seat] = true;
    if (!refused_) retry_.arm(self_, options_.retry);
    rebuild();
    settle();
  }

  // From now on its targets and its owner are away; questions to it that are open fail at once.
  void drop(known_peer& p, const std::string& why) {
    const bool was = p.up;
    log::debug("store client: storage node {} is away: {}", p.seat, why);
    ++p.attempt;
    p.up = false;
    p.asking = false;
    p.why = why;
    if (p.actor) links_.unwatch(p.actor);
    p.actor = nullptr;
    if (was && p.handle_node != self_->node()) links_.fail_node(p.handle_node);
    p.index = nullptr;
    p.scrubber = nullptr;
    p.tier = nullptr;
    p.targets.clear();
    forget_plane(p);
  }

  void forget_plane(known_peer& p) {
    if (p.plane) options_.plane->remove_peer(*p.plane);
    p.plane.reset();
  }

  // -- waiting --------------------------------------------------------------------------------------------------

  error why_not() const {
    if (failure_) return *failure_;
    if (view_.version == 0) return {errc::unavailable, "there is no view of the cluster yet"};
    std::string all;
    for (const auto& p : peers_)
      if (!p->up) all += fmt::format("{}storage node {}: {}", all.empty() ? "" : "; ", p->seat, p->why);
    if (all.empty()) all = "the cluster has no storage nodes; give it some with storage.nodes";
    return {errc::unavailable, all};
  }

  void settle() {
    if (waiters_.empty()) return;
    const bool some = std::any_of(peers_.begin(), peers_.end(), [](const auto& p) { return p->up; });
    const bool all = std::all_of(tried_.begin(), tried_.end(), [](bool t) { return t; });
    if (!(refused_ || !body_->store->room) && !(some && all)) return;
    auto told = std::exchange(waiters_, {});
    for (auto& w : told) {
      w->told = true;
      if (refused_ || !body_->store->room)
        w->f(fail(why_not()), state_);
      else
        w->f({}, state_);
    }
  }

  interface::pointer self_;
  peer_links links_;
  store_client_options options_;
  std::shared_ptr<store_session> session_;
  std::shared_ptr<store_body> body_;
  std::vector<std::shared_ptr<known_peer>> peers_;  // by seat; bounded by the seats of the view
  std::vector<bool> tried_;                         // by seat: it has answered or failed since it came into the view
  cluster_view view_;
  store_state state_;
  std::optional<error> failure_;
  bool refused_ = false;
  std::vector<std::shared_ptr<waiter>> waiters_;
  timer retry_{retry_timer}, poll_{poll_timer};
};

void store_session::post(std::function<void(store_state&)> f) {
  std::lock_guard lock(mutex_);
  kv::task t = [this, f = std::move(f)] {
    if (state_) f(state_->state());
  };
  if (ended_) return;
  if (home_)
    home_->post(std::move(t));
  else
    early_.push_back(std::move(t));
}

void store_session::when_ready(nanoseconds limit, std::function<void(result<void>, store_state&)> f) {
  std::lock_guard lock(mutex_);
  kv::task t = [this, limit, f = std::move(f)] {
    if (state_) state_->when_ready(limit, f);
  };
  if (ended_) return;
  if (home_)
    home_->post(std::move(t));
  else
    early_.push_back(std::move(t));
}

void store_session::close() {
  any_handle self;
  {
    std::lock_guard lock(mutex_);
    self = std::move(self_);
    self_ = nullptr;
  }
  end_actor(self);
}

store_client_actor spawn_store_client(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                                      std::shared_ptr<store_session> session, store_client_options options) {
  return spawn_on<store_client_state>(system, node, unit, std::move(session), std::move(options));
}

store_client_actor spawn_store_client(caf::local_actor* parent, std::shared_ptr<store_session> session,
                                      store_client_options options) {
  return spawn<store_client_state>(parent, std::move(session), std::move(options));
}

}  // namespace troupe::actors
