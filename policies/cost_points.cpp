// What a cost model says about the points that it was fitted to.
#include <algorithm>
#include <array>
#include <cmath>

#include "policies/step_cost.hpp"
#include "policies/verify_lengths.hpp"

namespace troupe::policies {
namespace {

constexpr uint64_t ns_per_s = 1'000'000'000;

group_step step_of(const cost_point& p, std::span<const step_work> ranks, uint32_t drafts) {
  return {ranks, p.ep, p.slots, p.imbalance_permille, drafts};
}

// `rows` rows over the point's sequences, all at its context.
step_work decode_work(const cost_point& p, uint64_t rows) {
  step_work w;
  w.rows = w.decoder_rows = w.samples = static_cast<uint32_t>(rows);
  w.positions = w.decoder_positions = rows * p.context;
  w.sequences = p.sequences;
  w.drafting = p.drafts > 0 ? p.sequences : 0;
  w.context = uint64_t{p.sequences} * p.context;
  return w;
}

uint64_t decode_ns(const cost_model& m, const fabric& over, const cost_point& p, uint64_t rows) {
  const std::array<step_work, 1> one{decode_work(p, rows)};
  return cost_of_step(m.rates, over, step_of(p, one, p.drafts)).total_ns;
}

struct loop_result {
  uint64_t tokens = 0, verified = 0, ns = 0, steps = 0;
};

// Sequences that decode with drafts from the acceptance model: all drafts, or what policies/verify_lengths takes by the
// confidences of two steps before.
result<loop_result> run_loop(const cost_model& m, const fabric& over, const cost_point& p) {
  const uint32_t n = p.sequences, width = p.drafts;
  std::vector<step_cost_point> points;
  for (uint32_t i = 0; i <= 20; ++i) {
    const uint32_t rows = n + n * width * i / 20;
    if (points.empty() || rows > points.back().n)
      points.push_back({rows, static_cast<double>(decode_ns(m, over, p, rows))});
  }
  TROUPE_TRY(const step_cost_table table, make_step_cost_table(points, {}));
  std::vector<uint64_t> position(n, p.context);
  const auto confidences = [&] {
    confidence_rows c{width, {}, std::vector<uint32_t>(n, width)};
    for (uint32_t r = 0; r < n; ++r)
      for (uint32_t k = 0; k < width; ++k)
        c.value.push_back(static_cast<float>(accept_chance(m.acceptance, r + 1, position[r] + k)) / 1e6f);
    return c;
  };
  std::array<confidence_rows, 3> history;  // now, one and two steps before
  history.fill(confidences());
  survival_memory memory;
  loop_result out;
  const uint64_t warm = 64;
  for (uint64_t step = 0; step < warm + std::max<uint64_t>(256, 16'384 / n); ++step) {
    history[2] = std::move(history[1]);
    history[1] = std::move(history[0]);
    history[0] = confidences();
    uint32_t capacity = n * width;
    if (p.adaptive) {
      TROUPE_TRY(const auto plan, plan_verify_capacity(table, {history[2], 0, UINT32_MAX}, memory));
      capacity = plan.capacity;
    }
    TROUPE_TRY(const auto lengths, assign_verify_lengths(history[0], capacity));
    uint64_t verified = 0, tokens = 0;
    for (uint32_t r = 0; r < n; ++r) {
      uint32_t k = 0;
      while (k < lengths.lengths[r] && accepts(m.acceptance, r + 1, position[r] + k)) ++k;
      verified += lengths.lengths[r];
      tokens += k + 1;
      position[r] += k + 1;
    }
    if (step < warm) continue;
    ++out.steps;
    out.verified += verified;
    out.tokens += tokens;
    out.ns += decode_ns(m, over, p, n + verified);
  }
  return out;
}

}  // namespace

result<point_residual> check_point(const cost_model& m, const cost_point& p) {
  TROUPE_TRY(const fabric* over, find_fabric(m, p.fabric));
  point_residual out;
  if (p.value == 0) return fail(errc::invalid_argument, "point {}: value is 0", p.name);
  switch (p.kind) {
    case point_kind::prefill: {
      step_work w;
      add_rows(w, p.context, p.rows, 0, 0);
      const std::array<step_work, 1> one{w};
      out.step_ns = cost_of_step(m.rates, *over, step_of(p, one, 0)).total_ns;
      if (out.step_ns > 0) out.value = p.rows * ns_per_s / out.step_ns;
      break;
    }
    case point_kind::decode: {
      if (p.sequences == 0) return fail(errc::invalid_argument, "point {}: sequences is 0", p.name);
      if (p.tokens_milli > 0) {
        out.verified_milli = p.verified_milli;
        out.tokens_milli = p.tokens_milli;
        out.step_ns = decode_ns(m, *over, p, (uint64_t{p.sequences} * (1000 + p.verified_milli) + 500) / 1000);
        if (out.step_ns > 0) out.value = uint64_t{p.sequences} * p.tokens_milli * (ns_per_s / 1000) / out.step_ns;
        break;
      }
      if (p.drafts == 0) return fail(errc::invalid_argument, "point {}: neither tokens nor drafts", p.name);
      TROUPE_TRY(const loop_result l, run_loop(m, *over, p));
      out.verified_milli = static_cast<uint32_t>(l.verified * 1000 / (l.steps * p.sequences));
      out.tokens_milli = static_cast<uint32_t>(l.tokens * 1000 / (l.steps * p.sequences));
      out.step_ns = l.ns / l.steps;
      if (l.ns > 0) out.value = l.tokens * ns_per_s / l.ns;
      break;
    }
    case point_kind::dispatch:
    case point_kind::combine:
      out.step_ns = exchange_ns(*over, p.ep, uint64_t{p.rows} * p.top_k, p.row_bytes, p.kind == point_kind::combine);
      out.value = out.step_ns;
      break;
  }
  out.residual_permille =
      (static_cast<int64_t>(out.value) - static_cast<int64_t>(p.value)) * 1000 / static_cast<int64_t>(p.value);
  out.within = std::abs(out.residual_permille) <= static_cast<int64_t>(p.tolerance_permille);
  return out;
}

}  // namespace troupe::policies
