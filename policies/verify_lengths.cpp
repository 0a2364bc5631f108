#include "policies/verify_lengths.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::policies {
namespace {

constexpr double never_worth_a_row = 1e-6;
// What a mean of request_steps requests can tell: a smaller gain over verifying everything is within its error.
constexpr double trimming_must_gain = 1.001;

result<void> check_rows(const confidence_rows& c) {
  if (c.value.size() != size_t{c.width} * c.drafts.size()) {
    return fail(errc::invalid_argument, "confidences: {} values for {} requests of {} drafts", c.value.size(),
                c.drafts.size(), c.width);
  }
  for (size_t r = 0; r < c.drafts.size(); ++r) {
    if (c.drafts[r] > c.width)
      return fail(errc::invalid_argument, "confidences: request {} has {} drafts, at most {} fit", r, c.drafts[r],
                  c.width);
    for (uint32_t k = 0; k < c.drafts[r]; ++k) {
      float v = c.value[r * c.width + k];
      if (!(v >= 0 && v <= 1))
        return fail(errc::invalid_argument, "confidences: {} of request {}, draft {} is no probability", v, r, k);
    }
  }
  return {};
}

result<void> tidy(std::vector<step_cost_point>& points, const char* what) {
  for (const auto& p : points) {
    if (!(p.ns > 0) || !std::isfinite(p.ns))
      return fail(errc::invalid_argument, "step cost: {} of {} takes {} ns", what, p.n, p.ns);
  }
  std::sort(points.begin(), points.end(),
            [](const auto& a, const auto& b) { return a.n != b.n ? a.n < b.n : a.ns > b.ns; });
  points.erase(std::unique(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.n == b.n; }),
               points.end());
  for (size_t i = 1; i < points.size(); ++i) points[i].ns = std::max(points[i].ns, points[i - 1].ns);
  return {};
}

// A walk along the points for ascending n: the argmax asks for every n, and a search each time would dominate it.
class cost_walk {
 public:
  cost_walk(const std::vector<step_cost_point>& points, uint32_t stairs) : points_(points), stairs_(stairs) {}
  double at(double n) {
    while (next_ < points_.size() && points_[next_].n < n) ++next_;
    return segment(next_, n);
  }
  // `next` = first point with points[next].n >= n.
  double segment(size_t next, double n) const {
    if (points_.empty()) return 0;
    if (next == 0) return points_.front().ns;
    if (next == points_.size()) {
      if (points_.size() == 1) return points_.front().ns;
      const auto &a = points_[next - 2], &b = points_[next - 1];
      return b.ns + (b.ns - a.ns) / (b.n - a.n) * (n - b.n);
    }
    const auto &a = points_[next - 1], &b = points_[next];
    return a.n < stairs_ ? b.ns : a.ns + (b.ns - a.ns) / (b.n - a.n) * (n - a.n);
  }

 private:
  const std::vector<step_cost_point>& points_;
  uint32_t stairs_;
  size_t next_ = 0;
};

// Survivals of all drafts, largest first.
result<std::vector<float>> sorted_survivals(const confidence_rows& c) {
  if (auto ok = check_rows(c); !ok) return fail(ok.error());
  std::vector<float> survival;
  survival.reserve(c.value.size());
  for (size_t r = 0; r < c.drafts.size(); ++r) {
    double s = 1;
    for (uint32_t k = 0; k < c.drafts[r]; ++k) survival.push_back(static_cast<float>(s *= c.value[r * c.width + k]));
  }
  std::sort(survival.begin(), survival.end(), std::greater<>());
  return survival;
}

verify_capacity_plan best_capacity(const step_cost_table& table, const verify_capacity_input& in,
                                   std::span<const float> survival, bool may_trim = true, double must_gain = 1) {
  const size_t requests = in.stale.drafts.size(), drafts = survival.size();
  verify_capacity_plan plan;
  if (requests == 0) {
    plan.reason = "no requests";
    return plan;
  }
  survival = survival.first(std::min<size_t>(drafts, in.max_drafts));
  plan.tokens = static_cast<double>(requests);
  const double draft_ns = step_cost(table.draft, 0, static_cast<double>(requests));
  const double base = static_cast<double>(requests) + in.other_rows;
  if (!is_profiled(table) || !may_trim) {
    plan.capacity = static_cast<uint32_t>(survival.size());
    plan.tokens = std::accumulate(survival.begin(), survival.end(), plan.tokens);
    if (may_trim) {
      plan.reason = fmt::format("no profiled step cost: all {} drafts are verified, nothing can be gained by trimming",
                                plan.capacity);
    } else {
      plan.cost_ns = is_profiled(table) ? draft_ns + step_cost(table.verify, table.stairs, base + plan.capacity) : 0;
      plan.reason = fmt::format("all {} drafts are verified: too few confidences seen to trim by", plan.capacity);
    }
    return plan;
  }
  cost_walk walk(table.verify, table.stairs);
  double tokens = plan.tokens, best = -1;
  for (size_t n = 0;; ++n) {
    const double cost = draft_ns + walk.at(base + static_cast<double>(n));
    const bool everything = n == survival.size() || survival[n] < never_worth_a_row;
    if (tokens / cost * (everything ? must_gain : 1) > best * (1 + 1e-12)) {
      best = tokens / cost;
      plan.capacity = static_cast<uint32_t>(n);
      plan.tokens = tokens;
      plan.cost_ns = cost;
    }
    if (everything) break;
    tokens += survival[n];
  }
  plan.reason = fmt::format("{} of {} drafts of {} requests: {:.1f} tokens expected in {:.3f} ms", plan.capacity,
                            drafts, requests, plan.tokens, plan.cost_ns / 1e6);
  return plan;
}

}  // namespace

result<step_cost_table> make_step_cost_table(std::vector<step_cost_point> verify, std::vector<step_cost_point> draft,
                                             uint32_t stairs) {
  if (auto ok = tidy(verify, "a target step"); !ok) return fail(ok.error());
  if (auto ok = tidy(draft, "a draft pass"); !ok) return fail(ok.error());
  return step_cost_table{std::move(verify), std::move(draft), stairs};
}

bool is_profiled(const step_cost_table& t) { return t.verify.size() >= 2 && t.verify.back().ns > t.verify.front().ns; }

double step_cost(const std::vector<step_cost_point>& points, uint32_t stairs, double n) {
  auto next =
      std::lower_bound(points.begin(), points.end(), n, [](const step_cost_point& p, double x) { return p.n < x; });
  return cost_walk(points, stairs).segment(static_cast<size_t>(next - points.begin()), n);
}

result<verify_capacity_plan> plan_verify_capacity(const step_cost_table& table, const verify_capacity_input& in) {
  TROUPE_TRY(auto survival, sorted_survivals(in.stale));
  return best_capacity(table, in, survival);
}

result<verify_capacity_plan> plan_verify_capacity(const step_cost_table& table, const verify_capacity_input& in,
                                                  survival_memory& memory) {
  TROUPE_TRY(auto survival, sorted_survivals(in.stale));
  if (survival.empty()) return best_capacity(table, in, survival);
  const auto requests = static_cast<uint32_t>(in.stale.drafts.size());
  memory.seen += std::min(requests, std::max(memory.request_steps, memory.seen) - memory.seen);
  memory.weight *= 1 - std::min(1.0, static_cast<double>(requests) / std::max(1u, memory.request_steps));
  memory.weight += 1;
  if (!memory.best.empty()) {
    const auto share = static_cast<float>(1 / memory.weight);
    for (size_t i = 0; i < survival.size(); ++i) {
      const float old = memory.best[(2 * i + 1) * memory.best.size() / (2 * survival.size())];
      survival[i] = old + (survival[i] - old) * share;
    }
  }
  memory.best = survival;
  return best_capacity(table, in, survival, memory.seen >= memory.request_steps, trimming_must_gain);
}

result<verify_lengths_plan> assign_verify_lengths(const confidence_rows& c, uint32_t capacity) {
  if (auto ok = check_rows(c); !ok) return fail(ok.error());
  struct candidate {
    double survival;
    uint32_t position, request;
  };
  std::vector<candidate> all;
  all.reserve(c.value.size());
  for (uint32_t r = 0; r < c.drafts.size(); ++r) {
    double s = 1;
    for (uint32_t k = 0; k < c.drafts[r]; ++k) all.push_back({s *= c.value[size_t{r} * c.width + k], k, r});
  }
  const size_t n = std::min<size_t>(capacity, all.size());
  auto before = [](const candidate& a, const candidate& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.position != b.position ? a.position < b.position : a.request < b.request;
  };
  if (n < all.size()) std::nth_element(all.begin(), all.begin() + static_cast<long>(n), all.end(), before);
  verify_lengths_plan plan{std::vector<uint32_t>(c.drafts.size(), 0), static_cast<double>(c.drafts.size()), {}};
  // The n first in this order: a request's drafts come in the order of their positions (survival falls, ties by
  // position).
  for (size_t i = 0; i < n; ++i) {
    plan.lengths[all[i].request] = std::max(plan.lengths[all[i].request], all[i].position + 1);
    plan.tokens += all[i].survival;
  }
  plan.reason =
      fmt::format("{} of {} drafts by their current survival, {:.1f} tokens expected", n, all.size(), plan.tokens);
  return plan;
}

}  // namespace troupe::policies
