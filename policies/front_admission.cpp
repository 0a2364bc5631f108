#include "policies/front_admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::policies {

result<front_admission_plan> plan_front_admission(const front_admission_input& in) {
  if (in.tenant >= in.tenants.size())
    return fail(errc::invalid_argument, "tenant: {} of {}", in.tenant, in.tenants.size());
  if (!(in.reserve >= 0 && in.reserve <= 1))
    return fail(errc::invalid_argument, "reserve: {} is outside 0 to 1", in.reserve);
  double weights = 0;
  uint64_t held = 0;
  for (size_t i = 0; i < in.tenants.size(); ++i) {
    const auto& t = in.tenants[i];
    if (!(t.weight > 0) || !std::isfinite(t.weight))
      return fail(errc::invalid_argument, "tenants[{}].weight: {} is not positive", i, t.weight);
    held += t.held;
    if (t.held > 0 || i == in.tenant) weights += t.weight;
  }
  const auto& me = in.tenants[in.tenant];
  front_admission_plan out;
  const auto reserved = static_cast<uint64_t>(std::floor(in.reserve * in.limit));
  out.share = static_cast<uint32_t>(
      std::max(1.0, std::floor(static_cast<double>(in.limit - reserved) * (me.weight / weights))));
  const auto refuse = [&](uint16_t status, uint64_t leave, std::string reason) {
    out.status = status;
    out.retry_after_s = static_cast<uint32_t>(std::clamp<uint64_t>((leave * in.finish_ms + 999) / 1000, 1, 60));
    out.reason = std::move(reason);
    return out;
  };
  // A quarter of what stands in the way should have left when the client comes back.
  if (!in.ready) return refuse(503, 0, "not ready");
  if (held >= in.limit) return refuse(429, in.limit / 4 + 1, fmt::format("full: {} of {}", held, in.limit));
  if (me.held >= me.limit)
    return refuse(429, me.limit / 4 + 1, fmt::format("tenant at its limit: {} of {}", me.held, me.limit));
  if (me.held >= out.share && held + reserved >= in.limit)
    return refuse(
        429, me.held / 4 + 1,
        fmt::format("tenant holds {}, its share is {}; the last {} are for others", me.held, out.share, reserved));
  out.admit = true;
  out.status = 200;
  out.reason = fmt::format("{} of {}, tenant {} of share {}", held, in.limit, me.held, out.share);
  return out;
}

result<next_tenant_plan> plan_next_tenant(const next_tenant_input& in) {
  if (!std::isfinite(in.clock)) return fail(errc::invalid_argument, "clock: {}", in.clock);
  next_tenant_plan out;
  out.clock = in.clock;
  for (size_t i = 0; i < in.tenants.size(); ++i) {
    const auto& t = in.tenants[i];
    if (!std::isfinite(t.served)) return fail(errc::invalid_argument, "tenants[{}].served: {}", i, t.served);
    if (t.waiting == 0) continue;
    const double start = std::max(t.served, in.clock);
    if (out.choice == SIZE_MAX || start < out.start) out.choice = i, out.start = start;
  }
  if (out.choice == SIZE_MAX) {
    out.reason = "nobody waits";
    return out;
  }
  out.clock = out.start;
  out.reason = fmt::format("tenant {} at {:.3f}", out.choice, out.start);
  return out;
}

}  // namespace troupe::policies
