// The expert placement of a running engine: the table that steps use, the move to the next one, and what is counted.
#pragma once

#include <mutex>
#include <utility>

#include "kernels/engine/move_state.hpp"
#include "kernels/ep/expert_table.hpp"
#include "kernels/model/forward.hpp"

namespace troupe::kernels {

/// Thread rules: the functions of the first group from any thread, those of the second from the engine's thread.
class expert_moves {
 public:
  /// `slots` as in placement_status; 0: one for every expert of the backbone.
  expert_moves(const model& m, operators& ops, place where, uint32_t slots, ep::split_options split);

  /// Begins a move, in place of one that is not yet flipping. Errors: stale (another group, another placement in force,
  /// or not newer), invalid_argument (not a placement of the model's backbone), exhausted (more slots than there are),
  /// unavailable (no group; or the move before is flipping, which takes one step).
  result<void> stage(placement_move move);
  /// All ranks have staged `version`: it takes effect with the next step of the group. ok also when it is in force
  /// already. Errors: stale (it is not staged here).
  result<void> flip(placement_version version);
  /// Gives the move up and its slots back, unless another rank's header has already made it effective. ok when there is
  /// no such move. Errors: unavailable (it is flipping).
  result<void> drop(placement_version version);
  placement_status status() const;
  /// What was counted since the last take, if that is at least `min_steps` steps; otherwise only `steps` is filled and
  /// counting goes on.
  expert_window take(uint64_t min_steps);

  /// A new group, with its first placement (checked). Counting starts again.
  void enter(ep::placement first, uint32_t ranks, uint32_t rank, uint64_t regroups);
  /// The group has ended or failed; with it the move.
  void leave();
  /// Loads the next experts of the move, at most loads_per_step.
  void load();
  /// What the header of the step that begins with number `step` says about the move.
  void announce(ep::step_header& header, uint64_t step) const;
  /// Does what the group has agreed on for step `step`. Errors: stale when this rank has not staged that placement; the
  /// step must not run.
  result<void> adopt(const ep::step_header& agreed, uint64_t step);
  /// A step of the group has succeeded.
  void finish_step(forward_pass& forward);
  /// The table in force.
  ep::expert_table& table() { return table_; }

 private:
  struct expert_at {
    uint32_t layer, expert;
  };

  const model& model_;
  operators& ops_;
  const place where_;
  const ep::split_options split_;

  ep::expert_table table_;  // engine thread; replaced under mutex_

  mutable std::mutex mutex_;  // protects what follows
  move_state state_;
  ep::expert_table next_table_;
  std::vector<expert_at> to_load_;
  expert_window window_;
};

}  // namespace troupe::kernels
