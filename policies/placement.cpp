#include "policies/placement.hpp"

#include <fmt/format.h>

namespace troupe::policies {

placement_plan plan_placement(const placement_input& in) {
  const size_t n = in.usable.size();
  const size_t first = in.last >= n ? 0 : in.last + 1;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (first + i) % n;
    if (in.usable[at]) return {at, fmt::format("round robin, {} skipped", i)};
  }
  return {SIZE_MAX, fmt::format("none of {} usable", n)};
}

}  // namespace troupe::policies
