// Seeded expert loads for the tests and benchmarks of placement.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/base/rng.hpp"

namespace troupe::policies {

/// Standard normal.
inline double gaussian(rng& random) {
  double u = 1 - random.uniform(), v = random.uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

/// Zipf-like popularity of `experts` experts in random order, as rows of a window: 1 / (rank + 20)^0.8 with 10 % jitter.
/// The offset is what keeps the hottest expert of a trained router (load-balanced in training) at a few times the mean.
inline std::vector<double> zipf_load(rng& random, uint32_t experts) {
  std::vector<double> w;
  for (uint32_t i = 0; i < experts; ++i) w.push_back(std::floor(1e6 * std::pow(i + 20.0, -0.8) * std::exp(0.1 * gaussian(random))));
  for (uint32_t i = experts; i > 1; --i) std::swap(w[i - 1], w[random.below(i)]);
  return w;
}

}  // namespace troupe::policies
