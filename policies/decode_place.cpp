#include "policies/decode_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace troupe::policies {
namespace {

constexpr uint64_t too_many = uint64_t{1} << 62;  // sums of three stay below 2^64

result<void> check_cost(const decode_cost& c) {
  const auto bad = [](double v) { return !(v >= 0) || !std::isfinite(v); };
  if (bad(c.request_ns) || bad(c.kv_token_ns))
    return fail(errc::invalid_argument, "cost: request_ns {}, kv_token_ns {}; finite and not negative", c.request_ns,
                c.kv_token_ns);
  return {};
}

}  // namespace

result<decode_place_plan> place_decode(const decode_place_input& in) {
  if (auto r = check_cost(in.cost); !r) return fail(r.error());
  if (!(in.kind_weight >= 0) || !std::isfinite(in.kind_weight))
    return fail(errc::invalid_argument, "kind_weight {}: negative or not finite", in.kind_weight);
  if (in.kv_tokens >= too_many || in.growth_tokens >= too_many)
    return fail(errc::invalid_argument, "kv_tokens {} or growth_tokens {}: 2^62 or more", in.kv_tokens,
                in.growth_tokens);

  const double kv_part = in.cost.kv_token_ns * double(in.kv_tokens + in.growth_tokens);
  const double sum = kv_part + in.cost.request_ns;
  const double by_kv = sum > 0 ? in.kind_weight * kv_part / sum : 0;
  const double request_factor = in.cost.request_ns * (1 + in.kind_weight - by_kv),
               kv_factor = in.cost.kv_token_ns * (1 + by_kv);
  decode_place_plan out;
  size_t usable = 0, open = 0;
  for (size_t i = 0; i < in.ranks.size(); ++i) {
    const auto& r = in.ranks[i];
    if (!r.usable) continue;
    ++usable;
    if (r.kv_tokens >= too_many || r.growth_tokens >= too_many)
      return fail(errc::invalid_argument, "ranks[{}]: kv_tokens {}, growth_tokens {}", i, r.kv_tokens, r.growth_tokens);
    if (r.requests >= r.slots || r.kv_tokens + in.kv_tokens > r.capacity_tokens) continue;
    ++open;
    const uint64_t later = r.kv_tokens + r.growth_tokens;
    // later < 2^63, the request's tokens < 2^63: the sum cannot wrap.
    const bool tight =
        later + in.kv_tokens > r.capacity_tokens || in.growth_tokens > r.capacity_tokens - later - in.kv_tokens;
    const double score = request_factor * r.requests + kv_factor * double(later);
    if (out.choice == SIZE_MAX || (out.tight && !tight) || (out.tight == tight && score < out.score_ns)) {
      out.choice = i;
      out.score_ns = score;
      out.tight = tight;
    }
  }
  out.full = usable > 0 && open == 0;
  if (out.choice == SIZE_MAX) {
    out.reason = usable == 0
                     ? fmt::format("none of {} ranks usable", in.ranks.size())
                     : fmt::format("none of {} usable ranks has a slot and room for {} tokens", usable, in.kv_tokens);
  } else {
    const auto& r = in.ranks[out.choice];
    out.reason = fmt::format("rank {} of {} open: {} requests, {} tokens, {} expected{}", out.choice, open, r.requests,
                             r.kv_tokens, r.growth_tokens, out.tight ? ", tight" : "");
  }
  return out;
}

result<decode_rebalance_plan> rebalance_decode(const decode_rebalance_input& in) {
  if (auto r = check_cost(in.cost); !r) return fail(r.error());
  if (!(in.tolerance >= 0) || !std::isfinite(in.tolerance))
    return fail(errc::invalid_argument, "tolerance {}: negative or not finite", in.tolerance);
  struct state {
    size_t index;
    double load = 0;
    uint64_t kv = 0;
    std::vector<movable_request> requests;
  };
  std::vector<state> ranks;
  double total = 0;
  const auto price = [&](const movable_request& q) {
    return in.cost.request_ns + in.cost.kv_token_ns * double(q.kv_tokens);
  };
  for (size_t i = 0; i < in.ranks.size(); ++i) {
    if (!in.ranks[i].usable) continue;
    auto& s = ranks.emplace_back();
    s.index = i;
    s.requests = in.ranks[i].requests;
    for (const auto& q : s.requests) {
      if (q.kv_tokens >= too_many || s.kv >= too_many)
        return fail(errc::invalid_argument, "ranks[{}]: {} or more KV tokens", i, too_many);
      s.load += price(q);
      s.kv += q.kv_tokens;
    }
    total += s.load;
  }
  decode_rebalance_plan out;
  if (ranks.size() < 2 || !(total > 0)) {
    out.reason = ranks.size() < 2 ? "fewer than two usable ranks" : "no load";
    return out;
  }
  const double mean = total / double(ranks.size());
  const auto by_load = [](const state& a, const state& b) { return a.load < b.load; };
  const auto busiest = [&] { return std::max_element(ranks.begin(), ranks.end(), by_load); };
  out.imbalance_before = out.imbalance_after = busiest()->load / mean;
  std::unordered_set<uint64_t> moved;
  const char* stop = "limit of moves";
  while (out.moves.size() < in.max_moves) {
    auto from = busiest(), to = std::min_element(ranks.begin(), ranks.end(), by_load);
    if (from->load / mean - 1 <= in.tolerance) {
      stop = "within tolerance";
      break;
    }
    const auto& limits = in.ranks[to->index];
    size_t best = SIZE_MAX;
    double best_peak = from->load - mean / 100;
    for (size_t k = 0; k < from->requests.size(); ++k) {
      const auto& q = from->requests[k];
      if (moved.contains(q.id) || to->requests.size() >= limits.slots || to->kv + q.kv_tokens > limits.capacity_tokens)
        continue;
      const double peak = std::max(from->load - price(q), to->load + price(q));
      if (peak < best_peak) {
        best_peak = peak;
        best = k;
      }
    }
    if (best == SIZE_MAX) {
      stop = "no move pays";
      break;
    }
    const movable_request q = from->requests[best];
    from->requests.erase(from->requests.begin() + static_cast<std::ptrdiff_t>(best));
    to->requests.push_back(q);
    from->load -= price(q), to->load += price(q);
    from->kv -= q.kv_tokens, to->kv += q.kv_tokens;
    moved.insert(q.id);
    out.moves.push_back({q.id, from->index, to->index});
  }
  out.imbalance_after = busiest()->load / mean;
  out.reason = fmt::format("{} moves, busiest / mean {:.3f} -> {:.3f}, {}", out.moves.size(), out.imbalance_before,
                           out.imbalance_after, stop);
  return out;
}

}  // namespace troupe::policies
