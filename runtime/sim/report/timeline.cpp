#include "runtime/sim/report/timeline.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::sim {

timeline_bin& timeline::at(int64_t ns) {
  TROUPE_CHECK(ns >= 0, "time {}", ns);
  while (static_cast<uint64_t>(ns / width_) >= most_bins) {
    for (size_t i = 0; i < bins_.size(); i += 2) {
      timeline_bin sum = bins_[i];
      if (i + 1 < bins_.size()) {
        const auto& b = bins_[i + 1];
        sum.arrived += b.arrived, sum.finished += b.finished, sum.tokens += b.tokens;
        sum.asked_tokens += b.asked_tokens, sum.hit_tokens += b.hit_tokens;
        for (size_t p = 0; p < 2; ++p) sum.work_ns[p] += b.work_ns[p], sum.rank_ns[p] += b.rank_ns[p];
        sum.ready = b.ready, sum.waiting = b.waiting, sum.running = b.running;
      }
      bins_[i / 2] = sum;
    }
    bins_.resize((bins_.size() + 1) / 2);
    width_ *= 2;
  }
  const auto i = static_cast<size_t>(ns / width_);
  while (bins_.size() <= i) {
    timeline_bin next;
    if (!bins_.empty())
      next.ready = bins_.back().ready, next.waiting = bins_.back().waiting, next.running = bins_.back().running;
    bins_.push_back(next);
  }
  return bins_[i];
}

void timeline::add_step(size_t pool, int64_t from, int64_t to, double work_ns, double rank_ns) {
  from = std::max<int64_t>(from, 0);
  at(to);  // settles the width
  const auto add = [&](int64_t when, double share) {
    auto& b = at(when);
    b.work_ns[pool] += work_ns * share, b.rank_ns[pool] += rank_ns * share;
  };
  if (to <= from) return add(to, 1);
  for (int64_t t = from; t < to;) {
    const int64_t end = std::min(to, (t / width_ + 1) * width_);
    add(t, static_cast<double>(end - t) / static_cast<double>(to - from));
    t = end;
  }
}

double timeline::work_between(size_t pool, int64_t from, int64_t to) const {
  double sum = 0;
  for (size_t i = 0; i < bins_.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * width_, end = begin + width_;
    const int64_t part = std::min(to, end) - std::max(from, begin);
    if (part > 0) sum += bins_[i].work_ns[pool] * static_cast<double>(part) / static_cast<double>(width_);
  }
  return sum;
}

}  // namespace troupe::sim
