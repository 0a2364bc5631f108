#include "policies/copy_split.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::policies {
namespace {

// Pours `water` over the copies of one expert, whose ranks carry `base` without it: the level rises until all is used.
void pour(double water, std::span<const double> base, std::span<double> share, std::vector<uint32_t>& order) {
  const size_t n = base.size();
  order.resize(n);
  for (uint32_t i = 0; i < n; ++i) {  // insertion sort: an expert has a handful of copies
    uint32_t at = i;
    for (; at > 0 && base[order[at - 1]] > base[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  double level = 0, sum = 0;
  size_t wet = 0;
  for (; wet < n; ++wet) {
    if (wet > 0 && base[order[wet]] >= level) break;
    sum += base[order[wet]];
    level = (water + sum) / static_cast<double>(wet + 1);
  }
  double left = water;
  for (size_t i = 0; i < n; ++i) {
    double part = i < wet ? std::max(0.0, level - base[order[i]]) : 0;
    part = std::min(part, left);
    share[order[i]] = part;
    left -= part;
  }
  share[order[0]] += left;  // rounding
}

// The best lower bound from the sets of the k busiest ranks.
double bound_of(const copy_table& t, std::span<const double> rows, const std::vector<double>& load) {
  std::vector<uint32_t> order(t.ranks), place(t.ranks);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return load[a] != load[b] ? load[a] > load[b] : a < b; });
  for (uint32_t i = 0; i < t.ranks; ++i) place[order[i]] = i;
  std::vector<double> inside(t.ranks, 0.0);  // rows that enter with the k-th rank
  for (size_t e = 0; e < rows.size(); ++e) {
    uint32_t last = 0;
    for (uint32_t i = t.first[e]; i < t.first[e + 1]; ++i) last = std::max(last, place[t.rank[i]]);
    inside[last] += rows[e];
  }
  double sum = 0, best = 0;
  for (uint32_t k = 0; k < t.ranks; ++k) {
    sum += inside[k];
    best = std::max(best, sum / (k + 1));
  }
  return best;
}

}  // namespace

result<copy_table> make_copy_table(const std::vector<std::vector<uint32_t>>& copies, uint32_t ranks) {
  copy_table t;
  t.ranks = ranks;
  t.first.push_back(0);
  for (size_t e = 0; e < copies.size(); ++e) {
    std::vector<uint32_t> r = copies[e];
    std::sort(r.begin(), r.end());
    r.erase(std::unique(r.begin(), r.end()), r.end());
    if (r.empty()) return fail(errc::invalid_argument, "copy_split: expert {} has no copy", e);
    if (r.back() >= ranks)
      return fail(errc::invalid_argument, "copy_split: expert {} has a copy on rank {} of {}", e, r.back(), ranks);
    t.rank.insert(t.rank.end(), r.begin(), r.end());
    t.first.push_back(static_cast<uint32_t>(t.rank.size()));
  }
  return t;
}

result<copy_split_plan> plan_copy_split(const copy_table& t, std::span<const double> rows,
                                        const copy_split_options& options) {
  if (t.ranks == 0 || t.first.size() != rows.size() + 1) {
    return fail(errc::invalid_argument, "copy_split: rows of {} experts for a table of {} experts on {} ranks",
                rows.size(), t.first.empty() ? 0 : t.first.size() - 1, t.ranks);
  }
  copy_split_plan plan;
  plan.share.assign(t.rank.size(), 0.0);
  plan.load.assign(t.ranks, 0.0);
  std::vector<uint32_t> several;
  for (size_t e = 0; e < rows.size(); ++e) {
    if (!(rows[e] >= 0 && rows[e] <= 1e30))
      return fail(errc::invalid_argument, "copy_split: expert {} has {} rows", e, rows[e]);
    if (t.first[e + 1] - t.first[e] > 1) {
      several.push_back(static_cast<uint32_t>(e));
    } else {
      plan.share[t.first[e]] = rows[e];
      plan.load[t.rank[t.first[e]]] += rows[e];
    }
  }
  // Large ones first: the first sweep is then nearly right.
  std::sort(several.begin(), several.end(),
            [&](uint32_t a, uint32_t b) { return rows[a] != rows[b] ? rows[a] > rows[b] : a < b; });
  std::vector<double> base;
  std::vector<uint32_t> order;
  auto measure = [&] {
    plan.busiest = *std::max_element(plan.load.begin(), plan.load.end());
    plan.bound = std::max(plan.bound, bound_of(t, rows, plan.load));
    return plan.busiest <= plan.bound * (1 + options.tolerance);
  };
  bool done = several.empty() || options.max_sweeps == 0;
  if (options.max_sweeps == 0) {  // even split
    for (uint32_t e : several) {
      for (uint32_t i = t.first[e]; i < t.first[e + 1]; ++i) {
        plan.share[i] = rows[e] / (t.first[e + 1] - t.first[e]);
        plan.load[t.rank[i]] += plan.share[i];
      }
    }
  }
  while (!done && plan.sweeps < options.max_sweeps) {
    for (uint32_t e : several) {
      const uint32_t a = t.first[e], n = t.first[e + 1] - a;
      base.resize(n);
      for (uint32_t i = 0; i < n; ++i) base[i] = plan.load[t.rank[a + i]] - plan.share[a + i];
      pour(rows[e], base, std::span(plan.share).subspan(a, n), order);
      for (uint32_t i = 0; i < n; ++i) plan.load[t.rank[a + i]] = base[i] + plan.share[a + i];
    }
    ++plan.sweeps;
    done = measure();
  }
  measure();
  plan.reason =
      fmt::format("busiest of {} ranks has {:.1f} rows, {:.2f} % above what no split can beat, after {} sweeps",
                  t.ranks, plan.busiest, plan.bound > 0 ? 100 * (plan.busiest / plan.bound - 1) : 0.0, plan.sweeps);
  return plan;
}

std::vector<uint32_t> whole_rows(std::span<const double> share, uint32_t total) {
  std::vector<uint32_t> out(share.size(), 0);
  if (share.empty()) return out;
  double sum = std::accumulate(share.begin(), share.end(), 0.0);
  std::vector<double> rest(share.size());
  uint64_t given = 0;
  for (size_t i = 0; i < share.size(); ++i) {
    double want = sum > 0 ? share[i] / sum * total : static_cast<double>(total) / static_cast<double>(share.size());
    out[i] = static_cast<uint32_t>(std::min<double>(std::floor(want), total - static_cast<double>(given)));
    rest[i] = want - out[i];
    given += out[i];
  }
  for (; given < total; ++given) {
    size_t best = static_cast<size_t>(std::max_element(rest.begin(), rest.end()) - rest.begin());
    ++out[best];
    rest[best] -= 1;
  }
  return out;
}

}  // namespace troupe::policies
