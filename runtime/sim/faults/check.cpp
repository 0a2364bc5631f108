// Whether a plan makes sense for a cluster.
#include <map>

#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

using trigger = fault_trigger::what;
constexpr nanoseconds longest_time = std::chrono::hours(24 * 365);

// Members of one fault, apart from its relation to others.
result<void> check_fault(const fault& f, const cluster_shape& shape) {
  const auto& row = row_of(f.kind);
  const auto bad = [&](const char* member, std::string what) {
    return fail(errc::invalid_argument, "fault {}: {}: {}", f.name, member, what);
  };
  const auto only = [&](const char* key, bool is_default) { return is_default || has_word(row.keys, key); };
  const fault usual;
  if (!only("silent", !f.silent)) return bad("silent", std::string(row.name) + " has none");
  if (!only("one_way", !f.one_way)) return bad("one_way", std::string(row.name) + " has none");
  if (!only("lasts", f.lasts == nanoseconds(0))) return bad("lasts", std::string(row.name) + " has none");
  if (!only("factor", f.factor == usual.factor)) return bad("factor", std::string(row.name) + " has none");
  if (!only("period", f.period == usual.period)) return bad("period", std::string(row.name) + " has none");
  if (!only("permille", f.permille == usual.permille)) return bad("permille", std::string(row.name) + " has none");
  if (!only("jump", f.jump_ns == 0)) return bad("jump", std::string(row.name) + " has none");
  if (!only("peer", f.peer == usual.peer)) return bad("peer", std::string(row.name) + " has none");
  if (!only("target", f.target == usual.target)) return bad("target", std::string(row.name) + " has none");
  if (f.lasts < nanoseconds(0) || f.lasts > longest_time) return bad("lasts", "0 to 8760h expected");
  if (f.factor < 2 || f.factor > 1'000) return bad("factor", "2 to 1000 expected");
  if (f.period < std::chrono::milliseconds(1) || f.period > longest_time) return bad("period", "1ms to 8760h expected");
  if (f.permille < 1 || f.permille > 1'000) return bad("permille", "1 to 1000 expected");
  if (f.kind == fault_kind::clock_jump && f.jump_ns == 0) return bad("jump", "a time other than 0 expected");
  if (f.jump_ns > longest_time.count() || f.jump_ns < -longest_time.count()) return bad("jump", "up to 8760h expected");
  if (f.when.at < nanoseconds(0) || f.when.at > longest_time) return bad("at", "0 to 8760h expected");
  if (f.when.on == trigger::busy && f.when.count == 0) return bad("when", "busy: requests, at least 1, expected");
  if (f.when.on == trigger::busy && shape.of(f.when.role) == 0)
    return bad("when", fmt::format("the cluster has no {} node", to_string(f.when.role)));
  if (*row.roles == '\0') return {};

  using pick = fault_target::pick;
  const auto& t = f.target;
  if (t.role != node_role::any && !has_word(row.roles, to_string(t.role)))
    return bad("target", fmt::format("{} cannot hit {}; it hits: {}", row.name, to_string(t.role), row.roles));
  const auto nodes = hittable(shape, f.kind, t.role);
  if (nodes.empty()) return bad("target", fmt::format("{}: the cluster has no such node", format_target(t)));
  if (t.how == pick::index && t.index >= nodes.size())
    return bad("target", fmt::format("{}: the cluster has {} of them, counted from 0", format_target(t), nodes.size()));
  if ((t.how == pick::everybody) != (f.kind == fault_kind::rolling_restart))
    return bad("target", f.kind == fault_kind::rolling_restart
                             ? "rolling_restart takes a whole role, e.g. storage/all"
                             : "one node expected; `all` is for rolling_restart and for peers");
  if (f.kind == fault_kind::rolling_restart && t.role == node_role::any)
    return bad("target", "rolling_restart takes a whole role, e.g. storage/all");
  if (!has_word(row.keys, "peer")) return {};
  if (f.peer.how == pick::drawn || f.peer.how == pick::busiest)
    return bad("peer", "a node (ROLE/NUMBER), a role (ROLE/all) or all expected");
  const uint32_t there = shape.of(f.peer.role);
  if (there == 0 || (f.peer.how == pick::index && f.peer.index >= there))
    return bad("peer", fmt::format("{}: the cluster has {} of them", format_target(f.peer), there));
  if (f.peer.how == pick::index && t.how == pick::index && f.peer.role == t.role && f.peer.index == t.index)
    return bad("peer", "is the target itself");
  // With nobody on the other side nothing would be swallowed.
  if (f.peer.how == pick::everybody && there == 1 && (f.peer.role == node_role::any || f.peer.role == t.role))
    return bad("peer", "there is nobody but the target");
  return {};
}

bool ends_some_time(const fault& f) { return f.lasts > nanoseconds(0) || !has_word(row_of(f.kind).keys, "lasts"); }

}  // namespace

result<void> check_plan(const fault_plan& plan, const cluster_shape& shape) {
  if (plan.recover_within <= nanoseconds(0) || plan.recover_within > longest_time)
    return fail(errc::invalid_argument, "recover_within: above 0 and up to 8760h expected");
  if (plan.faults.size() > 10'000)
    return fail(errc::invalid_argument, "{} faults: at most 10000 expected", plan.faults.size());
  std::map<std::string, const fault*> by_name;
  for (const auto& f : plan.faults) {
    if (f.name.empty()) return fail(errc::invalid_argument, "a {} without a name", to_string(f.kind));
    if (!by_name.emplace(f.name, &f).second) return fail(errc::invalid_argument, "two faults are called {}", f.name);
  }
  for (const auto& f : plan.faults) {
    if (auto ok = check_fault(f, shape); !ok) return ok;
    const fault* at = &f;
    for (size_t steps = 0; at->when.on == trigger::fault_began || at->when.on == trigger::fault_ended; ++steps) {
      const auto other = by_name.find(at->when.name);
      if (other == by_name.end())
        return fail(errc::invalid_argument, "fault {}: when: there is no fault called {}", at->name, at->when.name);
      if (at->when.on == trigger::fault_ended && !ends_some_time(*other->second))
        return fail(errc::invalid_argument, "fault {}: when: {} never ends (it has no `lasts`)", at->name,
                    at->when.name);
      if (steps > plan.faults.size())
        return fail(errc::invalid_argument, "fault {}: when: waits for itself, by way of {}", f.name, f.when.name);
      at = other->second;
    }
  }
  return {};
}

}  // namespace troupe::sim
