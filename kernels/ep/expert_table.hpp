// A placement as one rank uses it in its steps: to which copy of an expert a row goes, which experts are here, and how
// many rows the whole group sends to each expert. Made when a placement takes effect; nothing in a step allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ep/ep.hpp"
#include "policies/copy_split.hpp"

namespace troupe::kernels::ep {

/// Thread rules: one thread at a time, the one that runs the steps.
class expert_table {
 public:
  expert_table() = default;
  /// `places` names a rank for every expert, and none beyond `ranks`; `rank` is this one.
  expert_table(placement places, uint32_t ranks, uint32_t rank, split_options split = {});

  const placement& places() const { return places_; }
  placement_version version() const { return places_.version; }
  /// Whether this rank holds a copy.
  bool holds(uint32_t layer, uint32_t expert) const { return layers_[layer].here[expert] >= 0; }
  /// Copies on this rank in the first `layers` layers.
  uint32_t copies_here(uint32_t layers) const;

  /// The rank that gets a row of this rank.
  uint32_t choose(uint32_t layer, uint32_t expert, uint32_t position);

  /// Counts what came for this rank's experts and returns the numbers that the other ranks want to know with the
  /// combine: none where no expert of the layer has two copies or nobody uses them. Every expert must be here.
  std::span<const uint32_t> count(uint32_t layer, std::span<const received::item> items);
  /// Adds up what the ranks of the group said with the combine of `layer` of a micro-batch.
  void learn(uint32_t layer, const group& from, uint32_t micro = 0);
  /// The step is done: every `window` steps the rows counted since decide the split.
  void end_step();

  /// Part of the rows of an expert that a rank is meant to get: for tests and for people.
  double share(uint32_t layer, uint32_t expert, uint32_t rank) const;

 private:
  struct layer_state {
    std::vector<int32_t> here;  // expert -> its number among this rank's, or -1
    // Where some expert has several copies and the split follows counts:
    bool split = false;
    policies::copy_table copies;
    std::vector<float> share, credit;        // per copy
    std::vector<double> rows;                // per expert, of the group, since the last plan
    std::vector<uint32_t> first_held, held;  // experts of each rank, ascending: rank r has [first_held[r], [r + 1])
    std::vector<uint32_t> counted;           // per expert of this rank
  };

  placement places_;
  uint32_t rank_ = 0, ranks_ = 0;
  split_options split_;
  uint32_t steps_ = 0;  // since the last plan
  std::vector<layer_state> layers_;
};

/// Slots of a group's ranks in one layer, rank-major: rank r of R has [r, r + 1) * size / R; [slot] -> logical expert.
using slot_list = std::vector<int32_t>;

/// `per_rank` slots (at most `experts`, and enough for all of them) on each rank: the rank's contiguous block of
/// experts, then the ones that follow it, each at most once a rank.
slot_list first_slots(uint32_t ranks, uint32_t experts, uint32_t per_rank);

/// [expert] -> ranks, ascending. An expert in two slots of a rank counts once. invalid_argument for an expert out of
/// range or without a slot, and for slots that do not divide among the ranks.
result<std::vector<std::vector<uint32_t>>> copies_of(const slot_list& slots, uint32_t ranks, uint32_t experts);

/// The other way; experts of a rank ascending. Empty where the ranks do not hold equally many.
slot_list slots_of(const std::vector<std::vector<uint32_t>>& copies, uint32_t ranks);

}  // namespace troupe::kernels::ep
