// What the steps of a rank cost, learned from the steps themselves: the cost model of prompt rows, fitted again and
// again, and how many rows a step's time budget allows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "policies/prefill_cost.hpp"

namespace troupe::actors {

/// Plain state of one batch: no clock, the engine's own step times come in.
class step_costs {
 public:
  /// Rows of one prompt in a step, and the tokens before them.
  struct prompt_rows {
    uint32_t rows = 0, before = 0;
  };

  /// A step that succeeded. `decodes`: other sequences ran in it too. Returns what a new fit said, empty when there was
  /// none.
  std::string observe(std::span<const prompt_rows> prompts, bool decodes, int64_t time_ns);

  /// Coefficients by the last fit that was good enough; nothing before the first.
  const std::optional<policies::prefill_cost>& prefill() const { return cost_; }
  /// Time of a step that only decodes, mean of late; 0: not seen yet.
  double decode_ns() const { return decode_ns_; }
  /// What a prompt of so many tokens costs in all; 0 before the first fit.
  double prompt_ns(uint32_t tokens) const { return cost_ ? (*cost_)(tokens, 0) : 0; }

  /// Prompt rows that fit a step of `budget_ns` behind `before` tokens, beside decoding sequences if `decodes`: at most
  /// `most`, at least `least` (a prompt must go on whatever it costs). `most` before the first fit and without a
  /// budget.
  uint32_t rows_within(int64_t budget_ns, uint32_t before, bool decodes, uint32_t least, uint32_t most) const;

 private:
  policies::cost_window window_{{}, 0, 128};
  std::optional<policies::prefill_cost> cost_;
  uint32_t fresh_ = 0;  // samples since the last fit
  double decode_ns_ = 0;
};

}  // namespace troupe::actors
