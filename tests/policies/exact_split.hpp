// The optimum of the linear program behind copy_split, found by other means than the planner: maximum flows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace troupe::policies {

/// Dinic's maximum flow on real capacities.
class max_flow {
 public:
  explicit max_flow(size_t nodes) : out_(nodes) {}
  void edge(size_t a, size_t b, double capacity) {
    out_[a].push_back(to_.size()), to_.push_back(b), room_.push_back(capacity);
    out_[b].push_back(to_.size()), to_.push_back(a), room_.push_back(0);
  }
  double run(size_t source, size_t sink, double epsilon) {
    epsilon_ = epsilon;
    double total = 0;
    while (levels(source), level_[sink] >= 0) {
      next_.assign(out_.size(), 0);
      while (double f = push(source, sink, std::numeric_limits<double>::infinity())) total += f;
    }
    return total;
  }
  /// After run: on the source's side of a minimum cut.
  bool before_cut(size_t node) const { return level_[node] >= 0; }

 private:
  void levels(size_t source) {
    level_.assign(out_.size(), -1);
    level_[source] = 0;
    std::vector<size_t> queue{source};
    for (size_t i = 0; i < queue.size(); ++i) {
      for (size_t e : out_[queue[i]]) {
        if (room_[e] > epsilon_ && level_[to_[e]] < 0) level_[to_[e]] = level_[queue[i]] + 1, queue.push_back(to_[e]);
      }
    }
  }
  double push(size_t at, size_t sink, double flow) {
    if (at == sink) return flow;
    for (size_t& i = next_[at]; i < out_[at].size(); ++i) {
      size_t e = out_[at][i];
      if (room_[e] <= epsilon_ || level_[to_[e]] != level_[at] + 1) continue;
      if (double f = push(to_[e], sink, std::min(flow, room_[e])); f > 0) {
        room_[e] -= f, room_[e ^ 1] += f;
        return f;
      }
    }
    return 0;
  }
  std::vector<std::vector<size_t>> out_;
  std::vector<size_t> to_, next_;
  std::vector<double> room_;
  std::vector<int> level_;
  double epsilon_ = 0;
};

/// Smallest T such that all rows of every expert fit on its ranks with at most T per rank. Newton's method on the cut:
/// a T that does not fit yields a set of ranks whose own rows are more than T each, and that mean is the next T.
inline double exact_split(const std::vector<std::vector<uint32_t>>& copies, const std::vector<double>& rows,
                          uint32_t ranks) {
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0), epsilon = 1e-9 * std::max(total, 1.0);
  const size_t experts = rows.size(), source = experts + ranks, sink = source + 1;
  double t = total / ranks;
  for (int round = 0; round < 1000; ++round) {
    max_flow f(experts + ranks + 2);
    for (size_t e = 0; e < experts; ++e) {
      f.edge(source, e, rows[e]);
      for (uint32_t r : copies[e]) f.edge(e, experts + r, 2 * total);
    }
    for (uint32_t r = 0; r < ranks; ++r) f.edge(experts + r, sink, t);
    if (f.run(source, sink, epsilon * 1e-3) >= total - epsilon) return t;
    double inside = 0, size = 0;
    for (size_t e = 0; e < experts; ++e) inside += f.before_cut(e) ? rows[e] : 0;
    for (uint32_t r = 0; r < ranks; ++r) size += f.before_cut(experts + r);
    if (size == 0 || inside / size <= t) return t;
    t = inside / size;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace troupe::policies
