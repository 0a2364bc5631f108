// The rank: owns the engine (behind rank_host) and the page pool. It names the pages of plans, passes step results on,
// and follows its group's views.
//
//   starting --engine_opened--> waiting --engine_grouped--> ready --peer_lost--> waiting --engine_grouped--> ready ...
#pragma once

#include <memory>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/serving/prefix_store.hpp"
#include "actors/serving/rank_host.hpp"

namespace troupe::actors {

/// What a rank is told at its start; times are on the actor clock.
struct rank_options {
  role_assignment assignment;
  node_identity identity;
  node_agent_actor agent;
  expert_shard_actor shard;
  directory_actor directory;  // leads to the ranks that sequences come from
  std::shared_ptr<rank_host> host;
  prefix_options prefix;
  nanoseconds fetch_patience{std::chrono::seconds(5)};  // a fetch that takes longer loses to computing again
};

/// Spawns it as a child of `parent`; it opens its host at once.
rank_actor spawn_rank(caf::local_actor* parent, rank_options options);

}  // namespace troupe::actors
