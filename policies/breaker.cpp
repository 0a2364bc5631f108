#include "policies/breaker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace troupe::policies {

result<breaker_plan> plan_breaker(const breaker_input& in) {
  const auto& s = in.settings;
  if (s.faults == 0 || !(s.fault_ratio > 0 && s.fault_ratio <= 1) || s.window_ms <= 0 || s.open_ms <= 0 ||
      s.max_open_ms < s.open_ms || s.max_open_ms > INT64_MAX / 4)
    return fail(
        errc::invalid_argument,
        "settings: faults {}, fault_ratio {}, window_ms {}, open_ms {}, max_open_ms {}; all positive, open <= max_open",
        s.faults, s.fault_ratio, s.window_ms, s.open_ms, s.max_open_ms);
  std::deque<breaker_event> window;  // successes and faults while closed
  bool open = false;
  int64_t until = 0, pause = s.open_ms;
  int64_t last = INT64_MIN;
  uint32_t faults = 0;
  for (size_t i = 0; i < in.events.size(); ++i) {
    const auto& e = in.events[i];
    if (e.at_ms < last || e.at_ms > in.now_ms)
      return fail(errc::invalid_argument, "events[{}].at_ms: {} is before the one before it or after now {}", i,
                  e.at_ms, in.now_ms);
    if (e.at_ms < 0) return fail(errc::invalid_argument, "events[{}].at_ms: {} is negative", i, e.at_ms);
    last = e.at_ms;
    if (e.what != outcome::success && e.what != outcome::worker_fault) continue;
    const bool fault = e.what == outcome::worker_fault;
    if (open) {
      if (e.at_ms < until) continue;
      if (fault) {
        pause = std::min(pause * 2, s.max_open_ms);
        until = e.at_ms + pause;
      } else {
        open = false, pause = s.open_ms, faults = 0;
        window.clear();
      }
      continue;
    }
    window.push_back(e);
    faults += fault;
    while (e.at_ms - window.front().at_ms >= s.window_ms) {
      faults -= window.front().what == outcome::worker_fault;
      window.pop_front();
    }
    if (faults >= s.faults && faults >= s.fault_ratio * static_cast<double>(window.size())) {
      open = true;
      until = e.at_ms + pause;
    }
  }
  breaker_plan out;
  if (!open) {
    out.allow = true;
    out.reason = fmt::format("closed: {} faults of {} in the window", faults, window.size());
  } else if (in.now_ms < until) {
    out.state = breaker_state::open;
    out.wait_ms = until - in.now_ms;
    out.reason = fmt::format("open for {} ms more", out.wait_ms);
  } else {
    out.state = breaker_state::half_open;
    out.allow = !in.probing;
    out.reason = in.probing ? "half open: a probe is under way" : "half open: this one is the probe";
  }
  return out;
}

}  // namespace troupe::policies
