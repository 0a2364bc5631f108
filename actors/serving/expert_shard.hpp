// The expert shard of a rank: adds up how many rows went to each logical expert of each layer, for whoever plans
// placement.
#pragma once

#include "actors/protocol/rank.hpp"

namespace troupe::actors {

/// Spawns it as a child of `parent`.
expert_shard_actor spawn_expert_shard(caf::local_actor* parent);

}  // namespace troupe::actors
