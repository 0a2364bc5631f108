// The live directory: the only source of handles to actors of other nodes. It dials a node before anybody uses a handle
// to it (a handle that came through a third node would get no death notice), then asks that node's agent for the actor
// by name.
//
//   asker -- resolve_request{node, incarnation, name} --> directory -- dial host:port --> middleman   once per
//   connection
//                                                            | -- lookup_request --> the node's agent
//   asker <------------------------------ resolve_reply -----|
//
// Of two members of the view only the one with the higher number dials; the other one asks for it through the director
// (dial_request, which says why) and uses the door that it is greeted with. Where the director is away it dials itself.
#pragma once

#include <caf/actor_system.hpp>

#include <memory>
#include <mutex>

#include "actors/protocol/cluster.hpp"
#include "runtime/config/units.hpp"

namespace troupe::node {

/// The agent and the directory of this node, which are made after the door. Any thread.
class local_agent {
 public:
  void set(actors::node_agent_actor agent) {
    std::lock_guard lock(mutex_);
    agent_ = std::move(agent);
  }
  void set_directory(actors::directory_actor directory) {
    std::lock_guard lock(mutex_);
    directory_ = std::move(directory);
  }
  actors::node_agent_actor get() const {
    std::lock_guard lock(mutex_);
    return agent_;
  }
  actors::directory_actor directory() const {
    std::lock_guard lock(mutex_);
    return directory_;
  }

 private:
  mutable std::mutex mutex_;
  actors::node_agent_actor agent_;
  actors::directory_actor directory_;
};

/// How a directory finds its way.
struct directory_options {
  config::address director;  // the join address; in the director's own process unused
  config::address self;      // where this node's agent is published; requests for it are answered without dialling
  std::shared_ptr<local_agent> agent;
  actors::any_handle door;  // of this node, for those that it dials; null: it has none and is no member
  nanoseconds dial_timeout = std::chrono::seconds(3);
  nanoseconds lookup_timeout = std::chrono::seconds(2);
  uint32_t max_waiting = 256;  // requests waiting for one node's dial; a further one is refused (exhausted)
};

/// What a process publishes: other nodes dial it and ask for its actors by name. It passes the question to the agent,
/// which is made later, because it has to know the port, and greetings to the directory.
using door_actor =
    actors::actor_type<actors::answers<actors::lookup_request, actors::lookup_reply>, actors::takes<actors::greeting>>;

/// Spawns the door of this process. Before the agent is set it answers `unavailable`.
door_actor spawn_door(caf::actor_system& system, std::shared_ptr<local_agent> agent);

/// Spawns the directory as a root actor of the process. It needs the middleman.
actors::directory_actor spawn_directory(caf::actor_system& system, directory_options options);

}  // namespace troupe::node
