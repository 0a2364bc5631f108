// The rebalancer of an EP group: looks at what the group's routers chose, plans a placement of expert copies
// (policies/eplb) and moves the group to it while it serves. Every rank has one; the first rank's of the group view
// works, the others wait for their turn.
//
//   idle -> resolving -> reading -> counting -> collecting -> planning -> staging -> flipping -> counting ...
//                           ^_____________________ a move that is given up ____________|
//
// A move ends in one of three ways: every rank says that it is in force; or, before any rank was told to flip, it is
// given up (a rank refuses, or does not finish within move_timeout, which the report then names); or the group view
// changes, and with it everything starts again. After the first flip a move cannot be given up: the step header takes
// it to all ranks.
#pragma once

#include <memory>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/eplb.hpp"
#include "kv/store/executor.hpp"

namespace troupe::actors {

/// When and how far a group is rebalanced; times are on the actor clock.
struct eplb_options {
  uint32_t interval = 1000;                            // steps from look to look; 0: never
  uint32_t loads_per_step = 4;                         // experts that a rank loads between two steps
  uint32_t max_moves = UINT32_MAX;                     // copies loaded by one move, over all ranks and layers
  double min_gain = 0.01;                              // a move must take this much of the busiest ranks' rows away
  nanoseconds move_timeout{std::chrono::seconds(30)};  // for all ranks to load, and again to flip
  nanoseconds poll{std::chrono::milliseconds(500)};    // how often the steps are looked at
  std::shared_ptr<kv::worker> planner;                 // where plans are made, which takes up to a quarter of a second
                                                       // at 64 ranks; null: in the actor's handler
};

/// Spawns it as a child of `parent`. `own` is the shard of its own rank; the others come from the directory.
eplb_rebalancer_actor spawn_eplb_rebalancer(caf::local_actor* parent, const role_assignment& assignment,
                                            const node_identity& identity, directory_actor directory,
                                            expert_shard_actor own, eplb_options options);

}  // namespace troupe::actors
