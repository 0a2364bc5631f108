// How many rows of which prompts go into the next step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::policies {

/// What the decision needs to know.
struct chunk_input {
  uint32_t budget = 0;              // prompt rows of the step, over all prompts
  std::vector<uint32_t> remaining;  // rows left per prompt, oldest first, each > 0
};

/// The decision.
struct chunk_plan {
  std::vector<uint32_t> rows;  // per prompt; sum <= budget
  std::string reason;
};

/// Half of the budget is shared out equally, so that a short prompt does not wait behind a long one; the rest, and what
/// the shares leave over, goes to the oldest first. Uses the whole budget or all that remains, whichever is less.
chunk_plan plan_chunks(const chunk_input& in);

}  // namespace troupe::policies
