#include "policies/confidence.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::policies {
namespace {

constexpr int bins = 15;

// Mean over samples of |mean predicted - share survived| of the sample's bin.
double calibration_error(const std::vector<double>& predicted, const std::vector<confidence_sample>& samples,
                         size_t position) {
  std::array<double, bins> sum{}, hit{};
  for (size_t i = 0; i < predicted.size(); ++i) {
    auto b = static_cast<size_t>(std::min(bins - 1, static_cast<int>(predicted[i] * bins)));
    sum[b] += predicted[i];
    hit[b] += samples[i].accepted > position;
  }
  double error = 0;
  for (size_t b = 0; b < bins; ++b) error += std::abs(sum[b] - hit[b]);
  return error / static_cast<double>(predicted.size());
}

}  // namespace

double calibrated_confidence(double logit, double temperature) { return 1 / (1 + std::exp(-logit / temperature)); }

result<calibration_plan> calibrate_confidence(const std::vector<confidence_sample>& samples) {
  constexpr size_t fewest = 100;
  if (samples.size() < fewest)
    return fail(errc::invalid_argument, "calibration: {} samples, need {}", samples.size(), fewest);
  const size_t width = samples[0].logits.size();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].logits.size() != width || samples[i].accepted > width) {
      return fail(errc::invalid_argument,
                  "calibration: sample {} has {} logits and {} accepted, the first one has {} logits", i,
                  samples[i].logits.size(), samples[i].accepted, width);
    }
    for (double x : samples[i].logits) {
      if (!std::isfinite(x)) return fail(errc::invalid_argument, "calibration: sample {} has the logit {}", i, x);
    }
  }
  constexpr int half = 24;  // grid steps on each side of 1
  calibration_plan plan;
  std::vector<double> raw(samples.size(), 1.0), before(samples.size(), 1.0), now(samples.size());
  for (size_t k = 0; k < width; ++k) {
    double best = 0, best_t = 1;
    for (int step = 0; step <= 2 * half; ++step) {
      // 1 first, then away from it on both sides, so that a tie stays near 1
      int offset = (step + 1) / 2 * (step % 2 ? 1 : -1);
      double t = std::pow(4.0, static_cast<double>(offset) / half);
      for (size_t i = 0; i < samples.size(); ++i) now[i] = before[i] * calibrated_confidence(samples[i].logits[k], t);
      double error = calibration_error(now, samples, k);
      if (step == 0 || error < best) best = error, best_t = t;
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      raw[i] *= calibrated_confidence(samples[i].logits[k], 1);
      before[i] *= calibrated_confidence(samples[i].logits[k], best_t);
    }
    plan.temperatures.push_back(best_t);
    plan.error_before.push_back(calibration_error(raw, samples, k));
    plan.error_after.push_back(best);
  }
  double a = 0, b = 0;
  for (size_t k = 0; k < width; ++k) a = std::max(a, plan.error_before[k]), b = std::max(b, plan.error_after[k]);
  plan.reason = fmt::format("{} samples of {} drafts: largest calibration error {:.2f} % before, {:.2f} % after",
                            samples.size(), width, 100 * a, 100 * b);
  return plan;
}

}  // namespace troupe::policies
