// How a process of the live cluster starts the roles that it is given.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/cluster/director.hpp"
#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/front.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// The seats of a cluster, as its configuration wants them: "front", then "prefill-0", "prefill-1", ..., "decode-0",
/// ...
std::vector<actors::wanted_group> wanted_groups(const config::settings& s);

/// Called with the entrypoint when a front role starts, and with null when it has ended. Thread of the node agent.
using on_entrypoint = std::function<void(actors::entrypoint_actor)>;

/// The factory for live processes: real engines for ranks, the entrypoint for the front. `reachable`: KV pages lie in
/// memory that other processes can read. `http`: where this process serves HTTP, for the cluster view.
std::shared_ptr<actors::role_factory> make_role_factory(const config::settings& s, on_entrypoint entrypoint,
                                                        bool reachable = true, std::string http = {});

}  // namespace troupe::node
