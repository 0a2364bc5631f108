#include "policies/prefix_place.hpp"

#include <algorithm>

namespace troupe::policies {

result<prefix_place_plan> place_by_prefix(const prefix_place_input& in) {
  constexpr uint64_t most = uint64_t{1} << 62;
  if (in.instances.empty()) return fail(errc::invalid_argument, "instances: at least one expected");
  uint64_t least = most;
  for (size_t i = 0; i < in.instances.size(); ++i) {
    const auto& c = in.instances[i];
    if (c.matched >= most || c.missed >= most)
      return fail(errc::invalid_argument, "instances[{}]: counts below 2^62 expected", i);
    least = std::min(least, c.missed);
  }
  prefix_place_plan out;
  for (size_t i = 0; i < in.instances.size(); ++i) {
    const auto& c = in.instances[i];
    const int64_t score = static_cast<int64_t>(c.matched) - static_cast<int64_t>(c.missed - least);
    if (out.choice == SIZE_MAX || score > out.score) out.choice = i, out.score = score;
  }
  const auto& c = in.instances[out.choice];
  out.reason = fmt::format("instance {} of {}: {} blocks matched, {} more missed so far than at the least busy",
                           out.choice, in.instances.size(), c.matched, c.missed - least);
  return out;
}

}  // namespace troupe::policies
