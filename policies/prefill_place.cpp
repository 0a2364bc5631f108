#include "policies/prefill_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::policies {

prefill_work work_of(const prefill_cost& cost, uint32_t chunk_tokens, uint32_t fresh, uint32_t cached) {
  const double m = chunk_tokens, c = cached;
  const double n = std::floor(fresh / m), rest = fresh - n * m;
  // Full chunk i stands behind c + i m tokens, the last one behind c + n m.
  const double full = n * (cost.a * m * m + cost.b * m * c) + cost.b * m * m * n * (n - 1) / 2;
  return {full + cost.a * rest * rest + cost.b * rest * (c + n * m), cost.d * fresh};
}

prefill_work within_horizon(const prefill_work& work, double horizon_ns) {
  const double total = work.total(), factor = total > horizon_ns ? horizon_ns / total : 1;
  return {work.attention_ns * factor, work.linear_ns * factor};
}

uint8_t tier_of(const std::vector<uint32_t>& tiers, uint32_t new_tokens) {
  return static_cast<uint8_t>(std::lower_bound(tiers.begin(), tiers.end(), new_tokens) - tiers.begin());
}

result<prefill_place_plan> place_prefill(const prefill_place_input& in) {
  const auto bad = [](double v) { return !(v >= 0) || !std::isfinite(v); };
  if (bad(in.cost.a) || bad(in.cost.b) || bad(in.cost.d) || in.chunk_tokens == 0)
    return fail(errc::invalid_argument,
                "cost: a {}, b {}, d {}, chunk_tokens {}; all finite, not negative, chunk_tokens > 0", in.cost.a,
                in.cost.b, in.cost.d, in.chunk_tokens);
  if (bad(in.isolation_ns) || bad(in.kind_weight))
    return fail(errc::invalid_argument, "isolation_ns {} or kind_weight {}: negative or not finite", in.isolation_ns,
                in.kind_weight);
  if (!(in.horizon_ns > 0) || !std::isfinite(in.horizon_ns))
    return fail(errc::invalid_argument, "horizon_ns {}: about one step's time budget is expected", in.horizon_ns);
  if (in.tiers.size() > 250 ||
      std::adjacent_find(in.tiers.begin(), in.tiers.end(), std::greater_equal<>()) != in.tiers.end())
    return fail(errc::invalid_argument, "tiers: {} bounds, expected at most 250, ascending", in.tiers.size());

  prefill_place_plan out;
  out.work = within_horizon(work_of(in.cost, in.chunk_tokens, in.new_tokens, in.cached_tokens), in.horizon_ns);
  out.tier = tier_of(in.tiers, in.new_tokens);
  const double total = out.work.total();
  const double by_attention = total > 0 ? in.kind_weight * out.work.attention_ns / total : 0;
  const double by_linear = in.kind_weight - by_attention;
  size_t usable = 0, open = 0;
  double best = 0;
  for (size_t i = 0; i < in.ranks.size(); ++i) {
    const auto& r = in.ranks[i];
    if (!r.usable) continue;
    ++usable;
    if (r.waiting >= r.limit) continue;
    if (bad(r.attention_ns) || bad(r.linear_ns))
      return fail(errc::invalid_argument, "ranks[{}]: attention_ns {}, linear_ns {}", i, r.attention_ns, r.linear_ns);
    const double apart = r.longest_tier > out.tier ? in.isolation_ns * (r.longest_tier - out.tier) : 0;
    const double score = r.attention_ns * (1 + by_attention) + r.linear_ns * (1 + by_linear) + apart;
    if (open++ == 0 || score < best) {
      best = score;
      out.choice = i;
    }
  }
  out.score_ns = best;
  out.full = usable > 0 && open == 0;
  if (out.choice == SIZE_MAX)
    out.reason = usable == 0 ? fmt::format("none of {} ranks usable", in.ranks.size())
                             : fmt::format("all {} usable ranks full", usable);
  else
    out.reason =
        fmt::format("rank {} of {} open: tier {}, {:.0f} us of work behind {:.0f} us", out.choice, open, out.tier,
                    total / 1e3, (in.ranks[out.choice].attention_ns + in.ranks[out.choice].linear_ns) / 1e3);
  return out;
}

}  // namespace troupe::policies
