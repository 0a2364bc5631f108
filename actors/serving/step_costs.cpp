#include "actors/serving/step_costs.hpp"

#include <algorithm>

#include "policies/prefill_place.hpp"

namespace troupe::actors {
namespace {

constexpr uint32_t fit_every = 16;  // samples

}  // namespace

std::string step_costs::observe(std::span<const prompt_rows> prompts, bool decodes, int64_t time_ns) {
  if (prompts.empty()) {
    const auto t = static_cast<double>(time_ns);
    if (decodes && t > 0) decode_ns_ = decode_ns_ == 0 ? t : decode_ns_ + (t - decode_ns_) / 16;
    return {};
  }
  if (decodes) return {};  // what of it the prompts took is not known
  double rows = 0, squares = 0, products = 0;
  for (const auto& p : prompts) {
    rows += p.rows;
    squares += double(p.rows) * p.rows;
    products += double(p.rows) * p.before;
  }
  if (!policies::observe(window_, {rows, products / rows, static_cast<double>(time_ns), squares / rows})) return {};
  if (++fresh_ < fit_every) return {};
  fresh_ = 0;
  auto fit = policies::fit_prefill_cost({window_.samples, cost_.value_or(policies::prefill_place_input{}.cost)});
  if (!fit) return fit.error().message;
  cost_ = fit->cost;
  return fmt::format("cost model: a {:.3g}, b {:.3g}, d {:.3g} ns; {}", fit->cost.a, fit->cost.b, fit->cost.d,
                     fit->reason);
}

uint32_t step_costs::rows_within(int64_t budget_ns, uint32_t before, bool decodes, uint32_t least,
                                 uint32_t most) const {
  if (budget_ns <= 0 || !cost_) return most;
  const auto budget = static_cast<double>(budget_ns);
  const double left = decodes ? std::max(budget - decode_ns_, budget / 4) : budget;
  const auto plan = policies::plan_chunk_size({static_cast<uint64_t>(left), before, *cost_, most});
  return plan ? std::max(std::min(least, most), plan->tokens) : most;
}

}  // namespace troupe::actors
