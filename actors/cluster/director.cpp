#include "actors/cluster/director.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "actors/protocol/messages.hpp"
#include "policies/group_patience.hpp"
#include "policies/seat_choice.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum director_timer : uint8_t { check_timer = 1 };
constexpr size_t max_events = 64;

struct member {
  node_entry entry;
  node_agent_actor agent;
  std::string wanted_seat;
  nanoseconds heard{0};
};

struct seat {
  role_assignment assignment;
  node_number node;  // 0 = empty
};

// How long a group has been given to get going.
struct trouble {
  std::vector<group_member> members;  // for whom this counts
  nanoseconds since{0};               // it was last well, or its last view was given out
  uint32_t views = 0;                 // given out in vain
  bool failed = false;
  std::string why;
};

int64_t to_ms(nanoseconds t) { return std::chrono::duration_cast<std::chrono::milliseconds>(t).count(); }

class director_state {
 public:
  using interface = director_actor;
  static inline const char* name = "director";
  explicit director_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(director_options options) {
    options_ = std::move(options);
    // Neither an incarnation nor a view version comes twice, over restarts of the director either.
    next_incarnation_ = (options_.epoch.value << 16) + 1;
    version_ = options_.epoch.value << 20;
    balancer_.term = balancer_term{options_.epoch.value << 20};
    for (const auto& w : options_.wanted)
      for (uint32_t i = 0; i < w.count; ++i) seats_.push_back({{w.what, w.group, i, w.count}, {}});
    check_.arm(self_, options_.heartbeat);
    return {
        [this](const join_request& m) { return join(m); },
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
        [this](const status_query&) { return report(); },
        [this](const tick& t) {
          if (!check_.fired(t)) return;
          check_.arm(self_, options_.heartbeat);
          check_members();
          check_groups();
        },
    };
  }

 private:
  // -- members --------------------------------------------------------------------------------------------------

  member* find(cluster_epoch epoch, node_number node, incarnation inc) {
    auto it = members_.find(node);
    if (epoch != options_.epoch || it == members_.end() || it->second.entry.inc != inc) return nullptr;
    return &it->second;
  }

  join_reply join(const join_request& m) {
    join_reply reply;
    reply.epoch = options_.epoch;
    auto refuse = [&](errc code, std::string text) {
      note(fmt::format("refused {}: {}", m.name, text));
      reply.outcome = {code, std::move(text)};
      return reply;
    };
    if (m.cluster != options_.cluster)
      return refuse(errc::invalid_argument, fmt::format("this is cluster '{}', not '{}'", options_.cluster, m.cluster));
    if (m.name.empty()) return refuse(errc::invalid_argument, "a node needs a name");
    if (auto unknown = unknown_seat(m.wanted_seat)) return refuse(errc::invalid_argument, *unknown);
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
    auto& n = members_[known->second];
    n.entry = {known->second, incarnation{next_incarnation_++}, m.name, m.host, m.port, m.pid, false, m.resources, {}};
    n.agent = caf::actor_cast<node_agent_actor>(self_->current_sender());
    n.wanted_seat = m.wanted_seat;
    n.heard = now(self_);
    links_.watch(n.agent, [this, node = n.entry.node, inc = n.entry.inc](const error& e) {
      if (find(options_.epoch, node, inc)) lose(node, "connection lost: " + e.message);
    });
    reply.node = n.entry.node;
    reply.inc = n.entry.inc;
    reply.heartbeat_ms = to_ms(options_.heartbeat);
    reply.roles = give_seat(n);
    note(fmt::format("node {} '{}' joined as {} (incarnation {})", n.entry.node.value, m.name,
                     reply.roles.empty() ? spare_text(n) : reply.roles.front().seat(), n.entry.inc.value));
    changed();
    return reply;
  }

  std::optional<std::string> unknown_seat(const std::string& wanted) const {
    std::string all;
    for (const auto& s : seats_) {
      if (wanted.empty() || wanted == s.assignment.group || wanted == s.assignment.seat()) return std::nullopt;
      all += (all.empty() ? "" : ", ") + s.assignment.seat();
    }
    if (wanted.empty() || wanted == "none") return std::nullopt;  // "none": the node of the director itself
    return fmt::format("there is no seat '{}': the seats are {}", wanted, all);
  }

  std::string spare_text(const member& n) const {
    for (const auto& s : seats_)
      if (s.assignment.seat() == n.wanted_seat)
        return fmt::format("spare: waits for {}, held by node {}", n.wanted_seat, s.node.value);
    return "spare";
  }

  // What policies/seat_choice.hpp says about this node; a seat that has to be cleared is left empty by its holder, who
  // joins again. The roles of the seat start as `starting`.
  std::vector<role_assignment> give_seat(member& n) {
    policies::seat_choice_input in;
    in.wanted = n.wanted_seat;
    for (const auto& s : seats_) {
      auto holder = members_.find(s.node);
      // A storage seat's blocks lie on the disks of the node that was started for it.
      const bool by_name = s.assignment.what == role::front || s.assignment.what == role::storage;
      in.seats.push_back({s.assignment.seat(), s.assignment.group, by_name, s.node.value,
                          holder == members_.end() ? "" : holder->second.wanted_seat});
    }
    const auto choice = policies::choose_seat(in);
    TROUPE_CHECK(choice, "the director's own seats: {}", choice.error().message);
    if (!choice->take) return {};
    auto& s = seats_[*choice->take];
    const auto before = s.node;
    s.node = n.entry.node;  // first, so that no spare takes it
    n.entry.roles = {{s.assignment, role_state::starting, {}, {}, {}}};
    if (choice->clear) lose(before, fmt::format("'{}' needs its seat: {}", n.entry.name, choice->reason));
    return {s.assignment};
  }

  void lose(node_number node, const std::string& why) {
    auto it = members_.find(node);
    if (it == members_.end()) return;
    note(fmt::format("node {} '{}' (incarnation {}) is gone: {}", node.value, it->second.entry.name,
                     it->second.entry.inc.value, why));
    links_.unwatch(it->second.agent);
    members_.erase(it);
    for (auto& s : seats_)
      if (s.node == node) s.node = node_number{};
    // A spare that gets its seat may push another node out, which comes here again: so by number.
    std::vector<node_number> numbers;
    for (auto& [number, n] : members_) numbers.push_back(number);
    for (const auto number : numbers) {
      auto spare = members_.find(number);
      if (spare == members_.end() || !spare->second.entry.roles.empty()) continue;
      auto& n = spare->second;
      auto roles = give_seat(n);
      if (roles.empty()) continue;
      note(fmt::format("spare node {} '{}' takes {}", number.value, n.entry.name, roles.front().seat()));
      tell(self_, n.agent, assign_roles{options_.epoch, n.entry.inc, roles});
    }
    changed();
  }

  void check_members() {
    const auto limit = now(self_) - options_.lost_after;
    std::vector<node_number> silent;
    for (auto& [number, n] : members_)
      if (n.heard < limit) silent.push_back(number);
    for (auto number : silent) lose(number, "no heartbeat");
  }

  heartbeat_reply heard(const heartbeat& m) {
    heartbeat_reply reply;
    reply.epoch = options_.epoch;
    auto* n = find(m.epoch, m.node, m.inc);
    if (!n) {
      reply.outcome = {errc::stale, "this incarnation was given up"};
      return reply;
    }
    n->heard = now(self_);
    // Right after a seat was given to a spare its heartbeat may not know of it yet.
    const bool drains = std::any_of(m.roles.begin(), m.roles.end(), [](const role_report& r) {
      return r.state == role_state::draining || r.state == role_state::drained;
    });
    if (!m.roles.empty() && (m.roles != n->entry.roles || drains != n->entry.draining)) {
      n->entry.roles = m.roles;
      n->entry.draining = drains;
      changed();
    } else if (m.view_version < version_) {
      tell(self_, n->agent, view());
    }
    return reply;
  }

  ack suspects(const suspect_report& m) {
    auto* n = find(m.epoch, m.node, m.inc);
    if (!n) return ack{{errc::stale, "this incarnation was given up"}};
    auto g = groups_.find(m.group);
    if (g == groups_.end() || g->second.epoch != m.view) return ack{{errc::stale, "not the current view of the group"}};
    std::vector<node_number> hit;
    for (const auto& member : g->second.members)
      if (member.node != m.node && std::find(m.ranks.begin(), m.ranks.end(), member.rank) != m.ranks.end())
        hit.push_back(member.node);
    for (auto node : hit)
      lose(node, fmt::format("did not show up in a step of {}, says node {}", m.group, m.node.value));
    return ack{};
  }

  // -- groups that do not get going ---------------------------------------------------------------------------------

  // A view whose ranks are not all ready in time is given out again, with the same members and the next epoch, so that
  // they connect anew (policies/group_patience.hpp says when, and when the group has failed: then the status says what
  // its ranks complain of). A change of its members starts over.
  void check_groups() {
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
  std::pair<std::string, bool> complaint(const group_view& g) const {
    for (const auto& m : g.members) {
      auto it = members_.find(m.node);
      if (it == members_.end() || it->second.entry.inc != m.inc) continue;
      for (const auto& r : it->second.entry.roles) {
        const bool in_view = r.group == g.epoch;
        if (r.assignment.group != g.group || r.state == role_state::draining || r.state == role_state::drained ||
            (r.state == role_state::ready && in_view))
          continue;
        return {
            fmt::format("{} is {}{}{}", r.assignment.seat(), to_string(r.state), r.text.empty() ? "" : ": ", r.text),
            in_view};
      }
    }
    return {};
  }

  // -- views ----------------------------------------------------------------------------------------------------

  void regroup(const wanted_group& w) {
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
    const bool enough = w.what == role::storage || !first || now_there.size() >= w.count;
    if (now_there == g.members || now_there.empty() || !enough) return;
    g = {w.group, w.what, group_epoch{g.epoch.value + 1}, w.count, std::move(now_there)};
    note(fmt::format("{}: view {} of {} of {} ranks", w.group, g.epoch.value, g.members.size(), w.count));
  }

  // The balancers are those of one front, the same one while it is there; a draining front gives them up.
  void choose_balancer() {
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
    balancer_ = {balancer_term{balancer_.term.value + 1}, node, inc, chosen ? chosen->assignment.seat() : ""};
    note(chosen ? fmt::format("the balancers are those of {}", balancer_.seat) : "there are no balancers: no front");
  }

  void changed() {
    for (const auto& w : options_.wanted)
      if (w.what != role::front) regroup(w);
    choose_balancer();
    ++version_;
    const auto v = view();
    for (auto& [number, n] : members_) tell(self_, n.agent, v);
  }

  cluster_view view() const {
    cluster_view v{options_.epoch, version_, {}, {}, balancer_};
    for (auto& [number, n] : members_) v.nodes.push_back(n.entry);
    for (auto& [group, g] : groups_)
      if (g.epoch != group_epoch{}) v.groups.push_back(g);
    return v;
  }

  status_report report() {
    status_report r;
    r.view = view();
    const auto t = now(self_);
    for (auto& [number, n] : members_) r.heard_ms_ago.push_back(to_ms(t - n.heard));
    r.complete = true;
    for (auto& s : seats_) {
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

  void note(std::string text) {
    log::info("director: {}", text);
    if (events_.size() == max_events) events_.pop_front();
    events_.push_back(std::move(text));
  }

  interface::pointer self_;
  peer_links links_;
  director_options options_;
  std::vector<seat> seats_;
  std::map<node_number, member> members_;  // bounded by max_nodes, as numbers_
  std::map<std::string, node_number> numbers_;
  std::map<std::string, group_view> groups_;  // epoch 0: not formed yet
  std::map<std::string, trouble> troubles_;   // of the formed ones
  balancer_seat balancer_;
  std::deque<std::string> events_;  // the last max_events
  uint32_t next_node_ = 1;          // 0 names the director in resolve_request
  uint64_t next_incarnation_ = 0, version_ = 0;
  timer check_{check_timer};
};

}  // namespace

director_actor spawn_director(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                              director_options options) {
  return spawn_on<director_state>(system, node, unit, std::move(options));
}

}  // namespace troupe::actors
