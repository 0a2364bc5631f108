// The schedulers of a data-parallel rank: prefill_scheduler and decode_scheduler are the same actor around the same
// batch (batch.hpp) with another role: a prefill scheduler ends a sequence after its first token and hands it over.
#pragma once

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/serving/prefix_store.hpp"

namespace troupe::actors {

/// Bounds and patience of a scheduler; times are on the actor clock.
struct scheduler_options {
  uint32_t queue_limit = 256;   // waiting requests; a further one is refused with a time to try again
  uint32_t verify_budget = 64;  // draft tokens verified per step, over all sequences; 0 = no speculation
  uint32_t plans_ahead = 1;     // steps planned while one runs: 0 or 1
  prefix_options prefix;        // without a store: cached blocks are neither read nor written
  nanoseconds step_budget{0};   // of a step that runs prompt rows (batch.hpp); 0: only the engine's max_chunk limits it
  uint32_t max_fronts = 64;     // attached front processes; a further one is refused
  nanoseconds resend_after{std::chrono::seconds(2)};  // tokens not acknowledged by then are sent again
  nanoseconds group_patience{
      std::chrono::seconds(5)};  // wait for a new group view, then running requests fail as resumable
};

/// Spawns it as a child of `parent`; it attaches to `rank` at once. `what` is prefill or decode.
scheduler_actor spawn_scheduler(caf::local_actor* parent, role what, const node_identity& identity, rank_actor rank,
                                scheduler_options options);

}  // namespace troupe::actors
