#include "kernels/measure/load.hpp"

#include <algorithm>

namespace troupe::kernels::measure {

std::vector<layer_load> summarise_loads(const std::vector<std::vector<uint64_t>>& loads) {
  std::vector<layer_load> out;
  for (const auto& layer : loads) {
    layer_load& l = out.emplace_back();
    for (uint64_t rows : layer) l.rows += rows;
    if (l.rows == 0) continue;
    const double mean = static_cast<double>(l.rows) / static_cast<double>(layer.size());
    l.max_over_mean = static_cast<double>(*std::max_element(layer.begin(), layer.end())) / mean;
    l.min_over_mean = static_cast<double>(*std::min_element(layer.begin(), layer.end())) / mean;
  }
  return out;
}

}  // namespace troupe::kernels::measure
