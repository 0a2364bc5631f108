// The two placement algorithms on one layer; eplb.cpp checks the input and assembles the plan.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::policies::detail {

/// Where things go in one layer: `copy_rank[slot]` numbers the copies of an expert in the order of their creation.
struct published_layer {
  std::vector<int32_t> phy2log, copy_rank;
};

/// DeepSeek's published algorithm on valid shapes.
published_layer place_published(const std::vector<double>& weights, uint32_t slots, uint32_t groups, uint32_t nodes,
                                uint32_t gpus);

/// Ours without history: [slot] -> expert. Stops at a busiest load of `goal` or where nothing helps.
std::vector<int32_t> place_balanced(const std::vector<double>& weights, uint32_t slots, uint32_t gpus, double goal);

/// Makes a placement legal (no two copies of an expert on a GPU), then lowers its busiest load to `goal` by exchanges
/// that keep the number of copies of each expert.
std::vector<int32_t> repair_and_exchange(std::vector<int32_t> phy2log, const std::vector<double>& weights,
                                         uint32_t gpus, double goal);

/// For layers where the published numbers of copies do not allow a legal placement as good as `goal` (few experts):
/// tries other numbers, one copy given from one expert to another at a time, as long as that helps. Starts at a legal
/// placement and never returns a worse one. Work is bounded: large layers are returned as they are.
std::vector<int32_t> search_counts(std::vector<int32_t> phy2log, const std::vector<double>& weights, uint32_t gpus,
                                   double goal);

/// Ours from a present placement, loading at most `max_moves` copies; never returns a higher busiest load, except where
/// `current` itself had to be made legal.
std::vector<int32_t> improve_balanced(const std::vector<int32_t>& current, const std::vector<double>& weights,
                                      uint32_t gpus, double goal, uint32_t max_moves);

}  // namespace troupe::policies::detail
