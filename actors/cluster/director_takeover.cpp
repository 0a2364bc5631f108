#include <algorithm>

#include "actors/cluster/director_state.hpp"

namespace troupe::actors {

// -- taking over what runs ----------------------------------------------------------------------------------------

join_reply director_state::rejoin(const rejoin_request& m) {
  join_reply reply;
  reply.epoch = epoch_;
  reply.term = term_;
  auto refuse = [&](errc code, std::string text) {
    note(fmt::format("node {} '{}' cannot go on: {}", m.node.value, m.self.name, text));
    reply.outcome = {code, std::move(text)};
    return reply;
  };
  if (m.self.cluster != options_.cluster) return refuse(errc::stale, "it is of another cluster");
  if (m.term > term_ || (m.term == term_ && !find(m.epoch, m.node, m.inc)))
    return refuse(m.term == term_ ? errc::stale : errc::unavailable,
                  fmt::format("director {} has led it, this is {}", m.term.value, term_.value));
  const bool known = find(m.epoch, m.node, m.inc);
  if (!known) {
    const bool nothing_held = std::all_of(seats_.begin(), seats_.end(), [](const seat& s) { return !s.node.value; });
    if (!taking_ && nothing_held) begin_takeover(m.epoch);
    if (!taking_ || m.epoch != epoch_) return refuse(errc::stale, "the cluster has begun anew");
    for (const auto& r : m.roles) {
      auto s = std::find_if(seats_.begin(), seats_.end(), [&](const seat& x) { return x.assignment == r.assignment; });
      if (s == seats_.end()) return refuse(errc::stale, fmt::format("there is no seat {} now", r.assignment.seat()));
      if (s->node.value && s->node != m.node)
        return refuse(errc::stale, fmt::format("node {} has its seat", s->node.value));
    }
  }
  auto& n = add(m.self, m.node, m.inc);
  n.entry.roles = m.roles;
  for (auto& s : seats_)
    for (const auto& r : m.roles)
      if (s.assignment == r.assignment) {
        s.node = m.node;
        s.open = true;
      }
  if (taking_) taking_->add(m);
  reply.epoch = epoch_;
  reply.node = m.node;
  reply.inc = m.inc;
  reply.heartbeat_ms = to_ms(options_.heartbeat);
  for (const auto& r : m.roles) reply.roles.push_back(r.assignment);
  return reply;
}

// Whoever has joined by now has no seat: it joins again, with a number that is free in that cluster.
void director_state::begin_takeover(cluster_epoch epoch) {
  while (!members_.empty()) {
    links_.unwatch(members_.begin()->second.agent);
    members_.erase(members_.begin());
  }
  numbers_.clear();
  epoch_ = epoch;
  taking_.emplace(epoch, now(self_) + options_.lost_after);
  note(fmt::format("takes over a cluster that runs (epoch {})", epoch.value));
}

void director_state::lead() {
  const auto was = taking_->newest();
  for (const auto& name : taking_->missing()) note(fmt::format("'{}' did not come back", name));
  taking_.reset();
  version_ = std::max(version_, was.version);
  auto number = [&](const node_entry& e) {
    numbers_[e.name] = e.node;
    next_node_ = std::max(next_node_, e.node.value + 1);
    next_incarnation_ = std::max(next_incarnation_, e.inc.value + 1);
  };
  for (const auto& e : was.nodes) number(e);
  for (const auto& [node, n] : members_) number(n.entry);
  for (const auto& g : was.groups)
    if (std::any_of(options_.wanted.begin(), options_.wanted.end(), [&](const auto& w) { return w.group == g.group; }))
      groups_[g.group] = g;
  balancer_ = was.balancer;
  // Roles had changed: as many of each as run now.
  if (!pools_.empty())
    for (auto& s : seats_)
      if ((s.assignment.what == role::prefill || s.assignment.what == role::decode) && !s.node.value) s.open = false;
  note(fmt::format("leads {} nodes that ran before", members_.size()));
  group_step_ = unseen_views;
  changed();
  group_step_ = 1;
}

}  // namespace troupe::actors
