// The actor system of one process and its place in the actor network.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/io/middleman.hpp>

#include <memory>
#include <string>

#include "actors/protocol/caf.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/units.hpp"

namespace troupe::node {

/// How the actor system of a process is set up.
struct net_options {
  size_t threads = 2;  // of the scheduler; CAF adds five of its own
  nanoseconds heartbeat = std::chrono::milliseconds(500);
  nanoseconds connection_timeout = std::chrono::seconds(10);  // the coarse net below our own failure detection
  bool network = true;                                        // false: no middleman, no socket
};

/// An actor_system with every message type, the `sharing` scheduler, heartbeats and connection timeout on, and
/// automatic connections off (they would open a port on all interfaces). Any thread. Destroying it ends all actors
/// first: send stop requests before.
class actor_net {
 public:
  explicit actor_net(const net_options& options);
  ~actor_net();
  actor_net(const actor_net&) = delete;
  actor_net& operator=(const actor_net&) = delete;

  caf::actor_system& system() { return *system_; }

  /// Makes `handle` reachable at `where` (port 0: any free port); returns the real address. Refuses addresses other
  /// than loopback: the actor network is neither encrypted nor authenticated. Blocks shortly; not for actors.
  template <class Handle>
  result<config::address> publish(const Handle& handle, const config::address& where) {
    if (auto ok = may_listen(where); !ok) return fail(ok.error());
    auto port = system_->middleman().publish(handle, where.port,
                                             where.host == "localhost" ? "127.0.0.1" : where.host.c_str(), true);
    if (!port) return fail(errc::unavailable, "cannot listen on {}: {}", where.text(), system_->render(port.error()));
    return config::address{where.host, *port};
  }

  /// Dials a peer and returns the actor it published. Blocks at most `limit`; not for actors (they use the directory).
  template <class Handle>
  result<Handle> dial(const config::address& where, nanoseconds limit) {
    auto pointer = dial_any(where, limit);
    if (!pointer) return fail(pointer.error());
    return caf::actor_cast<Handle>(*pointer);
  }

 private:
  static result<void> may_listen(const config::address& where);
  result<caf::strong_actor_ptr> dial_any(const config::address& where, nanoseconds limit);
  struct parts;
  std::unique_ptr<parts> parts_;
  caf::actor_system* system_ = nullptr;
};

}  // namespace troupe::node
