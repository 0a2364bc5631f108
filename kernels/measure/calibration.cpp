#include "kernels/measure/calibration.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.hpp"

namespace troupe::kernels::measure {

calibration::calibration(uint32_t bins) : bins_(bins) { TROUPE_CHECK(bins > 0, "calibration needs a bin"); }

void calibration::add(double probability, bool happened) {
  const double p = std::isnan(probability) ? 0 : std::clamp(probability, 0.0, 1.0);
  const size_t n = bins_.size();
  calibration_bin& b = bins_[std::min(n - 1, static_cast<size_t>(p * static_cast<double>(n)))];
  ++b.count;
  b.happened += happened;
  b.predicted += p;
}

uint64_t calibration::count() const {
  uint64_t n = 0;
  for (const calibration_bin& b : bins_) n += b.count;
  return n;
}

double calibration::mean_predicted() const {
  double sum = 0;
  for (const calibration_bin& b : bins_) sum += b.predicted;
  return count() ? sum / static_cast<double>(count()) : 0;
}

double calibration::mean_happened() const {
  uint64_t sum = 0;
  for (const calibration_bin& b : bins_) sum += b.happened;
  return count() ? static_cast<double>(sum) / static_cast<double>(count()) : 0;
}

double calibration::expected_error() const {
  double sum = 0;
  for (const calibration_bin& b : bins_) sum += std::fabs(b.predicted - static_cast<double>(b.happened));
  return count() ? sum / static_cast<double>(count()) : 0;
}

}  // namespace troupe::kernels::measure
