#include "runtime/cli/load/histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe::cli {

uint32_t latency_histogram::bucket_of(uint64_t value) {
  if (value < per_octave) return static_cast<uint32_t>(value);
  const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 7;  // 64..127 is octave 0, a bucket each
  if (octave >= octaves) return per_octave * (octaves + 1) - 1;
  return per_octave * (octave + 1) + static_cast<uint32_t>((value >> octave) - per_octave);
}

uint64_t latency_histogram::middle_of(uint32_t bucket) {
  if (bucket < per_octave) return bucket;
  const uint32_t octave = bucket / per_octave - 1;
  const uint64_t first = uint64_t{bucket % per_octave + per_octave} << octave;
  return first + ((uint64_t{1} << octave) - 1) / 2;
}

void latency_histogram::add(nanoseconds d, uint64_t times) {
  if (times == 0) return;
  d = std::max(d, nanoseconds(0));
  buckets_[bucket_of(static_cast<uint64_t>(d.count()))] += times;
  count_ += times;
  sum_ += static_cast<double>(d.count()) * static_cast<double>(times);
  least_ = std::min(least_, d);
  most_ = std::max(most_, d);
}

nanoseconds latency_histogram::at(double share) const {
  if (count_ == 0) return nanoseconds(0);
  const auto rank =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_))), 1, count_);
  if (rank == 1) return least_;
  if (rank == count_) return most_;
  uint64_t seen = 0;
  for (uint32_t b = 0; b < buckets_.size(); ++b) {
    seen += buckets_[b];
    if (seen >= rank) return std::clamp(nanoseconds(static_cast<int64_t>(middle_of(b))), least_, most_);
  }
  return most_;
}

nanoseconds latency_histogram::mean() const {
  return count_ == 0 ? nanoseconds(0) : nanoseconds(std::llround(sum_ / static_cast<double>(count_)));
}

}  // namespace troupe::cli
