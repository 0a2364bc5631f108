#include "policies/hit_length.hpp"

#include <algorithm>

namespace troupe::policies {

result<hit_length_plan> plan_hit_length(const hit_length_input& in) {
  if (in.block == 0) return fail(errc::invalid_argument, "hit_length: the block size is 0");
  if (in.block_hit_tokens % in.block != 0 || in.block_hit_tokens > in.prompt_tokens) {
    return fail(errc::invalid_argument,
                "hit_length: {} block-hit tokens of a prompt of {} are no whole blocks of {} inside it",
                in.block_hit_tokens, in.prompt_tokens, in.block);
  }
  for (uint32_t s : in.snapshots) {
    if (s % in.block != 0)
      return fail(errc::invalid_argument, "hit_length: a snapshot at {} is not at a block boundary of {}", s, in.block);
  }
  const int64_t block = in.block;
  int64_t limit = (static_cast<int64_t>(in.prompt_tokens) - block - in.backtrack) / block * block;
  if (in.hit_limit) limit = std::min<int64_t>(*in.hit_limit, in.prompt_tokens) / block * block;
  const int64_t end = std::min<int64_t>(in.block_hit_tokens, limit);  // L1
  if (end <= 0) {
    return hit_length_plan{0, 0,
                           in.block_hit_tokens == 0 ? "miss: no block of the prompt is stored"
                                                    : "miss: the hit lies in the tail that is always run"};
  }
  int64_t snapshot = -1;
  for (uint32_t s : in.snapshots) {
    if (s <= end) snapshot = std::max<int64_t>(snapshot, s);
  }
  const int64_t depth = in.exact ? (static_cast<int64_t>(in.encoder_layers) + 1) * block : block;
  const int64_t reuse = std::max(snapshot, end - depth);
  if (reuse <= 0) {
    return hit_length_plan{
        0, 0,
        fmt::format("miss: {} stored tokens without a window snapshot are no more than the {} to replay", end, depth)};
  }
  hit_length_plan plan{static_cast<uint32_t>(reuse), static_cast<uint32_t>(end - reuse), {}, reuse > end - depth};
  if (plan.replay == 0) {
    plan.reason = fmt::format("hit of {}: a window snapshot lies at its end", end);
  } else {
    plan.reason = fmt::format("hit of {}: {} tokens are replayed for their windows, {}", end, plan.replay,
                              plan.snapshot ? "from the newest snapshot"
                                            : (in.exact ? "enough for exact windows" : "bounded (truncated windows)"));
  }
  return plan;
}

}  // namespace troupe::policies
