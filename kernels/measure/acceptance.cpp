#include "kernels/measure/acceptance.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::kernels::measure {
namespace {

constexpr size_t most_samples = 65536;

}  // namespace

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
    if (samples_.size() >= most_samples) return;
    policies::confidence_sample& s = samples_.emplace_back();
    s.accepted = o.matched;
    for (size_t k = 0; k < n; ++k) {
      const double c = std::clamp(double{o.confidences[k]}, 1e-6, 1 - 1e-6);
      s.logits.push_back(std::log(c / (1 - c)));
    }
  }
}

result<scaled_calibration> acceptance::scaled() const {
  const auto half = samples_.begin() + static_cast<ptrdiff_t>(samples_.size() / 2);
  TROUPE_TRY(auto plan, policies::calibrate_confidence({samples_.begin(), half}));
  scaled_calibration out;
  out.temperatures = plan.temperatures;
  for (auto s = half; s != samples_.end(); ++s) {
    double before = 1, after = 1;
    for (size_t k = 0; k < s->logits.size(); ++k) {
      before *= policies::calibrated_confidence(s->logits[k], 1);
      after *= policies::calibrated_confidence(s->logits[k], plan.temperatures[k]);
      out.before.add(before, s->accepted > k);
      out.after.add(after, s->accepted > k);
    }
  }
  return out;
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
