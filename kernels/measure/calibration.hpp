// Whether probabilities mean what they say: expected calibration error over equal bins (Guo et al., 2017).
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::kernels::measure {

/// Counts of predictions whose probability fell into one bin.
struct calibration_bin {
  uint64_t count = 0, happened = 0;
  double predicted = 0;  // sum of the probabilities
};

/// Collects (probability, did it happen) pairs. One thread at a time.
class calibration {
 public:
  /// `bins` equal bins over [0, 1]; at least 1.
  explicit calibration(uint32_t bins = 10);

  /// A probability outside [0, 1] counts as the nearer end; NaN counts as 0.
  void add(double probability, bool happened);

  uint64_t count() const;
  double mean_predicted() const;  // 0 without samples
  double mean_happened() const;   // 0 without samples
  /// Sum over bins of (share of samples) x |mean probability - share that happened|; 0 without samples.
  double expected_error() const;
  const std::vector<calibration_bin>& bins() const { return bins_; }

 private:
  std::vector<calibration_bin> bins_;
};

}  // namespace troupe::kernels::measure
