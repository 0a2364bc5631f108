#include "kernels/engine/cost_experts.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::kernels {
namespace {

constexpr uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint32_t unit = 1u << 20;  // weight of an expert without others before it

}  // namespace

expert_use::expert_use(const expert_shape& shape, const policies::expert_skew& skew, uint64_t seed, uint64_t drift)
    : shape_(shape), weight_(size_t{shape.layers} * shape.experts), sum_(shape.layers) {
  std::vector<uint64_t> key(shape.experts);
  std::vector<uint32_t> order(shape.experts);
  for (uint32_t l = 0; l < shape.layers; ++l) {
    // An expert's place is by its key; a quarter of the experts get a new one with every drift.
    for (uint32_t e = 0; e < shape.experts; ++e) {
      const uint64_t own = mix(mix(seed ^ (uint64_t{l} << 32)) + e + 1);
      key[e] = mix(own + (drift + own % 4) / 4);
    }
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return key[a] != key[b] ? key[a] < key[b] : a < b; });
    for (uint32_t i = 0; i < shape.experts; ++i) {
      const uint32_t w = skew.flatness == 0 ? unit : std::max(1u, unit / (i + skew.flatness));
      weight_[size_t{l} * shape.experts + order[i]] = w;
      sum_[l] += w;
    }
  }
}

void expert_use::add(uint32_t layer, uint64_t rows, std::vector<uint64_t>& loads) const {
  loads.resize(shape_.experts);
  if (layer >= shape_.layers || sum_[layer] == 0) return;
  // Differences of rounded running sums, so that the total is exact. The whole and the rest of rows * top_k / sum
  // apart: the product of three numbers would not fit.
  const uint64_t pairs = rows * shape_.top_k, whole = pairs / sum_[layer], rest = pairs % sum_[layer];
  uint64_t running = 0, before = 0;
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    running += weight_[size_t{layer} * shape_.experts + e];
    const uint64_t now = whole * running + rest * running / sum_[layer];
    loads[e] += now - before;
    before = now;
  }
}

uint32_t expert_use::share(const ep::placement& places, uint32_t layer, uint32_t rank) const {
  if (layer >= shape_.layers || layer >= places.copies.size() || sum_[layer] == 0) return 0;
  uint64_t here = 0;
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    const auto& copies = places.copies[layer][e];
    if (std::binary_search(copies.begin(), copies.end(), rank))
      here += weight_[size_t{layer} * shape_.experts + e] / copies.size();
  }
  return static_cast<uint32_t>(here * 1'000'000 / sum_[layer]);
}

uint32_t expert_use::imbalance_permille(const ep::placement& places, uint32_t ranks) const {
  if (ranks <= 1 || shape_.layers == 0) return 1000;
  std::vector<uint64_t> load(ranks);
  uint64_t total = 0;
  for (uint32_t l = 0; l < shape_.layers && l < places.copies.size(); ++l) {
    std::fill(load.begin(), load.end(), 0);
    for (uint32_t e = 0; e < shape_.experts; ++e) {
      const auto& copies = places.copies[l][e];
      for (uint32_t r : copies)
        if (r < ranks) load[r] += weight_[size_t{l} * shape_.experts + e] / copies.size();
    }
    total += *std::max_element(load.begin(), load.end()) * ranks * 1000 / std::max<uint64_t>(sum_[l], 1);
  }
  return std::max(1000u, static_cast<uint32_t>(total / shape_.layers));
}

}  // namespace troupe::kernels
