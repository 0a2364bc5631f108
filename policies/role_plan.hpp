// How many units (EP groups or single ranks) serve as encoder, prefill and decode.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One role. Load is measured in units: a rate of 2.5 is work that keeps two and a half units busy.
struct role_load {
  uint32_t units = 0;                     // that have the role now, starting ones included
  uint32_t least = 0, most = UINT32_MAX;  // bounds from the configuration
  double rate = 0;    // unit-seconds of work that arrive per second, smoothed by the caller over about a minute
  double queued = 0;  // unit-seconds of work that waits
  uint32_t since_change = UINT32_MAX;  // plans since the count changed last
};

/// The pool. Roles in a fixed order, e.g. encoder, prefill, decode.
struct role_plan_input {
  std::vector<role_load> roles;
  uint32_t units = 0;   // of the pool, free ones included
  double target = 0.7;  // utilisation to aim at when a count changes
  double high = 0.85;   // grow above this ...
  double low = 0.55;    // ... shrink only when one unit fewer would still be below this; low <= target <= high
  double drain_s = 30;  // queues are to be empty after so long
  uint32_t hold = 6;    // plans between two changes of a role, unless it must grow
};

/// Wanted counts, in the order of the roles; they never exceed the pool.
struct role_plan {
  std::vector<uint32_t> units;
  bool change = false;
  bool short_of_units = false;  // the pool cannot give every role its target
  std::string reason;
};

/// need = rate + queued / drain_s. A role grows to ceil(need / target) when need > high * units, and shrinks to it when
/// need < low * (units - 1) and nothing queues, not sooner than `hold` plans after its last change. Between the two it
/// stays, so a steady or a slightly noisy load never moves it twice. When the wanted counts exceed the pool, units are
/// dealt one by one to the role with the highest need per unit, and an exchange between roles happens only if it lowers
/// the highest need per unit by a tenth. Without traffic every role ends at its least. Errors: rates or queues negative
/// or not finite, least > most, the sum of least above the pool, the sum of units above the pool, thresholds not 0 <
/// low <= target <= high <= 1, drain_s <= 0.
result<role_plan> plan_roles(const role_plan_input& in);

}  // namespace troupe::policies
