// The node agent: one per process. Joins, starts the role actors it is told to, reports, passes views on, drains,
// leaves.
//
//   joining --join_reply ok--> serving --stop_request--> draining --all drained or grace over--> left
//      ^                          |
//      +--- director lost, or this incarnation was given up (roles end) ---+
#pragma once

#include <memory>
#include <string>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// What a node agent is told at its start; times are on the actor clock.
struct node_agent_options {
  join_request self;  // cluster, name, address, pid, wanted seat, resources
  std::shared_ptr<role_factory> roles;
  directory_actor directory;  // resolves {0, 0, "director"} to the director at the join address
  any_handle director;        // of the director in this very process; null elsewhere
  nanoseconds ask_timeout{std::chrono::seconds(2)};
  nanoseconds retry{std::chrono::milliseconds(200)};  // first wait before joining again; doubles
  nanoseconds retry_limit{std::chrono::seconds(5)};
  nanoseconds rejoin_limit{std::chrono::milliseconds(500)};  // the same, of a node that has roles
};

/// Spawns it on `node`; `unit` may be null. It ends by itself after it has answered a stop_request.
node_agent_actor spawn_node_agent(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                                  node_agent_options options);

}  // namespace troupe::actors
