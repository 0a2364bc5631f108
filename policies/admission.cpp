#include "policies/admission.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::policies {

admission_plan plan_admission(const admission_input& in) {
  if (!in.open) return {false, 0, "not open"};
  if (in.waiting < in.limit) return {true, 0, fmt::format("{} of {} waiting", in.waiting, in.limit)};
  const uint64_t quarter = std::max<uint64_t>(1, in.limit / 4) * in.finish_ms;
  return {false, static_cast<uint32_t>(std::clamp<uint64_t>(quarter, 50, 10'000)),
          fmt::format("queue full: {} of {}", in.waiting, in.limit)};
}

}  // namespace troupe::policies
