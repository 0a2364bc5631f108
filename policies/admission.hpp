// Bounded queues refuse, and say when to try again.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::policies {

/// What the decision needs to know.
struct admission_input {
  uint32_t waiting = 0;
  uint32_t limit = 0;        // refuse at and above
  bool open = true;          // false: draining or no engine
  uint32_t finish_ms = 100;  // how long one request of the queue takes to leave it, as last seen
};

/// The decision.
struct admission_plan {
  bool admit = false;
  uint32_t retry_after_ms = 0;  // 0 when admitted or when trying here again is pointless
  std::string reason;
};

/// A full queue asks to come back when about a quarter of it has left, at least 50 ms and at most 10 s later.
admission_plan plan_admission(const admission_input& in);

}  // namespace troupe::policies
