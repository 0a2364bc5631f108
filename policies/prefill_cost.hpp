// What a prefill chunk costs, and how large a chunk fits a step: the cost model of the prefill scheduler, its solution
// for a time budget, the agreement of a data-parallel group, and the fit of its coefficients. (How the rows of a step
// are shared among prompts is chunk.hpp.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// cost(q, c) = a q^2 + b q c + d q in nanoseconds, for q new tokens on top of c cached ones: attention inside the
/// chunk, attention to the prefix, linear work. Source: the prefill scheduler of DeepSeek's published deployment notes.
/// Coefficients are finite and >= 0.
struct prefill_cost {
  double a = 0, b = 0, d = 0;
  double operator()(double q, double c) const { return (a * q + b * c + d) * q; }
};

/// Input of plan_chunk_size.
struct chunk_size_input {
  uint64_t budget_ns = 0;  // time of the step
  uint64_t cached = 0;     // tokens before the chunk
  prefill_cost cost;
  uint32_t max_tokens = 32768;  // cap, whatever the budget
};

/// How many tokens the chunk has. 0 = not even one fits: the caller waits for a larger budget or runs one at its own
/// risk.
struct chunk_size_plan {
  uint32_t tokens = 0;
  double cost_ns = 0;  // of `tokens`
  std::string reason;
};

/// The largest q <= max_tokens with cost(q, cached) <= budget_ns: q = (-(bc+d) + sqrt((bc+d)^2 + 4a budget)) / 2a,
/// rounded down. Fails on negative or non-finite coefficients and on a cost of zero for every size.
result<chunk_size_plan> plan_chunk_size(const chunk_size_input& in);

/// What a data-parallel group agrees on.
struct group_budget_plan {
  uint64_t budget_ns = 0;
  size_t rank = 0;  // lowest rank that asked for it
  std::string reason;
};

/// The smallest budget of the group, so that no rank straggles (an all-reduce MIN each step). UINT64_MAX = no opinion.
/// Fails on an empty group.
result<group_budget_plan> plan_group_budget(std::span<const uint64_t> budgets_ns);

/// One measured step. Of several chunks q_i behind c_i tokens: tokens = sum of q_i, cached = sum of q_i c_i / tokens,
/// own = sum of q_i^2 / tokens; their costs add up, so that such a step determines the coefficients as well as one
/// chunk does.
struct cost_sample {
  double tokens = 0, cached = 0, time_ns = 0;
  double own = 0;  // 0: one chunk, so the same as `tokens`
};

/// The newest samples, at most `capacity`; older ones are overwritten.
struct cost_window {
  std::vector<cost_sample> samples;
  size_t next = 0;
  size_t capacity = 256;
};

/// Adds a sample. One that cannot be a measurement (tokens < 1, negative prefix, time not positive, own tokens not in
/// 0..tokens, not finite) is refused and changes nothing.
result<void> observe(cost_window& window, const cost_sample& sample);

/// Input of fit_prefill_cost. Coefficients that the samples do not determine (say, b when nothing was cached) are taken
/// from `prior`; without one the fit fails.
struct cost_fit_input {
  std::span<const cost_sample> samples;
  std::optional<prefill_cost> prior;
  double max_error = 0.25;  // largest acceptable median of |predicted - measured| / predicted
};

/// Fitted coefficients and how well they describe the samples.
struct cost_fit_plan {
  prefill_cost cost;
  size_t used = 0, outliers = 0;  // samples with and without weight in the end
  double median_error = 0;        // relative, over all samples
  std::string reason;
};

/// Robust least squares on relative errors: least absolute deviations first, then Tukey's biweight at 4.685 robust
/// standard deviations (MAD), with a, b, d >= 0 (all eight active sets are tried). Up to about 30 % of the samples may
/// be nonsense. Fails (errc::unavailable) with fewer than 8 samples, samples that do not determine the coefficients, or
/// a poor fit: keep the old coefficients then.
result<cost_fit_plan> fit_prefill_cost(const cost_fit_input& in);

}  // namespace troupe::policies
