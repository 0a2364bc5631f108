// How a node_agent starts the actors of a role. The runtime hands it in, because a role needs things of the process: an
// engine host, a gateway's port.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

using drainable_actor = actor_type<answers<drain_request, drain_reply>>;
using viewer_actor = actor_type<takes<cluster_view>>;

/// Who this node is, as the director said.
struct node_identity {
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
};

/// The actors of one role, as its node_agent needs them.
struct role_actors {
  std::map<std::string, any_handle> named;   // what other nodes may look up, by full name
  std::vector<viewer_actor> viewers;         // get every cluster view
  std::vector<drainable_actor> drain_order;  // asked one after the other
  std::vector<any_handle> all;               // ended when the role ends
};

/// Thread rules: called from the node_agent's handlers; must not block (loading goes on behind rank_host).
class role_factory {
 public:
  virtual ~role_factory() = default;
  /// Starts the role's actors as children of `parent` with actors::spawn. They report with role_update to `agent`.
  virtual result<role_actors> start(caf::local_actor* parent, const role_assignment& assignment,
                                    const node_identity& identity, const node_agent_actor& agent,
                                    const directory_actor& directory) = 0;
  /// The role's actors have been told to end (drained, or its incarnation was given up).
  virtual void stopped(const role_assignment& assignment) = 0;
};

}  // namespace troupe::actors
