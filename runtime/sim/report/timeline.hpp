// How a run went over time, in a bounded number of bins whatever its length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::sim {

/// One bin. Sums over the bin, except the samples: the last ones in or before it.
struct timeline_bin {
  double arrived = 0, finished = 0, tokens = 0;
  double asked_tokens = 0, hit_tokens = 0;
  std::array<double, 2> work_ns{}, rank_ns{};             // prefill, decode: cost-model work; rank time in steps
  std::array<uint64_t, 4> ready{}, waiting{}, running{};  // samples by pool_kind
};

/// Bins of equal width from time 0 on; when they run out, neighbours are merged and the width doubles. One thread.
class timeline {
 public:
  static constexpr size_t most_bins = 600;
  timeline() = default;  // bins of 100 ms at first
  explicit timeline(int64_t first_width_ns) : width_(first_width_ns) {}

  int64_t width() const { return width_; }
  const std::vector<timeline_bin>& bins() const { return bins_; }
  /// The bin of a time (>= 0; later ones than any before make new bins, which carry the samples on).
  timeline_bin& at(int64_t ns);
  /// Spreads a step's work and rank time evenly over [from, to] for pool 0 or 1.
  void add_step(size_t pool, int64_t from, int64_t to, double work_ns, double rank_ns);
  /// Sum of `work_ns` of a pool over [from, to], with parts of bins at the ends.
  double work_between(size_t pool, int64_t from, int64_t to) const;

 private:
  int64_t width_ = 100'000'000;
  std::vector<timeline_bin> bins_;
};

}  // namespace troupe::sim
