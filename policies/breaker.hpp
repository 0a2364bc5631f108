// Circuit breaker in front of one worker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// How a request at the worker ended.
enum class outcome : uint8_t {
  success = 0,
  worker_fault = 1,  // peer lost, timeout, internal error, corrupt answer
  client_error = 2,  // the request was wrong: says nothing against the worker
  cancelled = 3,     // by the client
  refused = 4,       // full or draining: it works, it just has enough
};

/// One ended request.
struct breaker_event {
  int64_t at_ms = 0;
  outcome what = outcome::success;
};

/// Bounds of the breaker. All > 0.
struct breaker_settings {
  uint32_t faults = 5;       // opens at so many within the window ...
  double fault_ratio = 0.5;  // ... if they are at least this part of successes + faults
  int64_t window_ms = 10'000;
  int64_t open_ms = 1'000;  // first pause; doubles with each probe that fails, up to
  int64_t max_open_ms = 30'000;
};

/// closed: requests pass. open: none. half_open: one probe passes, the next waits for its end.
enum class breaker_state : uint8_t { closed = 0, open = 1, half_open = 2 };

/// The events of one worker since it joined (or since the last closed state; older ones change nothing) in order of
/// time.
struct breaker_input {
  breaker_settings settings;
  int64_t now_ms = 0;
  bool probing = false;  // a probe is under way
  std::vector<breaker_event> events;
};

/// What the caller may do now.
struct breaker_plan {
  breaker_state state = breaker_state::closed;
  bool allow = false;   // send this request; in half_open it is the probe
  int64_t wait_ms = 0;  // until a probe is allowed, when open
  std::string reason;
};

/// Replays the events. Only success and worker_fault count; a fault while open (of a request sent before) changes
/// nothing; in half_open a success closes and forgets all faults, a fault opens again for twice as long, anything else
/// leaves it. Errors: settings not positive, events not in order of time or after now.
result<breaker_plan> plan_breaker(const breaker_input& in);

}  // namespace troupe::policies
