// Suspicion of a silent node: accrual failure detector over heartbeat times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// What is known of a node's heartbeats. Times in milliseconds of the observer's monotonic clock.
struct phi_input {
  std::vector<double> heartbeats_ms;  // arrival times, ascending; the caller keeps the last 100 or so
  double now_ms = 0;
  double interval_ms = 500;  // configured; stands in for what has not been seen yet
  double pause_ms = 0;       // silence that is accepted on top (a busy machine)
  double suspect_at = 8, down_at = 12;
};

/// How sure we are.
enum class phi_verdict : uint8_t { alive = 0, suspect = 1, down = 2 };

/// phi = -log10 of the probability that a heartbeat comes later than now: at 8, one wrong suspicion in 10^8 silences.
struct phi_plan {
  double phi = 0;
  phi_verdict verdict = phi_verdict::alive;
  double mean_ms = 0, deviation_ms = 0;  // of the gaps, as used
  double suspect_in_ms = 0;              // from now until suspect_at is reached if nothing comes; 0 = reached
  std::string reason;
};

/// Normal model of the gaps (Hayashibara et al., SRDS 2004) with two guards against false alarms: four gaps of
/// interval_ms count as seen before the first one, and the deviation is at least a tenth of the mean or 10 ms. No
/// heartbeat yet: silence counts from time 0 of the clock that the caller gives (pass the join time as the first
/// heartbeat). Errors: times not finite or not ascending, a heartbeat after now, interval <= 0, pause < 0, thresholds
/// not 0 < suspect <= down.
result<phi_plan> plan_phi(const phi_input& in);

}  // namespace troupe::policies
