#include "policies/pages.hpp"

#include <fmt/format.h>

namespace troupe::policies {

page_plan plan_pages(const page_input& in) {
  page_plan out;
  const size_t n = in.running.size();
  out.grow.assign(n, 0);
  out.runs.assign(n, false);
  uint32_t free = in.free, given = 0;
  size_t starved = n;
  for (size_t i = 0; i < n; ++i) {
    const auto& s = in.running[i];
    const uint32_t more = s.needed > s.held ? s.needed - s.held : 0;
    // Once one goes without, younger ones do not take the pages that it waits for.
    if (more > 0 && (more > free || starved != n)) {
      if (starved == n) starved = i;
      continue;
    }
    out.grow[i] = more;
    out.runs[i] = true;
    free -= more;
    given += more;
  }
  if (starved != n) {
    const auto& s = in.running[starved];
    const uint32_t missing = s.needed - s.held;
    uint32_t coming = free + in.returning;
    for (size_t i = n; i-- > starved + 1 && coming < missing;) {
      if (in.running[i].held == 0) continue;
      coming += in.running[i].held + out.grow[i];
      out.grow[i] = 0;
      out.runs[i] = false;
      out.preempt.push_back(i);
    }
  }
  out.reason = starved == n
                   ? fmt::format("{} pages to {}", given, n)
                   : fmt::format("{} pages short for number {}, {} given up",
                                 in.running[starved].needed - in.running[starved].held, starved, out.preempt.size());
  return out;
}

}  // namespace troupe::policies
