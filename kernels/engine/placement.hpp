// What an engine says and is told about the expert placement of its group. A placement changes in two phases: every
// rank loads the copies that it does not hold yet, a few per step, into free slots while steps go on under the old
// placement (`stage`); when all ranks have, one `flip` or more makes all of them switch at one step, which the step
// header names. A slot is room for the weights of one expert of any MoE layer. On the CPU it is a pointer into the
// mapped checkpoint, so that there is one for every expert; on a GPU it is memory, and what a placement does not use is
// where the next one is loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ep/ep.hpp"

namespace troupe::kernels {

/// The version of the placement that a group begins with: versions grow from one group epoch to the next too.
inline placement_version first_placement_version(group_epoch epoch) { return placement_version{epoch.value << 32}; }

/// A new placement for the group that the engine runs in.
struct placement_move {
  uint64_t regroups = 0;        // which group it is for, see step_result::regroups
  placement_version from;       // the placement that is in force there
  ep::placement to;             // newer; copies of the backbone's layers (the drafter's stay where they are)
  uint32_t loads_per_step = 4;  // most experts loaded between two steps, at least 1
};

/// How far a move has come on this rank.
enum class move_phase : uint8_t { none, loading, staged, flipping };

/// The placement in force on this rank and the move under way. Without a group `active` is null.
struct placement_status {
  uint64_t regroups = 0;
  std::shared_ptr<const ep::placement> active;
  uint32_t ranks = 0, rank = 0;  // of the group
  move_phase phase = move_phase::none;
  placement_version next;            // of the move under way
  uint32_t loaded = 0, to_load = 0;  // experts of the move
  uint32_t copies = 0, slots = 0;    // slots in use by backbone layers, those of the move included; and all there are
  uint64_t flips = 0;                // placements that have taken effect here, over all groups
};

/// What the steps of one group have counted. A step counts when it has succeeded, so one that was abandoned and run
/// again counts once.
struct expert_window {
  uint64_t regroups = 0;
  uint64_t steps = 0;                        // of the group, with or without rows of this rank
  std::vector<std::vector<uint64_t>> loads;  // [MoE layer][logical expert]: rows that this rank has routed there
  placement_version placement;               // in force at the end
  uint64_t received_steps = 0;               // those of them that ran under `placement`
  std::vector<uint64_t> received;            // [MoE layer]: rows that came for this rank's experts in those
};

}  // namespace troupe::kernels
