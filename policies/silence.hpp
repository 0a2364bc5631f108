// When a silent node is given up.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A node that was last heard at heartbeats_ms.back(). Times in milliseconds of the observer's monotonic clock.
struct silence_input {
  std::vector<double> heartbeats_ms;  // ascending, at least one; the last 64 or so
  double silent_ms = 0;               // since the node was heard, without the time in which the observer stood still
  double interval_ms = 500;           // configured, between heartbeats
  double lost_after_ms = 3000;        // configured, at least three intervals
};

/// The decision.
struct silence_plan {
  bool lost = false;
  double phi = 0;  // phi.hpp; 0 while the silence is not worth a look
  std::string reason;
};

/// Not lost before lost_after_ms, however regular the node was; lost after three times that, whatever it was. Between
/// the two, lost when phi is at `down` with a pause that makes a regular node's verdict fall at lost_after_ms: a node
/// that comes late all the time is waited for longer. Errors: no heartbeat, times not finite or not ascending,
/// lost_after_ms below three intervals.
result<silence_plan> plan_silence(const silence_input& in);

}  // namespace troupe::policies
