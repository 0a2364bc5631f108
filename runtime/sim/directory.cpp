#include "runtime/sim/directory.hpp"

#include "actors/protocol/messages.hpp"

namespace troupe::sim {
namespace {

using namespace troupe::actors;

class directory_state {
 public:
  using interface = directory_actor;
  static inline const char* name = "directory";
  explicit directory_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(network* net, size_t node, const listeners* where) {
    net_ = net;
    node_ = node;
    where_ = where;
    return {
        [this](const resolve_request& m) { return resolve(m.key); },
        [this](const cluster_view& m) {
          if (m.version > view_.version) view_ = m;
        },
        [](const dial_request&) {},
        [](const greeting&) {},
        [](const tick&) {},  // nothing is dialled here
    };
  }

 private:
  caf::strong_actor_ptr dial(const std::string& host) const {
    auto it = where_->find(host);
    return it == where_->end() ? nullptr : net_->view(node_, it->second);
  }

  caf::result<resolve_reply> resolve(const actor_key& key) {
    if (key.node == node_number{}) {
      auto h = dial("director");
      return h ? resolve_reply{{}, h} : resolve_reply{{errc::unavailable, "the director does not answer"}, nullptr};
    }
    const node_entry* entry = nullptr;
    for (auto& n : view_.nodes)
      if (n.node == key.node && n.inc == key.inc) entry = &n;
    if (!entry) return resolve_reply{{errc::not_found, "no such node in the view"}, nullptr};
    auto agent = caf::actor_cast<node_agent_actor>(dial(entry->host));
    if (!agent) return resolve_reply{{errc::unavailable, "the node does not answer"}, nullptr};
    auto p = self_->make_response_promise<promise<resolve_reply>>();
    links_.ask(
        self_, agent, std::chrono::seconds(1), lookup_request{key.inc, key.name},
        [p](const lookup_reply& r) mutable {
          p.deliver(resolve_reply{r.outcome, r.handle});
        },
        [p](const error& e) mutable {
          p.deliver(resolve_reply{to_status(e), nullptr});
        });
    return p;
  }

  interface::pointer self_;
  peer_links links_;
  network* net_ = nullptr;
  size_t node_ = 0;
  const listeners* where_ = nullptr;
  cluster_view view_;
};

}  // namespace

directory_actor spawn_directory(network& net, size_t node, const listeners& where, caf::actor_system& system) {
  return spawn_on<directory_state>(system, net.id(node), coordinator::of(system).unit(), &net, node, &where);
}

}  // namespace troupe::sim
