#include "policies/read_race.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::policies {

read_race_plan plan_read_race(const read_race_input& in) {
  const int64_t most = std::max<int64_t>(in.at_most_ns, 0), least = std::clamp<int64_t>(in.at_least_ns, 0, most);
  if (in.row_ns <= 0) return {most, "the speed of this rank is not known yet"};
  const bool beyond = in.tokens > 0 && in.row_ns > most / in.tokens;
  const int64_t compute = beyond ? most : in.row_ns * in.tokens;
  return {std::clamp(compute, least, most),
          fmt::format("computing {} tokens takes {}{} ms", in.tokens, beyond ? "over " : "", compute / 1'000'000)};
}

}  // namespace troupe::policies
