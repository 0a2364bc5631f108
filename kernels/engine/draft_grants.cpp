#include "kernels/engine/draft_grants.hpp"

#include <algorithm>

namespace troupe::kernels {

void draft_grants::offer(uint32_t item, std::span<const float> confidences) {
  float chance = 1;
  for (const float c : confidences) {
    chance *= c;
    offered_.push_back({chance, item});
  }
}

std::span<const uint32_t> draft_grants::choose(uint32_t budget) {
  if (budget < offered_.size())
    std::stable_sort(offered_.begin(), offered_.end(),
                     [](const draft& a, const draft& b) { return a.chance > b.chance; });
  chosen_.clear();
  for (size_t i = 0; i < offered_.size() && i < budget; ++i) chosen_.push_back(offered_[i].item);
  return chosen_;
}

}  // namespace troupe::kernels
