#include "policies/role_move.hpp"

#include <fmt/format.h>

namespace troupe::policies {

result<role_move> plan_role_move(const role_move_input& in) {
  const auto& roles = in.plan.roles;
  if (in.movable.size() != roles.size())
    return fail(errc::invalid_argument, "movable: {} entries for {} roles", in.movable.size(), roles.size());
  TROUPE_TRY(auto plan, plan_roles(in.plan));
  role_move out;
  int64_t most = 0, least = 0;
  std::optional<uint32_t> shrinks;
  for (uint32_t i = 0; i < roles.size(); ++i) {
    const int64_t change = int64_t{plan.units[i]} - roles[i].units;
    if (change > most) most = change, out.to = i;
    if (change < least && in.movable[i] > 0) least = change, shrinks = i;
  }
  out.reason = std::move(plan.reason);
  if (!out.to || in.spares > 0) return out;
  out.from = shrinks;
  if (!shrinks) {
    out.to.reset();
    out.reason += ", no rank may move";
  }
  return out;
}

}  // namespace troupe::policies
