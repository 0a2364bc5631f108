// Which of several schedulers a request goes to, where no balancer is running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::policies {

/// What the decision needs to know.
struct placement_input {
  std::vector<bool> usable;  // candidates in a fixed order
  size_t last = SIZE_MAX;    // the previous choice; SIZE_MAX = none
};

/// The decision.
struct placement_plan {
  size_t choice = SIZE_MAX;  // SIZE_MAX = nobody
  std::string reason;
};

/// Round robin: the next usable one after the last choice.
placement_plan plan_placement(const placement_input& in);

}  // namespace troupe::policies
