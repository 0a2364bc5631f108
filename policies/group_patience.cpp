#include "policies/group_patience.hpp"

#include <fmt/format.h>

namespace troupe::policies {

result<group_patience_plan> plan_group_patience(const group_patience_input& in) {
  if (in.patience_ms <= 0 || in.grace_ms <= 0 || in.since_ms > in.now_ms)
    return fail(errc::invalid_argument, "group_patience: patience {} ms, grace {} ms, since {}, now {}", in.patience_ms,
                in.grace_ms, in.since_ms, in.now_ms);
  if (in.max_views < 1 || in.max_views > 16 || in.views > in.max_views)
    return fail(errc::invalid_argument, "group_patience: {} of {} further views; 1 to 16 are possible", in.views,
                in.max_views);
  const int64_t allowed = in.views > 0 ? in.patience_ms << (in.views - 1) : in.was_ready ? in.grace_ms : in.patience_ms;
  const int64_t left = allowed - (in.now_ms - in.since_ms);
  group_patience_plan out;
  if (left > 0) {
    out.wait_ms = left;
    out.reason = fmt::format("{} of {} ms have passed", in.now_ms - in.since_ms, allowed);
  } else if (in.views < in.max_views) {
    out.verdict = group_verdict::next_view;
    out.reason = fmt::format("not ready within {} ms: further view {} of {}", allowed, in.views + 1, in.max_views);
  } else {
    out.verdict = group_verdict::failed;
    out.reason = fmt::format("{} further views did not help", in.views);
  }
  return out;
}

}  // namespace troupe::policies
