#include "policies/prefill_cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::policies {
namespace {

bool sane(const prefill_cost& c) {
  return std::isfinite(c.a) && std::isfinite(c.b) && std::isfinite(c.d) && c.a >= 0 && c.b >= 0 && c.d >= 0;
}

using vec3 = std::array<double, 3>;
using mat3 = std::array<vec3, 3>;

// Solves the symmetric system over the variables of `mask` by elimination with pivoting; nothing if it is singular.
std::optional<vec3> solve(mat3 m, vec3 y, unsigned mask) {
  for (int i = 0; i < 3; ++i) {
    if (mask >> i & 1) continue;
    for (int j = 0; j < 3; ++j) m[i][j] = m[j][i] = 0;
    m[i][i] = 1;
    y[i] = 0;
  }
  for (int k = 0; k < 3; ++k) {
    int p = k;
    for (int i = k + 1; i < 3; ++i) {
      if (std::abs(m[i][k]) > std::abs(m[p][k])) p = i;
    }
    if (std::abs(m[p][k]) < 1e-12) return {};
    std::swap(m[k], m[p]);
    std::swap(y[k], y[p]);
    for (int i = 0; i < 3; ++i) {
      if (i == k) continue;
      double f = m[i][k] / m[k][k];
      for (int j = k; j < 3; ++j) m[i][j] -= f * m[k][j];
      y[i] -= f * y[k];
    }
  }
  return vec3{y[0] / m[0][0], y[1] / m[1][1], y[2] / m[2][2]};
}

// Samples as rows x . v = y in scaled unknowns: x = (q^2, q c, q) / n (of several chunks: the sums) and y = time / n
// with n a guess of the true time, so that residuals are relative errors. n is never the measured time: a sample that
// is far too short would outweigh all others. Each column is divided by its root mean square, which makes the normal
// matrix a matrix of correlations.
struct problem {
  std::vector<vec3> x;
  std::vector<double> y;
  vec3 scale{1, 1, 1};
  vec3 prior{};      // scaled
  double ridge = 0;  // weight of the prior per unknown, relative to the samples
};

double residual(const problem& p, const vec3& v, size_t i) {
  return p.x[i][0] * v[0] + p.x[i][1] * v[1] + p.x[i][2] * v[2] - p.y[i];
}

// Weighted least squares with v >= 0: three unknowns, so every set of positive ones is tried.
std::optional<vec3> nonnegative(const problem& p, const std::vector<double>& weight) {
  mat3 m{};
  vec3 y{};
  double total = 0;
  for (size_t i = 0; i < p.x.size(); ++i) {
    total += weight[i];
    for (int r = 0; r < 3; ++r) {
      y[r] += weight[i] * p.x[i][r] * p.y[i];
      for (int c = 0; c < 3; ++c) m[r][c] += weight[i] * p.x[i][r] * p.x[i][c];
    }
  }
  if (!(total > 0)) return {};
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) m[r][c] /= total;
    y[r] = y[r] / total + p.ridge * p.prior[r];
    m[r][r] += p.ridge;
  }
  std::optional<vec3> best;
  double best_value = 0;
  for (unsigned mask = 1; mask < 8; ++mask) {
    auto v = solve(m, y, mask);
    if (!v || (*v)[0] < 0 || (*v)[1] < 0 || (*v)[2] < 0) continue;
    double value = 0;  // of the quadratic, without its constant
    for (int r = 0; r < 3; ++r) {
      value -= 2 * y[r] * (*v)[r];
      for (int c = 0; c < 3; ++c) value += (*v)[r] * m[r][c] * (*v)[c];
    }
    if (!best || value < best_value) best = v, best_value = value;
  }
  return best;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// True if the weighted samples determine all three unknowns: the determinant of the (unit diagonal) normal matrix is
// the volume that the columns span, and falls to zero as one of them becomes a combination of the others.
bool determined(const problem& p) {
  mat3 m{};
  for (const auto& x : p.x) {
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) m[r][c] += x[r] * x[c] / static_cast<double>(p.x.size());
    }
  }
  double det = m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
               m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
  return det > 1e-5;
}

}  // namespace

result<chunk_size_plan> plan_chunk_size(const chunk_size_input& in) {
  if (!sane(in.cost)) {
    return fail(errc::invalid_argument, "chunk: coefficients a={} b={} d={} must be finite and >= 0", in.cost.a,
                in.cost.b, in.cost.d);
  }
  const double budget = static_cast<double>(in.budget_ns), cached = static_cast<double>(in.cached);
  const double linear = in.cost.b * cached + in.cost.d;
  if (linear == 0 && in.cost.a == 0)
    return fail(errc::invalid_argument, "chunk: the cost model says that every chunk is free; fit it first");
  // The stable form of the root: no cancellation for small a, and right for a = 0.
  const double denominator = linear + std::sqrt(linear * linear + 4 * in.cost.a * budget);
  double q = denominator > 0 ? std::floor(2 * budget / denominator) : 0;
  chunk_size_plan plan;
  if (q >= in.max_tokens && in.cost(in.max_tokens, cached) <= budget) {
    plan.tokens = in.max_tokens;
    plan.cost_ns = in.cost(in.max_tokens, cached);
    plan.reason = fmt::format("the cap of {} tokens: they take {:.3f} of {:.3f} ms", in.max_tokens, plan.cost_ns / 1e6,
                              budget / 1e6);
    return plan;
  }
  q = std::min<double>(q, in.max_tokens);
  while (q > 0 && in.cost(q, cached) > budget) --q;  // rounding of the root, at most a step or two
  while (q < in.max_tokens && in.cost(q + 1, cached) <= budget) ++q;
  plan.tokens = static_cast<uint32_t>(q);
  plan.cost_ns = in.cost(q, cached);
  if (plan.tokens == 0) {
    plan.reason = in.max_tokens == 0
                      ? "no tokens are left to run"
                      : fmt::format("one token after {} cached ones takes {:.3f} ms, more than the budget of {:.3f} ms",
                                    in.cached, in.cost(1, cached) / 1e6, budget / 1e6);
  } else {
    plan.reason = fmt::format("{} tokens after {} cached ones fill {:.3f} of {:.3f} ms", plan.tokens, in.cached,
                              plan.cost_ns / 1e6, budget / 1e6);
  }
  return plan;
}

result<group_budget_plan> plan_group_budget(std::span<const uint64_t> budgets_ns) {
  if (budgets_ns.empty()) return fail(errc::invalid_argument, "group budget: the group has no ranks");
  auto least = std::min_element(budgets_ns.begin(), budgets_ns.end());
  group_budget_plan plan{*least, static_cast<size_t>(least - budgets_ns.begin()), {}};
  plan.reason = *least == UINT64_MAX ? "no rank limits the step"
                                     : fmt::format("rank {} asks for the smallest of {} budgets, {:.3f} ms", plan.rank,
                                                   budgets_ns.size(), static_cast<double>(*least) / 1e6);
  return plan;
}

result<void> observe(cost_window& window, const cost_sample& s) {
  bool finite = std::isfinite(s.tokens) && std::isfinite(s.cached) && std::isfinite(s.time_ns);
  if (!finite || s.tokens < 1 || s.cached < 0 || s.time_ns <= 0 || !(s.own >= 0 && s.own <= s.tokens)) {
    return fail(errc::invalid_argument, "cost sample: {} tokens after {} cached ones in {} ns is no measurement",
                s.tokens, s.cached, s.time_ns);
  }
  if (window.capacity == 0) return fail(errc::invalid_argument, "cost window: its capacity is 0");
  if (window.samples.size() < window.capacity) {
    window.samples.push_back(s);
  } else {
    window.samples[window.next % window.samples.size()] = s;
  }
  window.next = (window.next + 1) % window.capacity;
  return {};
}

result<cost_fit_plan> fit_prefill_cost(const cost_fit_input& in) {
  constexpr size_t fewest = 8;
  if (in.samples.size() < fewest)
    return fail(errc::unavailable, "cost fit: {} samples, need {}", in.samples.size(), fewest);
  if (in.prior && !sane(*in.prior))
    return fail(errc::invalid_argument, "cost fit: the prior coefficients must be finite and >= 0");
  problem p;
  std::vector<double> per_token;
  for (const auto& s : in.samples) {
    cost_window one;
    if (auto ok = observe(one, s); !ok) return fail(ok.error());
    per_token.push_back(s.time_ns / s.tokens);
  }
  const double typical = median(per_token);
  vec3 square{};
  for (const auto& s : in.samples) {
    const vec3& x = p.x.emplace_back(vec3{(s.own > 0 ? s.own : s.tokens) / typical, s.cached / typical, 1 / typical});
    p.y.push_back(s.time_ns / (s.tokens * typical));
    for (int k = 0; k < 3; ++k) square[k] += x[k] * x[k];
  }
  for (int k = 0; k < 3; ++k) p.scale[k] = square[k] > 0 ? std::sqrt(square[k] / static_cast<double>(p.x.size())) : 1;
  for (auto& x : p.x) {
    for (int k = 0; k < 3; ++k) x[k] /= p.scale[k];
  }
  bool whole = determined(p);
  if (!whole && !in.prior) {
    return fail(errc::unavailable,
                "cost fit: chunk sizes and cached prefixes of {} samples vary too little to tell a, b and d apart",
                p.x.size());
  }
  if (in.prior) {
    p.ridge = whole ? 0 : 1e-6;  // decides only what the samples leave open
    p.prior = {in.prior->a * p.scale[0], in.prior->b * p.scale[1], in.prior->d * p.scale[2]};
  }

  std::vector<double> weight(p.x.size(), 1.0), error(p.x.size());
  std::optional<vec3> v;
  for (int round = 0; round < 60; ++round) {  // 40 rounds of least absolute deviations, then 20 of the biweight
    v = nonnegative(p, weight);
    if (!v) return fail(errc::unavailable, "cost fit: no non-negative coefficients describe the samples");
    if (round == 10 || round == 25 || round == 40) {  // the guess of the true times is now the prediction
      for (size_t i = 0; i < error.size(); ++i) {
        double by = std::max(residual(p, *v, i) + p.y[i], 1e-9);
        for (double& x : p.x[i]) x /= by;
        p.y[i] /= by;
      }
    }
    for (size_t i = 0; i < error.size(); ++i) error[i] = std::abs(residual(p, *v, i));
    if (round < 40) {
      for (size_t i = 0; i < error.size(); ++i) weight[i] = 1 / std::max(error[i], 1e-4);
    } else {
      double cut = 4.685 * std::max(1.4826 * median(error), 1e-6);
      for (size_t i = 0; i < error.size(); ++i) {
        double u = error[i] / cut;
        weight[i] = u < 1 ? (1 - u * u) * (1 - u * u) : 0;
      }
    }
  }
  cost_fit_plan plan;
  plan.cost = {(*v)[0] / p.scale[0], (*v)[1] / p.scale[1], (*v)[2] / p.scale[2]};
  plan.median_error = median(error);
  for (double w : weight) ++(w > 0 ? plan.used : plan.outliers);
  if (!sane(plan.cost) || plan.median_error > in.max_error) {
    return fail(errc::unavailable,
                "cost fit: the model misses half of the samples by {:.0f} % or more (limit {:.0f} %)",
                100 * plan.median_error, 100 * in.max_error);
  }
  if (plan.cost.a == 0 && plan.cost.b == 0 && plan.cost.d == 0)
    return fail(errc::unavailable, "cost fit: every coefficient came out as 0");
  plan.reason = fmt::format("{} samples, {} set aside as outliers, median error {:.2f} %{}", plan.used, plan.outliers,
                            100 * plan.median_error, whole ? "" : "; what they leave open is from the prior");
  return plan;
}

}  // namespace troupe::policies
