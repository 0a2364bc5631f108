#include "policies/chunk.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::policies {

chunk_plan plan_chunks(const chunk_input& in) {
  chunk_plan out;
  const size_t n = in.remaining.size();
  out.rows.assign(n, 0);
  if (n == 0 || in.budget == 0) {
    out.reason = n == 0 ? "no prompts" : "no budget";
    return out;
  }
  uint32_t left = in.budget;
  const uint32_t share = static_cast<uint32_t>(in.budget / 2 / n);
  for (size_t i = 0; i < n; ++i) {
    out.rows[i] = std::min(share, in.remaining[i]);
    left -= out.rows[i];
  }
  for (size_t i = 0; i < n && left > 0; ++i) {
    const uint32_t more = std::min(left, in.remaining[i] - out.rows[i]);
    out.rows[i] += more;
    left -= more;
  }
  out.reason = fmt::format("{} of {} rows to {} prompts, share {}", in.budget - left, in.budget, n, share);
  return out;
}

}  // namespace troupe::policies
