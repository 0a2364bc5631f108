// Whether a plan keeps the engine's contract, decided when it is submitted, from what the plans before it will have
// done.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/engine/engine.hpp"

namespace troupe::kernels {

/// What is known of a slot once all submitted plans have run. Decoding moves lengths by amounts nobody knows yet, so
/// they are lower bounds from the first sample on.
struct planned_slot {
  bool open = false;
  bool sampled = false;       // a token has been or will be sampled
  uint32_t committed = 0;     // rows in place
  uint32_t known = 0;         // tokens known
  uint32_t pages = 0;         // in its table
  uint32_t windows_from = 0;  // where its windows came from a snapshot: decoder layers have nothing before it
};

/// The planned state of all slots. Value type, so that a plan is checked on a copy.
struct planned_state {
  std::vector<planned_slot> slots;
  uint64_t last_plan = 0;
};

/// Checks `plan` and moves `state` behind it. On an error (invalid_argument; the message names the field) the state is
/// unspecified: pass a copy.
result<void> check_plan(const step_plan& plan, const engine_limits& limits, const model_facts& facts,
                        planned_state& state);

}  // namespace troupe::kernels
