// The expert shard of a rank: what its engine counts, and the moves of its expert placement, for the rebalancer of its
// group. The engine owns the counters and the slots; the shard answers when a move has come as far as it was asked.
#pragma once

#include <memory>

#include "actors/protocol/eplb.hpp"
#include "actors/serving/rank_host.hpp"

namespace troupe::actors {

/// Spawns it as a child of `parent`. `host` is its rank's. Answers to stage_placement and flip_placement may take as
/// long as the asker's timeout; a second one answers the first with `cancelled`.
expert_shard_actor spawn_expert_shard(caf::local_actor* parent, std::shared_ptr<rank_host> host);

}  // namespace troupe::actors
