// The expert placement of a cost engine: what expert_moves is for one with weights, without tables and loads.
#pragma once

#include <mutex>

#include "kernels/engine/cost_experts.hpp"
#include "kernels/engine/cost_group.hpp"
#include "kernels/engine/move_state.hpp"

namespace troupe::kernels {

/// Thread rules: the functions of the first group from any thread, those of the second from the engine's.
class cost_moves {
 public:
  /// `slots` as in placement_status; 0: one for every expert of the backbone.
  cost_moves(const model& outline, uint32_t slots);

  /// As engine::stage, flip, drop, placement, take_expert_window.
  result<void> stage(placement_move move);
  result<void> flip(placement_version version);
  result<void> drop(placement_version version);
  placement_status status() const;
  expert_window take(uint64_t min_steps);
  std::shared_ptr<const ep::placement> active() const;

  /// A new group with its first placement (checked). Counting starts again. With a seat, placements are kept once for
  /// all ranks of its group.
  void enter(ep::placement first, uint32_t ranks, uint32_t rank, uint64_t regroups, cost_seat* seat);
  void leave();
  /// Counts the next experts of the move as loaded.
  void load();
  void announce(ep::step_header& header, uint64_t step) const;
  /// Takes the flip that the group has agreed on; stale when it is not staged here.
  result<void> adopt(const ep::step_header& agreed, uint64_t step);
  /// A step of the group has succeeded, with these rows of this rank.
  void finish_step(const cost_step& step, const policies::step_work& mine);

 private:
  std::shared_ptr<const ep::placement> kept(ep::placement p) const;
  uint32_t copies_of(const ep::placement& p, uint32_t rank) const;
  bool holds(const ep::placement& p, uint32_t layer, uint32_t expert, uint32_t rank) const;

  const model& outline_;
  const expert_shape shape_;

  mutable std::mutex mutex_;
  cost_seat* seat_ = nullptr;
  move_state state_;
  // Since the last take; the rows become loads when they are taken.
  struct counted {
    uint64_t steps = 0, rows = 0, decoder_rows = 0, drafts = 0;
  };
  counted own_, group_;  // group_: since the placement took effect
  std::shared_ptr<const expert_use> use_;
};

}  // namespace troupe::kernels
