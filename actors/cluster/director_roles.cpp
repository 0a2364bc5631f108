#include <algorithm>

#include "actors/cluster/director_state.hpp"
#include "policies/role_plan.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

// -- roles that change with the load ------------------------------------------------------------------------------

void director_state::loaded(const pool_load& m) {
  if (!find(m.epoch, m.node, m.inc) || m.term != balancer_.term) return;
  for (auto& p : pools_) {
    if (p.what != m.what) continue;
    const auto t = now(self_);
    const double share = p.heard.count() == 0
                             ? 1.0
                             : std::min(1.0, static_cast<double>((t - p.heard).count()) /
                                                 static_cast<double>(3 * options_.changes.every.count()));
    p.rate += (m.rate - p.rate) * share;
    p.queued = m.queued;
    p.heard = t;
  }
}

// One rank at a time, and only towards a role that needs more: an idle rank is as good where it is.
void director_state::plan_changes() {
  const auto t = now(self_);
  if (t - planned_ < options_.changes.every) return;
  planned_ = t;
  policies::role_plan_input in;
  uint32_t least = 0;
  for (auto& p : pools_) {
    if (p.since_change != UINT32_MAX) ++p.since_change;
    if (p.since_change < 2) return;                                                // who has changed joins again
    if (p.heard.count() == 0 || t - p.heard > 3 * options_.changes.every) return;  // nobody says what there is to do
    policies::role_load r;
    r.least = p.least;
    r.most = 0;
    for (const auto& s : seats_) {
      if (s.assignment.what != p.what) continue;
      ++r.most;
      const auto it = members_.find(s.node);
      if (it == members_.end()) continue;
      // A change is under way while a rank drains or starts.
      const auto& roles = it->second.entry.roles;
      if (!s.open || roles.empty() || roles.front().state != role_state::ready) return;
      ++r.units;
    }
    least += r.least;
    r.rate = p.rate;
    r.queued = p.queued;
    r.since_change = p.since_change;
    in.units += r.units;
    in.roles.push_back(r);
  }
  uint32_t spares = 0;
  for (const auto& [number, n] : members_) spares += n.entry.roles.empty() && n.wanted_seat.empty();
  in.units += spares;
  if (in.units < least) return;
  const auto plan = policies::plan_roles(in);
  TROUPE_CHECK(plan, "the director's own counts: {}", plan.error().message);
  size_t grows = SIZE_MAX;
  for (size_t i = 0; i < pools_.size(); ++i)
    if (plan->units[i] > in.roles[i].units) grows = i;
  if (grows == SIZE_MAX) return;
  if (spares == 0) {
    const size_t other = 1 - grows;
    if (plan->units[other] >= in.roles[other].units || !close_one(pools_[other].what)) return;
    pools_[other].since_change = 0;
  }
  if (!open_one(pools_[grows].what)) return;
  pools_[grows].since_change = 0;
  note(fmt::format("roles change: prefill and decode {}", plan->reason));
  seat_spares();
  changed();
}

bool director_state::open_one(role what) {
  for (auto& s : seats_) {
    if (s.assignment.what != what || s.node.value) continue;
    return s.open = true;
  }
  return false;
}

// The last rank that was not started for its seat.
bool director_state::close_one(role what) {
  for (auto s = seats_.rbegin(); s != seats_.rend(); ++s) {
    auto it = members_.find(s->node);
    if (s->assignment.what != what || !s->open || it == members_.end() || !it->second.wanted_seat.empty()) continue;
    s->open = false;
    const auto& n = it->second;
    const auto drain = std::max<int64_t>(1, to_ms(options_.changes.drain));
    tell(self_, n.agent, assign_roles{epoch_, n.entry.inc, {}, term_, drain});
    note(
        fmt::format("node {} '{}' leaves {} for another role", n.entry.node.value, n.entry.name, s->assignment.seat()));
    return true;
  }
  return false;
}

}  // namespace troupe::actors
