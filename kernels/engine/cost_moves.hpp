// The expert placement of a cost engine: what expert_moves is for one with weights, without tables and loads.
#pragma once

#include <mutex>

#include "kernels/engine/cost_experts.hpp"
#include "kernels/engine/cost_group.hpp"
#include "kernels/engine/placement.hpp"
#include "kernels/model/model.hpp"

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
  uint32_t copies_of(const ep::placement& p) const;
  bool holds(const ep::placement& p, uint32_t layer, uint32_t expert) const;

  const model& outline_;
  const expert_shape shape_;
  const uint32_t slots_;

  mutable std::mutex mutex_;
  cost_seat* seat_ = nullptr;
  std::shared_ptr<const ep::placement> active_, next_;
  uint32_t ranks_ = 0, rank_ = 0, copies_ = 0;
  uint64_t regroups_ = 0, flips_ = 0;
  move_phase phase_ = move_phase::none;
  uint32_t to_load_ = 0, loaded_ = 0, loads_per_step_ = 1;
  // Since the last take; the rows become loads when they are taken.
  struct counted {
    uint64_t steps = 0, rows = 0, decoder_rows = 0, drafts = 0;
  };
  counted own_, group_;  // group_: since the placement took effect
  std::shared_ptr<const expert_use> use_;
};

}  // namespace troupe::kernels
