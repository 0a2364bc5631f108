// Which drafts a step verifies, of those at hand: as policies::assign_verify_lengths decides, but without allocating in
// every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::kernels {

/// Not thread safe. Keeps its memory from step to step.
class draft_grants {
 public:
  void clear() { offered_.clear(); }
  /// Sequence number `item` has a draft per confidence at hand. Sequences are offered in ascending order.
  void offer(uint32_t item, std::span<const float> confidences);
  /// The sequences that may verify one draft more, as often as they are named: the `budget` drafts with the largest
  /// chance of being accepted. A draft's chance is the product of the confidences up to it, so a sequence's are a
  /// prefix; ties go to the earlier sequence.
  std::span<const uint32_t> choose(uint32_t budget);

 private:
  struct draft {
    float chance;
    uint32_t item;
  };
  std::vector<draft> offered_;
  std::vector<uint32_t> chosen_;
};

}  // namespace troupe::kernels
