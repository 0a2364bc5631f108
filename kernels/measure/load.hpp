// How evenly tokens spread over the experts of each layer.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::kernels::measure {

/// One layer's load over its experts, relative to the mean: 1 and 1 if all experts get the same.
struct layer_load {
  uint64_t rows = 0;  // routed rows, counted once per expert they go to
  double max_over_mean = 0, min_over_mean = 0;
};

/// Summary of `loads` [layer][expert]; a layer without rows gives zeros.
std::vector<layer_load> summarise_loads(const std::vector<std::vector<uint64_t>>& loads);

}  // namespace troupe::kernels::measure
