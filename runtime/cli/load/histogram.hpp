// Many durations in little memory: counts in buckets that grow by about one percent.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/clock.hpp"

namespace troupe::cli {

/// Durations from 0 up; anything from 4.3 seconds * 2^11 (2.4 hours) on lands in the last bucket. 18 KiB, never
/// allocates. Percentiles are off by at most 1/128 of their value; count, mean, least and most are exact. One thread.
class latency_histogram {
 public:
  /// `times` equal durations; negative ones count as 0.
  void add(nanoseconds d, uint64_t times = 1);
  uint64_t count() const { return count_; }
  /// The smallest duration that at least `share` (0 to 1) of all do not exceed; 0 when there is none. 0 gives the least
  /// and 1 the most.
  nanoseconds at(double share) const;
  nanoseconds mean() const;
  nanoseconds least() const { return count_ > 0 ? least_ : nanoseconds(0); }
  nanoseconds most() const { return most_; }

 private:
  // Values below 64 have a bucket each; every further power of two is cut into 64.
  static constexpr uint32_t per_octave = 64, octaves = 38;
  static uint32_t bucket_of(uint64_t value);
  static uint64_t middle_of(uint32_t bucket);

  std::array<uint64_t, per_octave*(octaves + 1)> buckets_{};
  uint64_t count_ = 0;
  double sum_ = 0;
  nanoseconds least_ = nanoseconds::max(), most_{0};
};

}  // namespace troupe::cli
