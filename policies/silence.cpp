#include "policies/silence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "policies/phi.hpp"

namespace troupe::policies {

result<silence_plan> plan_silence(const silence_input& in) {
  if (in.heartbeats_ms.empty()) return fail(errc::invalid_argument, "heartbeats_ms: none; begin with the join");
  if (!std::isfinite(in.silent_ms) || in.silent_ms < 0)
    return fail(errc::invalid_argument, "silent_ms: {}", in.silent_ms);
  if (!(in.interval_ms > 0) || !(in.lost_after_ms >= 3 * in.interval_ms) || !std::isfinite(in.lost_after_ms))
    return fail(errc::invalid_argument, "lost_after_ms {}: at least three times interval_ms {}", in.lost_after_ms,
                in.interval_ms);
  silence_plan out;
  if (in.silent_ms <= in.lost_after_ms || in.silent_ms > 3 * in.lost_after_ms) {
    out.lost = in.silent_ms > in.lost_after_ms;
    out.reason = fmt::format("silent {:.0f} ms, {} {:.0f} ms", in.silent_ms, out.lost ? "more than" : "within",
                             out.lost ? 3 * in.lost_after_ms : in.lost_after_ms);
    return out;
  }
  phi_input p;
  p.heartbeats_ms = in.heartbeats_ms;
  p.now_ms = in.heartbeats_ms.back() + in.silent_ms;
  p.interval_ms = in.interval_ms;
  // At phi 12 a node with a deviation of a tenth is 1.7 intervals late.
  p.pause_ms = std::max(0.0, in.lost_after_ms - 1.75 * in.interval_ms);
  TROUPE_TRY(auto plan, plan_phi(p));
  out.lost = plan.verdict == phi_verdict::down;
  out.phi = plan.phi;
  out.reason = std::move(plan.reason);
  return out;
}

}  // namespace troupe::policies
