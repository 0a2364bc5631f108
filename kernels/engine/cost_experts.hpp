// Which experts the rows of a cost engine would have been routed to: an uneven use of experts that is the same for
// everybody with the same seed, so that placements can be planned from it and matter.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ep/ep.hpp"
#include "policies/step_cost.hpp"

namespace troupe::kernels {

/// The experts of a model: backbone layers, of which the first `encoder_layers` run on all rows, then draft blocks.
struct expert_shape {
  uint32_t layers = 0, encoder_layers = 0, experts = 0, top_k = 0;
  uint32_t draft_layers = 0, draft_experts = 0, draft_top_k = 0;
  bool operator==(const expert_shape&) const = default;
};

/// How much each expert of the backbone is used, in parts of a layer's sum. Pure: a function of its arguments.
class expert_use {
 public:
  /// `drift` counts the changes so far (see policies::expert_skew): each moves a part of the experts up and down.
  expert_use(const expert_shape& shape, const policies::expert_skew& skew, uint64_t seed, uint64_t drift);

  /// Adds what `rows` rows of `layer` have routed to each expert: sums up to rows * top_k.
  void add(uint32_t layer, uint64_t rows, std::vector<uint64_t>& loads) const;
  /// (row, expert) pairs of the busiest rank over the mean, in thousandths, averaged over the layers; copies of an
  /// expert share its rows evenly.
  uint32_t imbalance_permille(const ep::placement& places, uint32_t ranks) const;
  /// Part of a layer's pairs that comes to `rank`, in millionths.
  uint32_t share(const ep::placement& places, uint32_t layer, uint32_t rank) const;

 private:
  expert_shape shape_;
  std::vector<uint32_t> weight_;  // [layer][expert]
  std::vector<uint64_t> sum_;     // per layer
};

}  // namespace troupe::kernels
