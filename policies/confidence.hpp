// Calibration of a drafter's confidence head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One verified block: the head's logits per draft, collected with identity temperatures, and how many drafts were
/// accepted.
struct confidence_sample {
  std::vector<double> logits;
  uint32_t accepted = 0;  // <= logits.size()
};

/// One temperature per draft position; confidence = sigmoid(logit / temperature).
struct calibration_plan {
  std::vector<double> temperatures;
  std::vector<double> error_before, error_after;  // expected calibration error of the survival, per position
  std::string reason;
};

/// Sequential temperature scaling (DSpark section 3.2): position by position, a grid search for the temperature (49
/// steps from 1/4 to 4, ties to the one nearest 1) that minimises the expected calibration error (15 bins) of the
/// cumulative product with the earlier temperatures fixed. Order within a position is preserved. Fails with fewer than
/// 100 samples, samples of different lengths or non-finite logits.
result<calibration_plan> calibrate_confidence(const std::vector<confidence_sample>& samples);

/// sigmoid(logit / temperature).
double calibrated_confidence(double logit, double temperature);

}  // namespace troupe::policies
