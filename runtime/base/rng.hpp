// Randomness as a parameter: a counter-based generator (Philox 4x32-10), so that a draw is a pure function of key and
// counter, the same on every machine and in any order of evaluation.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

/// Philox4x32-10 (Salmon et al., SC 2011): four words from a 128-bit counter and a 64-bit key. Pure.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream of numbers from one seed. Not thread safe; copy it to fork identical streams.
class rng {
 public:
  explicit rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  uint64_t next();
  /// Uniform in [0, bound); bound > 0. Unbiased.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();

 private:
  uint64_t seed_, stream_, count_ = 0;
};

/// One seed from the operating system, for callers that print it and pass it on.
uint64_t entropy_seed();

}  // namespace troupe
