#include "actors/cluster/director.hpp"

#include <algorithm>

#include "actors/cluster/director_state.hpp"
#include "policies/seat_choice.hpp"
#include "policies/silence.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

director_state::interface::behavior_type director_state::make_behavior(director_options options) {
  options_ = std::move(options);
  // Neither an incarnation nor a view version comes twice, over restarts of the director either.
  epoch_ = options_.epoch;
  term_ = director_term{options_.epoch.value};
  settle_until_ = now(self_) + options_.settle;
  next_incarnation_ = (term_.value << 16) + 1;
  version_ = term_.value << 20;
  balancer_.term = balancer_term{term_.value << 20};
  for (const auto& w : options_.wanted)
    for (uint32_t i = 0; i < w.count; ++i) seats_.push_back({{w.what, w.group, i, w.count}, {}, i < w.open});
  if (options_.changes.on)
    pools_ = {{role::prefill, options_.changes.least_prefill}, {role::decode, options_.changes.least_decode}};
  next_check();
  return {
      [this](const join_request& m) { return join(m); },
      [this](const rejoin_request& m) { return rejoin(m); },
      [this](const heartbeat& m) { return heard(m); },
      [this](const suspect_report& m) { return suspects(m); },
      [this](const leave_request& m) {
        if (!find(m.epoch, m.node, m.inc)) return ack{{errc::stale, "no such member"}};
        lose(m.node, "left");
        return ack{};
      },
      [this](const dial_request& m) {
        if (auto it = members_.find(m.to); it != members_.end()) tell(self_, it->second.agent, m);
      },
      [this](const pool_load& m) { loaded(m); },
      [this](const status_query&) { return report(); },
      [this](const tick& t) {
        if (spread_.fired(t)) return spread();
        if (!check_.fired(t)) return;
        check_members();
        next_check();
        if (taking_ && taking_->over(now(self_))) lead();
        if (!taking_) check_groups();
        if (!taking_ && !pools_.empty()) plan_changes();
      },
  };
}

// -- members --------------------------------------------------------------------------------------------------

director_state::member* director_state::find(cluster_epoch epoch, node_number node, incarnation inc) {
  auto it = members_.find(node);
  if (epoch != epoch_ || it == members_.end() || it->second.entry.inc != inc) return nullptr;
  return &it->second;
}

join_reply director_state::join(const join_request& m) {
  join_reply reply;
  reply.epoch = epoch_;
  reply.term = term_;
  auto refuse = [&](errc code, std::string text) {
    note(fmt::format("refused {}: {}", m.name, text));
    reply.outcome = {code, std::move(text)};
    return reply;
  };
  if (m.cluster != options_.cluster)
    return refuse(errc::invalid_argument, fmt::format("this is cluster '{}', not '{}'", options_.cluster, m.cluster));
  if (m.name.empty()) return refuse(errc::invalid_argument, "a node needs a name");
  if (auto unknown = unknown_seat(m.wanted_seat)) return refuse(errc::invalid_argument, *unknown);
  if (taking_) taking_->replaced(m.name);
  if (taking_ || (now(self_) < settle_until_ && m.wanted_seat != "none")) {
    reply.outcome = {errc::unavailable, "the director has just started and hears who is there: ask again"};
    return reply;
  }
  auto known = numbers_.find(m.name);
  if (known != numbers_.end()) {
    if (auto old = members_.find(known->second); old != members_.end()) {
      // The same process joins again, or its successor does. A second process of the same name has to wait until the
      // first is gone.
      const auto& e = old->second.entry;
      if (e.pid != m.pid || e.host != m.host)
        return refuse(errc::unavailable, fmt::format("a node '{}' is alive (pid {} on {})", m.name, e.pid, e.host));
      lose(known->second, "joins again");
    }
  } else if (numbers_.size() >= options_.max_nodes) {
    return refuse(errc::exhausted, fmt::format("{} nodes have joined", numbers_.size()));
  } else {
    known = numbers_.emplace(m.name, node_number{next_node_++}).first;
  }
  auto& n = add(m, known->second, incarnation{next_incarnation_++});
  reply.node = n.entry.node;
  reply.inc = n.entry.inc;
  reply.heartbeat_ms = to_ms(options_.heartbeat);
  reply.roles = give_seat(n);
  note(fmt::format("node {} '{}' joined as {} (incarnation {})", n.entry.node.value, m.name,
                   reply.roles.empty() ? spare_text(n) : reply.roles.front().seat(), n.entry.inc.value));
  changed();
  return reply;
}

director_state::member& director_state::add(const join_request& m, node_number node, incarnation inc) {
  auto& n = members_[node];
  n.entry = {node, inc, m.name, m.host, m.port, m.pid, false, m.resources, {}};
  n.agent = caf::actor_cast<node_agent_actor>(self_->current_sender());
  n.wanted_seat = m.wanted_seat;
  n.heard = now(self_);
  n.beats_ms = {static_cast<double>(to_ms(n.heard))};
  links_.watch(n.agent, [this, node, inc](const error& e) {
    if (find(epoch_, node, inc)) lose(node, "connection lost: " + e.message);
  });
  return n;
}

std::optional<std::string> director_state::unknown_seat(const std::string& wanted) const {
  std::string all;
  for (const auto& s : seats_) {
    if (wanted.empty() || wanted == s.assignment.group || wanted == s.assignment.seat()) return std::nullopt;
    all += (all.empty() ? "" : ", ") + s.assignment.seat();
  }
  if (wanted.empty() || wanted == "none") return std::nullopt;  // "none": the node of the director itself
  return fmt::format("there is no seat '{}': the seats are {}", wanted, all);
}

std::string director_state::spare_text(const member& n) const {
  for (const auto& s : seats_)
    if (s.assignment.seat() == n.wanted_seat)
      return fmt::format("spare: waits for {}, held by node {}", n.wanted_seat, s.node.value);
  return "spare";
}

// What policies/seat_choice.hpp says about this node; a seat that has to be cleared is left empty by its holder, who
// joins again. The roles of the seat start as `starting`.
std::vector<role_assignment> director_state::give_seat(member& n) {
  policies::seat_choice_input in;
  in.wanted = n.wanted_seat;
  std::vector<size_t> open;
  for (size_t i = 0; i < seats_.size(); ++i) {
    const auto& s = seats_[i];
    if (!s.open) continue;
    open.push_back(i);
    auto holder = members_.find(s.node);
    // A storage seat's blocks lie on the disks of the node that was started for it.
    const bool by_name = s.assignment.what == role::front || s.assignment.what == role::storage;
    in.seats.push_back({s.assignment.seat(), s.assignment.group, by_name, s.node.value,
                        holder == members_.end() ? "" : holder->second.wanted_seat});
  }
  const auto choice = policies::choose_seat(in);
  TROUPE_CHECK(choice, "the director's own seats: {}", choice.error().message);
  if (!choice->take) return {};
  auto& s = seats_[open[*choice->take]];
  const auto before = s.node;
  s.node = n.entry.node;  // first, so that no spare takes it
  n.entry.roles = {{s.assignment, role_state::starting, {}, {}, {}}};
  if (choice->clear) lose(before, fmt::format("'{}' needs its seat: {}", n.entry.name, choice->reason));
  return {s.assignment};
}

void director_state::lose(node_number node, const std::string& why) {
  auto it = members_.find(node);
  if (it == members_.end()) return;
  note(fmt::format("node {} '{}' (incarnation {}) is gone: {}", node.value, it->second.entry.name,
                   it->second.entry.inc.value, why));
  links_.unwatch(it->second.agent);
  members_.erase(it);
  for (auto& s : seats_)
    if (s.node == node) s.node = node_number{};
  if (taking_) return;
  seat_spares();
  changed();
}

// A spare that gets its seat may push another node out, which comes here again: so by number.
void director_state::seat_spares() {
  std::vector<node_number> numbers;
  for (auto& [number, n] : members_) numbers.push_back(number);
  for (const auto number : numbers) {
    auto spare = members_.find(number);
    if (spare == members_.end() || !spare->second.entry.roles.empty()) continue;
    auto& n = spare->second;
    auto roles = give_seat(n);
    if (roles.empty()) continue;
    note(fmt::format("spare node {} '{}' takes {}", number.value, n.entry.name, roles.front().seat()));
    tell(self_, n.agent, assign_roles{epoch_, n.entry.inc, roles, term_});
  }
}

void director_state::next_check() {
  check_.arm(self_, options_.heartbeat);
  check_due_ = now(self_) + options_.heartbeat;
}

void director_state::check_members() {
  const auto t = now(self_);
  // A director that was frozen has heard nobody meanwhile, and what they sent may still wait behind this tick.
  const auto late = t - check_due_;
  std::vector<node_number> silent;
  for (auto& [number, n] : members_) {
    if (late > options_.heartbeat) n.heard += late;
    if (gone(n, t)) silent.push_back(number);
  }
  for (auto number : silent) lose(number, "no heartbeat");
}

bool director_state::gone(const member& n, nanoseconds at) const {
  if (at - n.heard <= options_.lost_after) return false;  // what the policy says, without its cost
  policies::silence_input in;
  in.heartbeats_ms = n.beats_ms;
  in.silent_ms = static_cast<double>(to_ms(at - n.heard));
  in.interval_ms = static_cast<double>(to_ms(options_.heartbeat));
  in.lost_after_ms = std::max(static_cast<double>(to_ms(options_.lost_after)), 3 * in.interval_ms);
  const auto plan = policies::plan_silence(in);
  TROUPE_CHECK(plan, "the director's own times: {}", plan.error().message);
  return plan->lost;
}

heartbeat_reply director_state::heard(const heartbeat& m) {
  heartbeat_reply reply;
  reply.epoch = epoch_;
  reply.term = term_;
  auto* n = find(m.epoch, m.node, m.inc);
  if (!n) {
    reply.outcome = {errc::stale, "this incarnation was given up"};
    return reply;
  }
  n->heard = now(self_);
  const auto at = static_cast<double>(to_ms(n->heard));
  // A report of a changed role comes between two heartbeats and says nothing about their rhythm.
  if (at - n->beats_ms.back() >= static_cast<double>(to_ms(options_.heartbeat)) / 2) {
    if (n->beats_ms.size() == max_beats) n->beats_ms.erase(n->beats_ms.begin());
    n->beats_ms.push_back(at);
  }
  // Right after a seat was given to a spare its heartbeat may not know of it yet.
  const bool drains = std::any_of(m.roles.begin(), m.roles.end(), [](const role_report& r) {
    return r.state == role_state::draining || r.state == role_state::drained;
  });
  if (!m.roles.empty() && (m.roles != n->entry.roles || drains != n->entry.draining)) {
    n->entry.roles = m.roles;
    n->entry.draining = drains;
    changed();
  } else if (m.view_version < version_ && !taking_) {
    tell(self_, n->agent, view());
  }
  return reply;
}

ack director_state::suspects(const suspect_report& m) {
  auto* n = find(m.epoch, m.node, m.inc);
  if (!n) return ack{{errc::stale, "this incarnation was given up"}};
  auto g = groups_.find(m.group);
  if (g == groups_.end() || g->second.epoch != m.view) return ack{{errc::stale, "not the current view of the group"}};
  std::vector<node_number> hit;
  for (const auto& member : g->second.members)
    if (member.node != m.node && std::find(m.ranks.begin(), m.ranks.end(), member.rank) != m.ranks.end())
      hit.push_back(member.node);
  for (auto node : hit) lose(node, fmt::format("did not show up in a step of {}, says node {}", m.group, m.node.value));
  return ack{};
}

// -- views ----------------------------------------------------------------------------------------------------

// The balancers are those of one front, the same one while it is there; a draining front gives them up.
void director_state::choose_balancer() {
  const auto can = [&](const seat& s) {
    auto it = members_.find(s.node);
    if (s.assignment.what != role::front || it == members_.end() || it->second.entry.draining) return false;
    const auto& roles = it->second.entry.roles;
    return roles.empty() || roles.front().state != role_state::failed;
  };
  const seat* chosen = nullptr;
  for (const auto& s : seats_) {
    if (!can(s)) continue;
    const bool holds = s.node == balancer_.node && members_.at(s.node).entry.inc == balancer_.inc;
    if (!chosen || holds) chosen = &s;
  }
  const auto node = chosen ? chosen->node : node_number{};
  const auto inc = chosen ? members_.at(node).entry.inc : incarnation{};
  if (node == balancer_.node && inc == balancer_.inc) return;
  const auto term = balancer_term{std::max(balancer_.term.value, term_.value << 20) + 1};
  balancer_ = {term, node, inc, chosen ? chosen->assignment.seat() : ""};
  note(chosen ? fmt::format("the balancers are those of {}", balancer_.seat) : "there are no balancers: no front");
}

void director_state::changed() {
  if (taking_) return;
  for (const auto& w : options_.wanted)
    if (w.what != role::front) regroup(w);
  choose_balancer();
  ++version_;
  if (spread_.armed()) return;  // it goes out with the next one
  const auto since = now(self_) - spread_at_;
  if (since < options_.view_every) return spread_.arm(self_, options_.view_every - since);
  spread();
}

void director_state::spread() {
  spread_at_ = now(self_);
  const auto v = view();
  for (auto& [number, n] : members_) tell(self_, n.agent, v);
}

cluster_view director_state::view() const {
  cluster_view v{epoch_, version_, {}, {}, balancer_, term_};
  for (auto& [number, n] : members_) v.nodes.push_back(n.entry);
  for (auto& [group, g] : groups_)
    if (g.epoch != group_epoch{}) v.groups.push_back(g);
  return v;
}

status_report director_state::report() {
  status_report r;
  r.view = view();
  const auto t = now(self_);
  for (auto& [number, n] : members_) r.heard_ms_ago.push_back(to_ms(t - n.heard));
  r.complete = !taking_;
  for (auto& s : seats_) {
    if (!s.open) continue;
    auto it = members_.find(s.node);
    if (it == members_.end()) r.empty_seats.push_back(s.assignment);
    r.complete = r.complete && it != members_.end() && !it->second.entry.roles.empty() &&
                 it->second.entry.roles.front().state == role_state::ready;
  }
  for (auto& n : r.view.nodes) {
    for (auto& role : n.roles) {
      auto t = troubles_.find(role.assignment.group);
      if (t == troubles_.end() || !t->second.failed) continue;
      role.state = role_state::failed;
      role.text = fmt::format("{} further group views did not help: {}; restart one of its ranks", t->second.views,
                              t->second.why);
      r.complete = false;
    }
  }
  r.events.assign(events_.begin(), events_.end());
  return r;
}

void director_state::note(std::string text) {
  log::info("director: {}", text);
  if (events_.size() == max_events) events_.pop_front();
  events_.push_back(std::move(text));
}

director_actor spawn_director(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                              director_options options) {
  return spawn_on<director_state>(system, node, unit, std::move(options));
}

}  // namespace troupe::actors
