// How long a group may take to get going in its view, and what happens then.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A formed group of which at least one rank is not ready in the current view. Times in milliseconds of one clock.
struct group_patience_input {
  int64_t now_ms = 0;
  int64_t since_ms = 0;          // the group was last well, its members changed, or its last further view was given out
  bool was_ready = false;        // the rank that is not ready was in this view before: a step failed there
  uint32_t views = 0;            // further views of the same ranks that did not help
  int64_t patience_ms = 10'000;  // for connecting; doubles from the second further view on
  int64_t grace_ms = 1'000;      // instead of it before the first further view, when was_ready
  uint32_t max_views = 4;        // 1 to 16
};

/// wait: nothing yet. next_view: the same ranks connect anew under the next epoch. failed: a person has to look.
enum class group_verdict : uint8_t { wait = 0, next_view = 1, failed = 2 };

/// The decision.
struct group_patience_plan {
  group_verdict verdict = group_verdict::wait;
  int64_t wait_ms = 0;  // until another verdict is due; 0 unless wait
  std::string reason;
};

/// Allowed time = grace_ms for the first further view of a group that was ready, patience_ms for the first of another,
/// patience_ms * 2^(views - 1) after that; when it is over, next_view while views < max_views, then failed. Nobody
/// knows which rank is to blame, so no rank is given up. Errors: times not positive, since after now, max_views out of
/// range. Source: docs/decisions.md, detail 17 as changed.
result<group_patience_plan> plan_group_patience(const group_patience_input& in);

}  // namespace troupe::policies
