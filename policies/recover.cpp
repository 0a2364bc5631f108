#include "policies/recover.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::policies {

result<recover_plan> plan_recover(const recover_input& in) {
  if (in.at.window == 0) return fail(errc::invalid_argument, "at.window: 0");
  if (in.at.known < in.at.prompt_length || in.at.known > in.max_length)
    return fail(errc::invalid_argument, "at.known: {} is not between prompt_length {} and max_length {}", in.at.known,
                in.at.prompt_length, in.max_length);
  recover_plan out;
  const auto act = [&](recover_action a, std::string why, bool resumable = false) {
    out.action = a;
    out.resumable = resumable;
    out.reason = std::move(why);
    return out;
  };
  using enum recover_action;
  if (in.fault == request_fault::cancelled) return act(drop, "cancelled");
  if (in.fault == request_fault::client_error) return act(give_up, "the request is wrong");
  if (in.at.known == in.max_length) return act(finish, "all tokens are out");
  if (in.rank_losses > in.max_rank_losses) return act(give_up, fmt::format("{} ranks died under it", in.rank_losses));
  if (in.left_ms <= 0) return act(give_up, "deadline", true);
  if (in.attempts >= in.max_attempts) return act(give_up, fmt::format("{} attempts", in.attempts), true);
  if (in.fault == request_fault::group_lost) {
    out.after_ms = std::min(in.left_ms, std::max<int64_t>(0, in.view_wait_ms));
    return act(wait_for_view, fmt::format("the group gets a view within {} ms", out.after_ms));
  }
  if (in.fault == request_fault::refused)
    out.after_ms = std::min<int64_t>({int64_t{50} << std::min(in.attempts, 10u), 2'000, in.left_ms / 2});
  out.resume = plan_resume(in.at);
  return act(go_elsewhere,
             fmt::format("attempt {}, {} tokens known, {}", in.attempts + 1, in.at.known, out.resume.reason));
}

}  // namespace troupe::policies
