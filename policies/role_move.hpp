// Which rank changes its role next, given what every role has to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/role_plan.hpp"
#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Roles as in `plan.roles`; `plan.units` counts the spares too.
struct role_move_input {
  role_plan_input plan;
  uint32_t spares = 0;            // nodes without a role that may have any
  std::vector<uint32_t> movable;  // per role: ranks that may be taken from it (not started for a seat)
};

/// Indices of roles; `to` not set: nobody moves. `from` not set: a spare takes the role.
struct role_move {
  std::optional<uint32_t> to, from;
  std::string reason;
};

/// One rank at a time, towards the role that role_plan.hpp wants to grow most; ties to the first. A spare goes first;
/// otherwise a rank of the role that is to shrink most. Nothing moves while no role needs more: an idle rank is as good
/// where it is. Errors: those of plan_roles; movable not one entry per role.
result<role_move> plan_role_move(const role_move_input& in);

}  // namespace troupe::policies
