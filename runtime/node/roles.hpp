// How a process of a cluster starts the roles that it is given. What the roles need of the world that they run in comes
// from role_parts: threads, files and sockets in a live process (live_parts.hpp), memory and virtual time in a
// simulation (runtime/sim). Everything else is here, so that both start the same actors with the same options.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/cluster/director.hpp"
#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/front.hpp"
#include "actors/serving/roles.hpp"
#include "actors/storage/storage_host.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// The seats of a cluster, as its configuration wants them: "front", then "prefill-0", "prefill-1", ..., "decode-0",
/// ...
std::vector<actors::wanted_group> wanted_groups(const config::settings& s);

/// What the cluster's director is told; `epoch` must grow from start to start.
actors::director_options director_options_of(const config::settings& s, cluster_epoch epoch);

/// What an engine of these ranks can hold; max_context is the configuration's.
kernels::engine_limits engine_limits_of(const config::ranks_section& r, const config::engine_section& e);

/// Called with the entrypoint when a front role starts, and with null when it has ended. Thread of the node agent.
using on_entrypoint = std::function<void(actors::entrypoint_actor)>;

/// What the roles of one process need of the world. Called from the node agent's handlers; must not block.
class role_parts {
 public:
  virtual ~role_parts() = default;
  /// The engine's side of a prefill or decode seat.
  virtual std::shared_ptr<actors::rank_host> rank(const actors::role_assignment& seat,
                                                  const actors::node_identity& identity) = 0;
  /// Disks, index and data plane of a storage seat.
  virtual std::shared_ptr<actors::storage_host> storage(const actors::role_assignment& seat) = 0;
  /// How the seat reaches the cluster's block store; null: it has no cache. `start_cache` follows.
  virtual const actors::prefix_options* cache(const actors::role_assignment& seat) = 0;
  /// Spawns what is behind `cache` as a child of the role's parent and makes it one of the role's actors.
  virtual void start_cache(const actors::role_context& context, actors::role_actors& role) = 0;
  /// Where rebalancers plan.
  virtual std::shared_ptr<kv::worker> planner() = 0;
  /// The seat's actors have been told to end: its parts go.
  virtual void stopped(const actors::role_assignment& seat) = 0;
};

/// The factory of a process's roles. `http`: where this process serves HTTP, for the cluster view.
std::shared_ptr<actors::role_factory> make_role_factory(const config::settings& s, std::shared_ptr<role_parts> parts,
                                                        on_entrypoint entrypoint, std::string http = {});

}  // namespace troupe::node
