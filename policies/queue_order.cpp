#include "policies/queue_order.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::policies {

result<queue_order_plan> plan_queue_order(const queue_order_input& in) {
  const auto bad = [](double v) { return !(v >= 0) || !std::isfinite(v) || v > 1e18; };
  if (bad(in.work_ns) || bad(in.longest_ns) || bad(in.head_start_ns))
    return fail(errc::invalid_argument, "work_ns {}, longest_ns {}, head_start_ns {}: between 0 and 1e18", in.work_ns,
                in.longest_ns, in.head_start_ns);
  if (in.priority > 9) return fail(errc::invalid_argument, "priority: {} is above 9", in.priority);
  const double behind = std::min(in.work_ns, in.longest_ns), ahead = in.priority * in.head_start_ns;
  queue_order_plan out;
  out.key_ns = in.arrived_ns + static_cast<int64_t>(behind) - static_cast<int64_t>(ahead);
  out.reason =
      fmt::format("{:.1f} ms back for its length, {:.1f} ms ahead for its priority", behind / 1e6, ahead / 1e6);
  return out;
}

}  // namespace troupe::policies
