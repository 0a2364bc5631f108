#include "runtime/sim/fault_actions.hpp"

#include <algorithm>
#include <array>

namespace troupe::sim {
namespace {

constexpr nanoseconds look_every = std::chrono::milliseconds(20);
constexpr nanoseconds leave_grace = std::chrono::seconds(5);

node_kind kind_of(node_role r) {
  switch (r) {
    case node_role::director:
      return node_kind::director;
    case node_role::front:
      return node_kind::front;
    case node_role::prefill:
      return node_kind::prefill;
    case node_role::decode:
      return node_kind::decode;
    default:
      return node_kind::storage;
  }
}

bool can_do(fault_kind k) {
  switch (k) {
    case fault_kind::kill:
    case fault_kind::freeze:
    case fault_kind::slow:
    case fault_kind::partition:
    case fault_kind::flap:
    case fault_kind::disk_full:
    case fault_kind::disk_slow:
    case fault_kind::disk_lost:
    case fault_kind::disk_torn:
    case fault_kind::power_loss:
    case fault_kind::director_loss:
    case fault_kind::rolling_restart:
    case fault_kind::clock_jump:
      return true;
    default:
      return false;
  }
}

fault_effect effect_of(fault_kind k) {
  switch (k) {
    case fault_kind::freeze:
      return fault_effect::stalled;
    case fault_kind::slow:
    case fault_kind::disk_slow:
      return fault_effect::slowed;
    case fault_kind::partition:
    case fault_kind::flap:
      return fault_effect::message_swallowed;
    case fault_kind::disk_full:
      return fault_effect::write_refused;
    case fault_kind::disk_lost:
      return fault_effect::write_dropped;
    case fault_kind::disk_torn:
      return fault_effect::write_torn;
    case fault_kind::clock_jump:
      return fault_effect::clock_moved;
    default:
      return fault_effect::process_down;
  }
}

}  // namespace

cluster_shape shape_of(const world& w) {
  cluster_shape s;
  for (auto [role, kind] : {std::pair{node_role::director, node_kind::director},
                            {node_role::front, node_kind::front},
                            {node_role::prefill, node_kind::prefill},
                            {node_role::decode, node_kind::decode},
                            {node_role::storage, node_kind::storage}})
    s.nodes[static_cast<size_t>(role)] = w.count(kind);
  s.nodes[static_cast<size_t>(node_role::encoder)] = 0;
  return s;
}

swarm_rates possible_rates() {
  swarm_rates r;
  for (size_t k = 0; k < fault_kinds; ++k)
    if (!can_do(static_cast<fault_kind>(k))) r.per_hour[k] = 0;
  return r;
}

result<std::unique_ptr<fault_actions>> fault_actions::make(world& w, event_log& log, fault_plan plan) {
  if (auto ok = check_plan(plan, shape_of(w)); !ok) return fail(ok.error());
  for (const auto& f : plan.faults)
    if (!can_do(f.kind))
      return fail(errc::unsupported, "fault {}: {} cannot be done to a simulated cluster yet", f.name,
                  to_string(f.kind));
  return std::unique_ptr<fault_actions>(new fault_actions(w, log, std::move(plan)));
}

fault_actions::fault_actions(world& w, event_log& log, fault_plan plan)
    : world_(w), log_(log), plan_(plan), driver_(std::move(plan), shape_of(w)) {}

fault_actions::~fault_actions() { *alive_ = false; }

void fault_actions::start() {
  begin_ = world_.now();
  if (!plan_.faults.empty()) tick();
}

void fault_actions::progress(uint64_t submitted, uint64_t finished) {
  driver_.requests_submitted(submitted);
  driver_.requests_finished(finished);
}

void fault_actions::tick() {
  for (const auto& a : driver_.due(world_.now() - begin_)) act(a);
  look();
  auto next = world_.now() + look_every;
  if (auto due = driver_.next()) next = std::min(next, std::max(begin_ + *due, world_.now() + nanoseconds(1)));
  world_.events().at(next, [this, alive = alive_] {
    if (*alive) tick();
  });
}

world_node* fault_actions::node_of(node_ref r) { return world_.find(kind_of(r.role), r.index); }

void fault_actions::act(const fault_action& a) {
  auto& f = active_[a.index];
  const auto& what = plan_.faults[a.index];
  if (a.does == fault_action::what::begin || a.does == fault_action::what::next) {
    f.node = node_of(a.target);
    f.peers.clear();
    for (const auto& p : a.peers)
      if (auto* n = node_of(p); n && n != f.node) f.peers.push_back(n);
  }
  if (!f.node) return;
  switch (a.does) {
    case fault_action::what::begin:
      log_.record(happened::fault_began(world_.now(), log_.actor(f.node->name), a.index,
                                        static_cast<uint64_t>(what.kind), static_cast<uint64_t>(a.target.role),
                                        a.target.index));
      f.before = counter(what, f);
      f.seen = false;
      return begin(a, f);
    case fault_action::what::end:
      look();
      end(a, f);
      log_.record(happened::fault_ended(world_.now(), log_.actor(f.node->name), a.index));
      return;
    case fault_action::what::cut:
      return partition(f, what.one_way, true);
    case fault_action::what::join:
      return partition(f, what.one_way, false);
    case fault_action::what::next: {
      auto* n = f.node;
      const auto pid = n->pid;
      world_.leave(*n, leave_grace);
      // The supervisor waits for the process to end, for a little longer than it was given.
      world_.events().after(leave_grace + std::chrono::seconds(2), [this, alive = alive_, n, pid, index = a.index] {
        if (!*alive) return;
        if (n->running && n->pid == pid) world_.kill(*n, crash_kind::killed);
        seen(index, fault_effect::process_down);
        come_back(*n, index);
      });
      return;
    }
  }
}

void fault_actions::partition(const active& f, bool one_way, bool on) {
  for (auto* p : f.peers) {
    world_.cut(*f.node, *p, on);
    if (!one_way) world_.cut(*p, *f.node, on);
  }
}

void fault_actions::begin(const fault_action& a, active& f) {
  const auto& what = plan_.faults[a.index];
  auto& n = *f.node;
  switch (what.kind) {
    case fault_kind::kill:
    case fault_kind::director_loss:
    case fault_kind::power_loss: {
      const bool was = n.running;
      world_.kill(n, what.silent ? crash_kind::silent : crash_kind::killed);
      if (what.kind == fault_kind::power_loss && n.cabinet) n.cabinet->lose_power(world_.random());
      if (was) seen(a.index, fault_effect::process_down);
      return;
    }
    case fault_kind::freeze:
      return world_.freeze(n, true);
    case fault_kind::slow:
      return world_.slow(n, what.factor);
    case fault_kind::partition:
    case fault_kind::flap:
      return partition(f, what.one_way, true);
    case fault_kind::disk_full:
      if (n.cabinet) n.cabinet->fault.full = true;
      return;
    case fault_kind::disk_lost:
      if (n.cabinet) n.cabinet->fault.lost_permille = what.permille;
      return;
    case fault_kind::disk_torn:
      if (n.cabinet) n.cabinet->fault.torn_permille = what.permille;
      return;
    case fault_kind::disk_slow:
      if (n.cabinet) n.cabinet->fault.slow = what.factor;
      return;
    case fault_kind::clock_jump:
      world_.jump_clock(n, nanoseconds(what.jump_ns));
      return seen(a.index, fault_effect::clock_moved);
    default:
      return;
  }
}

void fault_actions::end(const fault_action& a, active& f) {
  const auto& what = plan_.faults[a.index];
  auto& n = *f.node;
  switch (what.kind) {
    case fault_kind::kill:
    case fault_kind::director_loss:
    case fault_kind::power_loss:
      return come_back(n, a.index);
    case fault_kind::freeze:
      return world_.freeze(n, false);
    case fault_kind::slow:
      return world_.slow(n, 1);
    case fault_kind::partition:
    case fault_kind::flap:
      return partition(f, what.one_way, false);
    default:
      if (n.cabinet) n.cabinet->fault = {};
      return;
  }
}

void fault_actions::come_back(world_node& n, size_t index) {
  world_.restart(n);
  if (!n.running) return;
  seen(index, fault_effect::process_up);
}

// What has to grow for the fault to have had an effect.
uint64_t fault_actions::counter(const fault& f, const active& a) {
  const auto& faults = world_.net().faults();
  switch (f.kind) {
    case fault_kind::freeze:
      return faults.held_for(a.node->number) + world_.held();
    case fault_kind::slow:
      return faults.slowed(a.node->number);
    case fault_kind::partition:
    case fault_kind::flap: {
      uint64_t n = 0;
      for (const auto* p : a.peers)
        n += faults.swallowed_between(a.node->number, p->number) + faults.swallowed_between(p->number, a.node->number);
      return n;
    }
    case fault_kind::disk_full:
      return a.node->cabinet ? a.node->cabinet->refused : 0;
    case fault_kind::disk_lost:
      return a.node->cabinet ? a.node->cabinet->lost : 0;
    case fault_kind::disk_torn:
      return a.node->cabinet ? a.node->cabinet->torn : 0;
    case fault_kind::disk_slow:
      return a.node->cabinet ? a.node->cabinet->slowed : 0;
    default:
      return 0;
  }
}

void fault_actions::look() {
  for (auto& [index, f] : active_)
    if (!f.seen && f.node && counter(plan_.faults[index], f) > f.before)
      seen(index, effect_of(plan_.faults[index].kind));
}

void fault_actions::seen(size_t index, fault_effect effect) {
  auto& f = active_[index];
  f.seen = true;
  driver_.observe(index, effect, world_.now() - begin_);
  log_.record(happened::fault_seen(world_.now(), log_.actor(f.node->name), index, static_cast<uint64_t>(effect)));
}

}  // namespace troupe::sim
