#include <algorithm>

#include "actors/cluster/director_state.hpp"
#include "policies/group_patience.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

// -- groups that do not get going ---------------------------------------------------------------------------------

// A view whose ranks are not all ready in time is given out again, with the same members and the next epoch, so that
// they connect anew (policies/group_patience.hpp says when, and when the group has failed: then the status says what
// its ranks complain of). A change of its members starts over.
void director_state::check_groups() {
  const auto t = now(self_);
  for (auto& [name, g] : groups_) {
    if (g.epoch == group_epoch{}) continue;
    auto& x = troubles_[name];
    const auto [why, broken] = complaint(g);
    if (x.members != g.members || why.empty()) {
      if (x.failed) note(fmt::format("{}: {}", name, why.empty() ? "has recovered" : "is tried again"));
      x = {g.members, t, 0, false, why};
      continue;
    }
    x.why = why;
    if (x.failed) continue;
    policies::group_patience_input in;
    in.now_ms = to_ms(t);
    in.since_ms = to_ms(x.since);
    in.was_ready = broken;
    in.views = x.views;
    in.patience_ms = to_ms(options_.group_patience);
    in.grace_ms = to_ms(options_.group_grace);
    in.max_views = options_.max_views;
    const auto plan = policies::plan_group_patience(in);
    TROUPE_CHECK(plan, "the director's own times: {}", plan.error().message);
    if (plan->verdict == policies::group_verdict::wait) continue;
    x.since = t;
    if (plan->verdict == policies::group_verdict::failed) {
      x.failed = true;
      note(fmt::format("{}: failed, {}: {}", name, plan->reason, why));
      continue;
    }
    ++x.views;
    g.epoch = group_epoch{g.epoch.value + 1};
    note(fmt::format("{}: view {} of the same ranks, because {}", name, g.epoch.value, why));
    changed();
  }
}

// What keeps a rank of the view from being ready in it (empty: nothing), and whether it was in it before.
std::pair<std::string, bool> director_state::complaint(const group_view& g) const {
  for (const auto& m : g.members) {
    auto it = members_.find(m.node);
    if (it == members_.end() || it->second.entry.inc != m.inc) continue;
    for (const auto& r : it->second.entry.roles) {
      const bool in_view = r.group == g.epoch;
      if (r.assignment.group != g.group || r.state == role_state::draining || r.state == role_state::drained ||
          (r.state == role_state::ready && in_view))
        continue;
      return {fmt::format("{} is {}{}{}", r.assignment.seat(), to_string(r.state), r.text.empty() ? "" : ": ", r.text),
              in_view};
    }
  }
  return {};
}

void director_state::regroup(const wanted_group& w) {
  std::vector<group_member> now_there;
  for (const auto& s : seats_) {
    if (s.assignment.group != w.group) continue;
    auto it = members_.find(s.node);
    if (it == members_.end()) continue;
    for (const auto& r : it->second.entry.roles)
      if (r.assignment == s.assignment && !r.ep_address.empty() && r.state != role_state::failed &&
          r.state != role_state::drained)
        now_there.push_back({s.assignment.index, s.node, it->second.entry.inc, r.ep_address});
  }
  auto& g = groups_[w.group];
  const bool first = g.epoch == group_epoch{};
  // A rank can do nothing without the others; a storage node serves what the code allows.
  const bool enough = w.what == role::storage || !first || now_there.size() >= std::min(w.count, w.open);
  if (now_there == g.members || now_there.empty() || !enough) return;
  g = {w.group, w.what, group_epoch{g.epoch.value + (first ? 1 : group_step_)}, w.count, std::move(now_there)};
  note(fmt::format("{}: view {} of {} of {} ranks", w.group, g.epoch.value, g.members.size(), w.count));
}

}  // namespace troupe::actors
