#include "kernels/measure/acceptance.hpp"

#include <algorithm>

namespace troupe::kernels::measure {

void acceptance::add(const draft_outcome& o) {
  const size_t n = std::min(o.drafts.size(), slots_.size());
  // What follows the end of a sequence was never compared; after a mismatch everything is known to be lost.
  const bool open_end = o.ended || o.matched >= n;
  const size_t compared = std::min<size_t>(n, open_end ? o.matched : o.matched + size_t{1});
  double survival = 1;
  for (size_t k = 0; k < n; ++k) {
    survival *= o.confidences[k];
    const bool matched = k < o.matched;
    if (k < compared) {
      ++slots_[k].reached;
      slots_[k].accepted += matched;
      per_slot_.add(o.confidences[k], matched);
    }
    if (k < compared || !open_end) {
      ++slots_[k].offered;
      slots_[k].survived += matched;
      cumulative_.add(survival, matched);
    }
  }
  matched_ += o.matched;
  if (n < slots_.size() || (o.ended && o.matched < n)) {
    ++cut_blocks_;
  } else {
    ++blocks_;
    accepted_ += o.matched;
  }
}

result<acceptance> measure_acceptance(std::shared_ptr<const model> weights, const engine_limits& limits,
                                      const std::vector<request>& requests, std::vector<answer>* answers) {
  if (weights->config.num_nextn_predict_layers == 0)
    return fail(errc::unsupported, "{}: has no drafter, so that there is no acceptance to measure", weights->directory);
  acceptance seen(std::min(limits.max_draft, weights->config.dspark_block_size));
  // The engine thread writes `seen`, which outlives the engine, and has stopped when it is read.
  {
    TROUPE_TRY(auto runner, engine_runner::make(weights, limits, [&](const draft_outcome& o) { seen.add(o); }));
    TROUPE_TRY(auto done, runner->run(requests));
    if (answers) *answers = std::move(done);
  }
  return seen;
}

}  // namespace troupe::kernels::measure
