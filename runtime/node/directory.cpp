#include "runtime/node/directory.hpp"

#include <caf/io/middleman.hpp>

#include <deque>
#include <map>
#include <set>

#include "runtime/base/log.hpp"
#include "runtime/node/dial_failure.hpp"

namespace troupe::node {
namespace {

using namespace actors;
using answer = promise<resolve_reply>;

resolve_reply refusal(errc code, std::string text) { return {{code, std::move(text)}, nullptr}; }

class directory_state {
 public:
  using interface = directory_actor;
  static inline const char* name = "directory";

  explicit directory_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(directory_options options) {
    options_ = std::move(options);
    peers_[node_number{}].at = options_.director;  // node 0 is the director at the join address
    return {
        [this](const resolve_request& r) { return resolve(r.key); },
        [this](const cluster_view& v) { learn(v); },
        [this](const dial_request& m) { dial_for(m); },
        [this](const greeting& m) { greeted(m); },
        [this](const tick& t) { not_dialled(t.ticket); },
    };
  }

 private:
  struct waiting {
    actor_key key;
    answer to;
  };
  struct peer {
    config::address at;
    incarnation inc;
    any_handle published;   // the node's door, or the director; null while there is no connection
    bool dialling = false;  // or asked to dial
    uint64_t attempt = 0;   // a late result of an older one is ignored
    std::deque<waiting> queue;
  };

  answer resolve(const actor_key& key) {
    auto to = self_->make_response_promise<answer>();
    auto it = peers_.find(key.node);
    if (it == peers_.end()) {
      to.deliver(refusal(errc::not_found, "node " + std::to_string(key.node.value) + " is not in the cluster view"));
      return to;
    }
    peer& p = it->second;
    if (key.inc.value != 0 && p.inc.value != 0 && key.inc != p.inc) {
      to.deliver(refusal(errc::stale, "node " + std::to_string(key.node.value) + " has another incarnation now"));
      return to;
    }
    if (p.at == options_.self) {
      ask_agent(key, options_.agent->get(), to);
    } else if (p.published) {
      found(p, key, to);
    } else if (p.queue.size() >= options_.max_waiting) {
      to.deliver(refusal(errc::exhausted, "too many requests wait for the connection to " + p.at.text()));
    } else {
      p.queue.push_back({key, to});
      if (!p.dialling) reach(key.node, p);
    }
    return to;
  }

  // Two nodes that dial each other at once may lose both connections, or keep half of one: see dial_request.
  void reach(node_number number, peer& p) {
    const auto self = peers_.find(self_number_);
    const auto& director = peers_[node_number{}].published;
    if (number == node_number{} || self_number_ == node_number{} || number < self_number_ || self == peers_.end() ||
        !director)
      return dial(number, p);
    p.dialling = true;
    p.attempt = ++attempts_;
    const auto& own = self->second;
    tell(self_, caf::actor_cast<director_actor>(director),
         dial_request{number, self_number_, own.inc, own.at.host, own.at.port});
    later(self_, options_.dial_timeout, tick{1, p.attempt});
  }

  void dial_for(const dial_request& m) {
    auto [it, fresh] = peers_.try_emplace(m.node);
    peer& p = it->second;
    if (fresh || p.inc < m.inc) {  // the view that names it is still on its way
      forget_connection(p);
      p.at = {m.host, m.port};
      p.inc = m.inc;
    }
    if (p.inc != m.inc) return;
    if (p.published)
      greet(p);
    else if (!p.dialling)
      dial(m.node, p);
  }

  void greet(const peer& p) {
    const auto self = peers_.find(self_number_);
    if (self_number_ == node_number{} || self == peers_.end() || !options_.door) return;
    tell(self_, caf::actor_cast<door_actor>(p.published), greeting{self_number_, self->second.inc, options_.door});
  }

  void greeted(const greeting& m) {
    auto it = peers_.find(m.node);
    if (it == peers_.end() || it->second.inc != m.inc || !m.door || it->second.published == m.door) return;
    forget_door(it->second);
    it->second.attempt = ++attempts_;
    reached(m.node, it->second, m.door);
  }

  void not_dialled(uint64_t attempt) {
    for (auto& [number, p] : peers_) {
      if (p.attempt != attempt || !p.dialling) continue;
      p.dialling = false;
      for (auto& w : std::exchange(p.queue, {}))
        w.to.deliver(refusal(errc::unavailable, p.at.text() + " was asked to connect to this node and has not done so "
                                                              "in time"));
    }
  }

  void dial(node_number number, peer& p) {
    p.dialling = true;
    const uint64_t attempt = p.attempt = ++attempts_;
    auto& system = self_->home_system();
    std::string host = p.at.host == "localhost" ? "127.0.0.1" : p.at.host;
    auto request = self_->request(system.middleman().actor_handle(),
                                  std::chrono::duration_cast<std::chrono::microseconds>(options_.dial_timeout),
                                  caf::connect_atom_v, host, p.at.port);
    auto id = request.id();
    request.then(
        [this, id, number, attempt](const caf::node_id&, const any_handle& handle, const std::set<std::string>&) {
          self_->clock().cancel_request_timeout(self_, id);
          dialled(number, attempt, handle, {});
        },
        [this, id, number, attempt](const caf::error& e) {
          self_->clock().cancel_request_timeout(self_, id);
          dialled(number, attempt, nullptr, dial_failure(e));
        });
  }

  void dialled(node_number number, uint64_t attempt, const any_handle& handle, const std::string& why) {
    auto it = peers_.find(number);
    if (it == peers_.end() || it->second.attempt != attempt) return;
    peer& p = it->second;
    if (handle) {
      reached(number, p, handle);
      if (number != node_number{}) greet(p);
      return;
    }
    p.dialling = false;
    for (auto& w : std::exchange(p.queue, {}))
      w.to.deliver(refusal(errc::unavailable, "cannot reach " + p.at.text() + ": " + why +
                                                  (number == node_number{} ? where_directors_listen : "")));
  }

  void reached(node_number number, peer& p, const any_handle& handle) {
    p.dialling = false;
    p.published = handle;
    links_.watch(handle, [this, number, handle](const error&) {
      auto lost = peers_.find(number);
      if (lost != peers_.end() && lost->second.published == handle)
        lost->second.published = nullptr;  // the next request dials again
    });
    for (auto& w : std::exchange(p.queue, {})) found(p, w.key, w.to);
  }

  void found(peer& p, const actor_key& key, answer to) {
    if (key.node == node_number{}) {
      to.deliver(resolve_reply{{}, p.published});
      return;
    }
    ask_agent(key, caf::actor_cast<door_actor>(p.published), to);
  }

  template <class Handle>
  void ask_agent(const actor_key& key, const Handle& agent, answer to) {
    links_.ask(
        self_, agent, options_.lookup_timeout, lookup_request{key.inc, key.name},
        [to](const lookup_reply& r) mutable {
          to.deliver(resolve_reply{r.outcome, r.handle});
        },
        [to](const error& e) mutable { to.deliver(refusal(e.code, "lookup failed: " + e.message)); });
  }

  void learn(const cluster_view& v) {
    if (v.version < version_) return;
    version_ = v.version;
    std::set<node_number> named{node_number{}};
    self_number_ = {};
    for (const node_entry& n : v.nodes) {
      named.insert(n.node);
      peer& p = peers_[n.node];
      config::address at{n.host, n.port};
      if (p.at != at || p.inc != n.inc) forget_connection(p);
      p.at = at;
      p.inc = n.inc;
      if (p.at == options_.self) self_number_ = n.node;
    }
    for (auto it = peers_.begin(); it != peers_.end();) {
      if (named.contains(it->first)) {
        ++it;
        continue;
      }
      forget_connection(it->second);
      it = peers_.erase(it);
    }
  }

  void forget_door(peer& p) {
    if (p.published) links_.unwatch(p.published);
    p.published = nullptr;
  }

  void forget_connection(peer& p) {
    forget_door(p);
    p.dialling = false;
    p.attempt = ++attempts_;
    for (auto& w : std::exchange(p.queue, {}))
      w.to.deliver(refusal(errc::stale, "the node was replaced while it was dialled"));
  }

  interface::pointer self_;
  peer_links links_;
  directory_options options_;
  std::map<node_number, peer> peers_;  // node 0: the director at the join address
  uint64_t version_ = 0;
  uint64_t attempts_ = 0;    // of all peers
  node_number self_number_;  // 0: not a member, or not known yet
};

class door_state {
 public:
  using interface = door_actor;
  static inline const char* name = "door";

  explicit door_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(std::shared_ptr<local_agent> agent) {
    agent_ = std::move(agent);
    return {[this](const lookup_request& r) {
              auto to = self_->make_response_promise<promise<lookup_reply>>();
              links_.ask(
                  self_, agent_->get(), std::chrono::seconds(1), r,
                  [to](const lookup_reply& reply) mutable { to.deliver(reply); },
                  [to](const error&) mutable {
                    to.deliver(lookup_reply{{errc::unavailable, "the node has no agent yet"}, nullptr});
                  });
              return to;
            },
            [this](const greeting& m) { tell(self_, agent_->directory(), m); }};
  }

 private:
  interface::pointer self_;
  peer_links links_;
  std::shared_ptr<local_agent> agent_;
};

}  // namespace

door_actor spawn_door(caf::actor_system& system, std::shared_ptr<local_agent> agent) {
  return actors::spawn_on<door_state>(system, system.node(), nullptr, std::move(agent));
}

actors::directory_actor spawn_directory(caf::actor_system& system, directory_options options) {
  return actors::spawn_on<directory_state>(system, system.node(), nullptr, std::move(options));
}

}  // namespace troupe::node
