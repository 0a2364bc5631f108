// The directory actor of a virtual node: dials through the simulated network, then asks the node agent there by name.
#pragma once

#include <map>
#include <string>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/cluster.hpp"
#include "runtime/sim/network.hpp"

namespace troupe::sim {

/// What "listens" where: host name of a node -> its node agent (or, under "director", the director). Real handles, as
/// the actors' spawn functions returned them.
using listeners = std::map<std::string, caf::strong_actor_ptr>;

/// `net` and `where` must outlive the actors of the node.
actors::directory_actor spawn_directory(network& net, size_t node, const listeners& where, caf::actor_system& system);

}  // namespace troupe::sim
