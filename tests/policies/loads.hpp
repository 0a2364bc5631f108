// Seeded expert loads for the tests and benchmarks of placement.
#pragma once

#include <sys/resource.h>

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

/// Zipf-like popularity of `experts` experts in random order, as rows of a window: 1 / (rank + 20) with 30 % jitter.
/// The offset keeps the hottest expert at a few times the mean, as in a router that was trained for balance.
inline std::vector<double> zipf_load(rng& random, uint32_t experts) {
  std::vector<double> w;
  for (uint32_t i = 0; i < experts; ++i)
    w.push_back(std::floor(1e6 * 1 / (i + 20.0) * std::exp(0.3 * gaussian(random))));
  for (uint32_t i = experts; i > 1; --i) std::swap(w[i - 1], w[random.below(i)]);
  return w;
}

/// CPU time of the calling thread in milliseconds: what a figure "on one core" means on a machine that others use as
/// well.
inline double thread_cpu_ms() {
  rusage u{};
  getrusage(RUSAGE_THREAD, &u);
  auto ms = [](const timeval& t) {
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
  };
  return ms(u.ru_utime) + ms(u.ru_stime);
}

}  // namespace troupe::policies
