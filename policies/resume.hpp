// Where a prompt's computation starts: cold, resumed elsewhere, or started again after it had to give its pages up.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::policies {

/// What the decision needs to know.
struct resume_input {
  uint32_t prompt_length = 0;   // L0, of the original prompt
  uint32_t known = 0;           // n >= L0: tokens known now, emitted ones included
  uint32_t window = 0;          // W > 0
  uint32_t decoder_layers = 0;  // D
  uint32_t backtrack = 6;       // tokens before d that the first decoder layers still look at
};

/// The decision.
struct resume_plan {
  uint32_t decoder_from = 0;  // d: first token that the decoder layers after the first run on
  uint32_t hit_limit = 0;     // cached blocks may be used up to here
  std::string reason;
};

/// d = max(0, L0 - W, n - D * W); hit limit = floor((d - backtrack) / W) * W, 0 when d <= backtrack. For n = L0 the
/// limit is that of a fresh prompt (the last block + backtrack tokens are never reused). Source: docs/decisions.md,
/// detail 4.
resume_plan plan_resume(const resume_input& in);

}  // namespace troupe::policies
