#include <algorithm>

#include "actors/cluster/director_state.hpp"
#include "policies/role_move.hpp"
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

void director_state::plan_changes() {
  const auto t = now(self_);
  if (t - planned_ < options_.changes.every) return;
  planned_ = t;
  policies::role_move_input in;
  uint32_t least = 0;
  for (auto& p : pools_) {
    if (p.since_change != UINT32_MAX) ++p.since_change;
    if (p.since_change < 2) return;                                                // who has changed joins again
    if (p.heard.count() == 0 || t - p.heard > 3 * options_.changes.every) return;  // nobody says what there is to do
    policies::role_load r;
    r.least = p.least;
    r.most = 0;
    in.movable.push_back(0);
    for (const auto& s : seats_) {
      if (s.assignment.what != p.what) continue;
      ++r.most;
      const auto it = members_.find(s.node);
      if (it == members_.end()) continue;
      // A change is under way while a rank drains or starts.
      const auto& roles = it->second.entry.roles;
      if (!s.open || roles.empty() || roles.front().state != role_state::ready) return;
      ++r.units;
      in.movable.back() += it->second.wanted_seat.empty();
    }
    least += r.least;
    r.rate = p.rate;
    r.queued = p.queued;
    r.since_change = p.since_change;
    in.plan.units += r.units;
    in.plan.roles.push_back(r);
  }
  for (const auto& [number, n] : members_) in.spares += n.entry.roles.empty() && n.wanted_seat.empty();
  in.plan.units += in.spares;
  if (in.plan.units < least) return;  // too few are there: whoever joins gets an empty seat
  const auto move = policies::plan_role_move(in);
  TROUPE_CHECK(move, "the director's own counts: {}", move.error().message);
  if (!move->to) return;
  if (move->from) {
    close_one(pools_[*move->from].what);
    pools_[*move->from].since_change = 0;
  }
  open_one(pools_[*move->to].what);
  pools_[*move->to].since_change = 0;
  note(fmt::format("roles change: prefill and decode {}", move->reason));
  seat_spares();
  changed();
}

void director_state::open_one(role what) {
  const auto s = std::find_if(seats_.begin(), seats_.end(),
                              [&](const seat& x) { return x.assignment.what == what && !x.node.value; });
  TROUPE_CHECK(s != seats_.end(), "no empty seat of role {}, though the plan is within them", to_string(what));
  s->open = true;
}

// The last rank that was not started for its seat.
void director_state::close_one(role what) {
  const auto s = std::find_if(seats_.rbegin(), seats_.rend(), [&](const seat& x) {
    return x.assignment.what == what && x.node.value && members_.at(x.node).wanted_seat.empty();
  });
  TROUPE_CHECK(s != seats_.rend(), "no rank of role {} may move, though the plan says so", to_string(what));
  s->open = false;
  const auto& n = members_.at(s->node);
  const auto drain = std::max<int64_t>(1, to_ms(options_.changes.drain));
  tell(self_, n.agent, assign_roles{epoch_, n.entry.inc, {}, term_, drain});
  note(fmt::format("node {} '{}' leaves {} for another role", n.entry.node.value, n.entry.name, s->assignment.seat()));
}

}  // namespace troupe::actors
