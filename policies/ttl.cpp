#include "policies/ttl.hpp"

#include <fmt/format.h>

namespace troupe::policies {

result<ttl_plan> plan_ttl(const ttl_input& in) {
  constexpr int64_t most = int64_t{1} << 61;
  const auto bad = [](int64_t v) { return v < 0 || v > most; };
  if (in.step_s <= 0 || in.step_s > most)
    return fail(errc::invalid_argument, "step_s: {} is not a positive time", in.step_s);
  if (in.agent_s <= 0 || in.chatbot_s <= 0 || bad(in.agent_s) || bad(in.chatbot_s))
    return fail(errc::invalid_argument, "agent_s {}, chatbot_s {}: positive times expected", in.agent_s, in.chatbot_s);
  if (bad(in.now_s)) return fail(errc::invalid_argument, "now_s: {}", in.now_s);
  for (size_t i = 0; i < in.expiry_s.size(); ++i)
    if (bad(in.expiry_s[i])) return fail(errc::invalid_argument, "expiry_s[{}]: {}", i, in.expiry_s[i]);

  ttl_plan out;
  while (out.visible < in.expiry_s.size() && in.expiry_s[out.visible] != 0 && in.expiry_s[out.visible] >= in.now_s)
    ++out.visible;
  size_t end = out.visible;
  if (in.touch == ttl_touch::write) {
    end = in.expiry_s.size();
    if (end > 0 && out.visible + 1 < end)
      return fail(errc::invalid_argument,
                  "expiry_s[{}]: written below a parent that is missing or expired; write that one first", out.visible);
  }
  if (in.touch == ttl_touch::probe || end == 0) {
    out.reason = fmt::format("{} of {} visible, nothing extended", out.visible, in.expiry_s.size());
    return out;
  }
  const int64_t ttl = in.traffic == traffic_class::agent ? in.agent_s : in.chatbot_s;
  const int64_t until = in.now_s + ttl, target = (until / in.step_s + (until % in.step_s != 0)) * in.step_s;
  for (size_t i = 0; i < end; ++i)
    if (in.expiry_s[i] < target) out.changes.push_back({i, target});
  out.reason =
      fmt::format("{} of {} visible, {} raised to {}", out.visible, in.expiry_s.size(), out.changes.size(), target);
  return out;
}

}  // namespace troupe::policies
