// How many drafts the target accepts, and whether the drafter's confidences know it.
#pragma once

#include <memory>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "kernels/measure/calibration.hpp"
#include "kernels/measure/engine_runner.hpp"
#include "policies/confidence.hpp"

namespace troupe::kernels::measure {

/// Counts of one draft slot. Reached: every draft before it was accepted, and it was compared with the target.
struct draft_slot {
  uint64_t reached = 0, accepted = 0;  // accepted of those reached
  uint64_t offered = 0, survived = 0;  // blocks whose fate at this slot is known, and those accepted up to it
  double rate() const { return reached ? static_cast<double>(accepted) / static_cast<double>(reached) : 0; }
  double cumulative() const { return offered ? static_cast<double>(survived) / static_cast<double>(offered) : 0; }
};

/// Calibration error before and after scaling, both over the blocks that the temperatures were not fitted on.
struct scaled_calibration {
  std::vector<double> temperatures;  // per slot
  calibration before, after;         // of the cumulative confidences
};

/// Collects draft outcomes. A block that the sequence's end or its length limit cut short counts for the slots that
/// were compared, and not for the mean length. One thread at a time.
class acceptance {
 public:
  explicit acceptance(uint32_t block) : slots_(block) {}
  void add(const draft_outcome& o);

  /// Mean number of accepted drafts over whole blocks; 0 without any.
  double mean_length() const { return blocks_ ? static_cast<double>(accepted_) / static_cast<double>(blocks_) : 0; }
  uint64_t blocks() const { return blocks_; }  // whole ones
  uint64_t cut_blocks() const { return cut_blocks_; }
  uint64_t matched() const { return matched_; }  // accepted drafts of all blocks
  const std::vector<draft_slot>& slots() const { return slots_; }
  /// Confidence of a slot against its acceptance, where it was reached.
  const calibration& per_slot() const { return per_slot_; }
  /// Product of the confidences up to a slot against survival up to it.
  const calibration& cumulative() const { return cumulative_; }
  /// What sequential temperature scaling (policies/confidence) makes of the cumulative confidences: fitted on the first
  /// half of the whole blocks, measured on the second. Errors are those of the fit: too few blocks.
  result<scaled_calibration> scaled() const;

 private:
  std::vector<draft_slot> slots_;
  calibration per_slot_, cumulative_;
  std::vector<policies::confidence_sample> samples_;  // of whole blocks, the first 65,536
  uint64_t blocks_ = 0, cut_blocks_ = 0, accepted_ = 0, matched_ = 0;
};

/// Runs `requests` with drafts, `limits.slots` at once, and counts. unsupported for a model without drafter. `answers`,
/// unless null, takes what was written.
result<acceptance> measure_acceptance(std::shared_ptr<const model> weights, const engine_limits& limits,
                                      const std::vector<request>& requests, std::vector<answer>* answers = nullptr);

}  // namespace troupe::kernels::measure
