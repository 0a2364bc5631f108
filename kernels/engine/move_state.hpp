// How far an engine is on its way from one expert placement to the next: the part of it that every kind of engine
// shares. Tables, weights and counters are its owner's (expert_moves, cost_moves).
#pragma once

#include <memory>

#include "kernels/engine/placement.hpp"
#include "kernels/ep/ep.hpp"
#include "kernels/model/model.hpp"

namespace troupe::kernels {

/// invalid_argument if `placement` does not give every expert of every MoE layer at least one copy on a rank below
/// `ranks`; names layer and expert.
result<void> check_placement(const model& m, const ep::placement& placement, uint32_t ranks);

/// Plain state: its owner holds a lock over every call.
class move_state {
 public:
  using shared_placement = std::shared_ptr<const ep::placement>;

  /// `slots` as in placement_status; 0: one for every expert of the backbone.
  move_state(const model& m, uint32_t slots)
      : model_(m), slots_(slots ? slots : m.config.num_hidden_layers * m.config.n_routed_experts) {}

  /// The placement that `move` asks for, the drafter's experts staying where they are. Errors: unavailable (no group),
  /// stale (another group, another placement in force, or not newer), invalid_argument (not one of the backbone).
  result<ep::placement> target(placement_move move) const;
  /// The move to `next` begins, with `loads` experts to load, so many per step. Errors: unavailable (another one is
  /// about to take effect), exhausted (too few slots).
  result<void> begin(shared_placement next, uint32_t loads, uint32_t loads_per_step);
  /// As engine::flip, drop, placement.
  result<void> flip(placement_version version);
  result<void> drop(placement_version version);
  placement_status status() const;

  /// A new group with its first placement, of which `copies` experts are here; a move ends.
  void enter(shared_placement first, uint32_t copies, uint32_t ranks, uint32_t rank, uint64_t regroups);
  void leave();
  /// So many further experts are loaded.
  void loaded(uint32_t experts);
  /// What the header of the step that begins with number `step` says about the move.
  void announce(ep::step_header& header, uint64_t step) const;
  /// Whether the group takes the staged placement with step `step`. Errors: stale (it is not staged here).
  result<bool> flips_at(const ep::step_header& agreed, uint64_t step) const;
  /// It takes effect, with `copies` experts here.
  void take_effect(uint32_t copies);

  bool loading() const { return phase_ == move_phase::loading; }
  /// Experts of the move that are still to load, and how many of them in the next step.
  uint32_t missing() const { return to_load_ - loaded_; }
  uint32_t next_loads() const { return std::min(loads_per_step_, missing()); }
  uint32_t done_loads() const { return loaded_; }
  const shared_placement& active() const { return active_; }
  const shared_placement& next() const { return next_; }
  uint32_t ranks() const { return ranks_; }
  uint32_t rank() const { return rank_; }
  uint64_t regroups() const { return regroups_; }

 private:
  const model& model_;
  const uint32_t slots_;
  shared_placement active_, next_;
  uint32_t ranks_ = 0, rank_ = 0, copies_ = 0;
  uint64_t regroups_ = 0, flips_ = 0;
  move_phase phase_ = move_phase::none;
  uint32_t to_load_ = 0, loaded_ = 0, loads_per_step_ = 1;
};

}  // namespace troupe::kernels
