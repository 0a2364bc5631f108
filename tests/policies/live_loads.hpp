// A seeded generator of live expert loads: what routers send per step, against which a placement made from the past is
// judged.
#pragma once

#include <algorithm>
#include <random>

#include "tests/policies/loads.hpp"

namespace troupe::policies {

/// Requests differ: request r picks expert e of a layer with probability proportional to p_e exp(drift * N(0,1)), fixed
/// for the request. p itself is a Zipf-like popularity to the power `skew`, and wanders by exp(wander * N(0,1)) per
/// expert from the window that a placement is made from to the steps that it serves. A step routes rows of `requests`
/// requests, equally many each, and the counts are drawn from the multinomial distribution (exactly, binomial by
/// binomial).
struct live_model {
  double skew = 1, drift = 1, wander = 0.05;
  uint32_t experts = 384;
};

/// One kind of step.
struct live_step {
  uint32_t requests = 0;
  uint64_t picks = 0;     // rows x experts per row
  bool persists = false;  // the same requests in every step (decode), not new ones (prefill)
};

/// Popularity of one layer in its window and after it has wandered.
struct live_layer {
  std::vector<double> window, now;
};

/// What std::binomial_distribution wants.
struct rng_bits {
  using result_type = uint64_t;
  rng& random;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return UINT64_MAX; }
  uint64_t operator()() { return random.next(); }
};

inline void normalise(std::vector<double>& p) {
  double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
}

inline live_layer make_live_layer(rng& random, const live_model& m) {
  live_layer out{zipf_load(random, m.experts), {}};
  for (double& x : out.window) x = std::pow(x, m.skew);
  out.now = out.window;
  for (double& x : out.now) x *= std::exp(m.wander * gaussian(random));
  normalise(out.window);
  normalise(out.now);
  return out;
}

/// What the requests of a step ask for together. Up to 64 requests are drawn one by one; beyond, the mean of their
/// factors is drawn from its normal limit, which has the same mean and variance.
inline std::vector<double> draw_mix(rng& random, const live_model& m, const std::vector<double>& popularity,
                                    const live_step& step) {
  const double mean = std::exp(m.drift * m.drift / 2), variance = (std::exp(m.drift * m.drift) - 1) * mean * mean;
  std::vector<double> p(m.experts, 0.0);
  if (step.requests <= 64) {
    for (uint32_t r = 0; r < step.requests; ++r) {
      std::vector<double> one(m.experts);
      for (uint32_t e = 0; e < m.experts; ++e) one[e] = popularity[e] * std::exp(m.drift * gaussian(random));
      normalise(one);
      for (uint32_t e = 0; e < m.experts; ++e) p[e] += one[e];
    }
  } else {
    for (uint32_t e = 0; e < m.experts; ++e) {
      p[e] = popularity[e] * std::max(0.0, mean + std::sqrt(variance / step.requests) * gaussian(random));
    }
  }
  normalise(p);
  return p;
}

/// Counts per expert of one step of that mix.
inline std::vector<double> draw_counts(rng& random, const live_model& m, const std::vector<double>& p,
                                       const live_step& step) {
  std::vector<double> counts(m.experts);
  rng_bits bits{random};
  uint64_t left = step.picks;
  double mass = 1;
  for (uint32_t e = 0; e < m.experts && left > 0; ++e) {
    double q = e + 1 == m.experts ? 1 : std::clamp(p[e] / mass, 0.0, 1.0);
    auto n = std::binomial_distribution<uint64_t>(left, q)(bits);
    counts[e] = static_cast<double>(n);
    left -= n;
    mass = std::max(mass - p[e], 1e-300);
  }
  return counts;
}

}  // namespace troupe::policies
