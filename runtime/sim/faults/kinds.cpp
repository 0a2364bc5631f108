#include "runtime/sim/faults/kinds.hpp"

#include <array>

#include "runtime/base/check.hpp"
#include "runtime/config/units.hpp"

namespace troupe::sim {
namespace {

constexpr const char* role_names[node_roles] = {"any", "director", "front", "prefill", "decode", "storage", "encoder"};
constexpr const char* every_role = "director front prefill decode storage encoder";

const std::array<fault_kind_row, fault_kinds>& fault_table() {
  using e = fault_effect;
  static const std::array<fault_kind_row, fault_kinds> table{{
      {"kill",
       "the process is gone, and its peers lose the connection (a silent host: hear nothing any more)",
       "target silent lasts",
       every_role,
       {e::process_down}},
      {"freeze",
       "something that was due on the node did not happen while it was frozen",
       "target lasts",
       every_role,
       {e::stalled}},
      {"slow",
       "an operation of the node took longer than it would have",
       "target lasts factor",
       every_role,
       {e::slowed}},
      {"partition",
       "a message between the two sides was swallowed",
       "target peer one_way lasts",
       every_role,
       {e::message_swallowed}},
      {"flap",
       "a message between the two sides was swallowed",
       "target peer one_way lasts period",
       every_role,
       {e::message_swallowed}},
      {"disk_torn", "a write was cut short", "target lasts permille", "storage", {e::write_torn}},
      {"disk_lost", "a write was acknowledged and dropped", "target lasts permille", "storage", {e::write_dropped}},
      {"disk_rot", "bits of stored data turned over", "target permille", "storage", {e::bits_flipped}},
      {"disk_full", "a write was refused for want of room", "target lasts", "storage", {e::write_refused}},
      {"disk_slow", "a disk operation took longer than it would have", "target lasts factor", "storage", {e::slowed}},
      {"power_loss",
       "the process is gone, and what it had not flushed with it",
       "target silent lasts",
       "storage",
       {e::process_down, e::unflushed_gone}},
      {"step_failure",
       "a step of the rank returned an error",
       "target lasts permille",
       "prefill decode",
       {e::step_failed}},
      {"director_loss", "the process that led the cluster is gone", "silent lasts", "", {e::process_down}},
      {"coordination_outage", "somebody asked who leads and got no answer", "lasts", "", {e::coordination_error}},
      {"rolling_restart",
       "every node of the role came back in a new incarnation",
       "target period",
       every_role,
       {e::process_up}},
      {"clock_jump", "the node read a time that had jumped", "target jump", every_role, {e::clock_moved}},
  }};
  return table;
}

}  // namespace

const fault_kind_row& row_of(fault_kind k) {
  TROUPE_CHECK(static_cast<size_t>(k) < fault_kinds, "fault kind {}", static_cast<int>(k));
  return fault_table()[static_cast<size_t>(k)];
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t space = list.find(' ');
    if (list.substr(0, space) == word) return true;
    if (space == std::string_view::npos) return false;
    list.remove_prefix(space + 1);
  }
  return false;
}

const char* to_string(fault_kind k) { return row_of(k).name; }
const char* expectation(fault_kind k) { return row_of(k).expectation; }
const char* to_string(node_role r) { return role_names[static_cast<size_t>(r)]; }

result<fault_kind> parse_fault_kind(std::string_view name) {
  std::vector<std::string> names;
  std::string list;
  for (size_t i = 0; i < fault_kinds; ++i) {
    names.emplace_back(fault_table()[i].name);
    if (names.back() == name) return static_cast<fault_kind>(i);
    list += (i ? ", " : "") + names.back();
  }
  const auto near = config::nearest(name, names);
  return fail(errc::invalid_argument, "'{}' is no kind of fault; {}{}", name,
              near.empty() ? "there are: " + list : "did you mean " + near, near.empty() ? "" : "?");
}

result<node_role> parse_node_role(std::string_view name) {
  for (size_t i = 0; i < node_roles; ++i)
    if (name == role_names[i]) return static_cast<node_role>(i);
  return fail(errc::invalid_argument, "'{}' is no role; there are: any, {}", name,
              "director, front, prefill, decode, storage, encoder");
}

std::string format_target(const fault_target& t) {
  using pick = fault_target::pick;
  const std::string role = t.role == node_role::any ? "" : std::string(to_string(t.role)) + "/";
  if (t.how == pick::index) return role + std::to_string(t.index);
  return role + (t.how == pick::drawn ? "any" : t.how == pick::busiest ? "busiest" : "all");
}

result<fault_target> parse_target(std::string_view text) {
  using pick = fault_target::pick;
  fault_target t;
  const size_t slash = text.find('/');
  std::string_view last = text;
  if (slash != std::string_view::npos) {
    TROUPE_TRY(t.role, parse_node_role(text.substr(0, slash)));
    last = text.substr(slash + 1);
    if (t.role == node_role::any) return fail(errc::invalid_argument, "'{}': write any or all without a role", text);
  }
  if (last == "any") {
    t.how = pick::drawn;
  } else if (last == "all") {
    t.how = pick::everybody;
  } else if (last == "busiest" && slash != std::string_view::npos) {
    t.how = pick::busiest;
  } else if (const auto n = config::parse_count(last); n && *n <= UINT32_MAX && slash != std::string_view::npos) {
    t.how = pick::index, t.index = static_cast<uint32_t>(*n);
  } else {
    return fail(errc::invalid_argument,
                "'{}' names no node; write ROLE/NUMBER, ROLE/any, ROLE/busiest, ROLE/all, any or all", text);
  }
  return t;
}

std::string format_node(node_ref n) {
  return n.role == node_role::any ? "the cluster" : std::string(to_string(n.role)) + "/" + std::to_string(n.index);
}

uint32_t cluster_shape::of(node_role r) const {
  if (r != node_role::any) return nodes[static_cast<size_t>(r)];
  uint32_t sum = 0;
  for (size_t i = 1; i < node_roles; ++i) sum += nodes[i];
  return sum;
}

std::vector<node_ref> hittable(const cluster_shape& shape, fault_kind k, node_role role) {
  std::vector<node_ref> out;
  for (size_t i = 1; i < node_roles; ++i) {
    const auto r = static_cast<node_role>(i);
    if ((role != node_role::any && role != r) || !has_word(row_of(k).roles, to_string(r))) continue;
    for (uint32_t n = 0; n < shape.of(r); ++n) out.push_back({r, n});
  }
  return out;
}

std::vector<node_ref> all_nodes(const cluster_shape& shape) {
  return hittable(shape, fault_kind::kill, node_role::any);
}

}  // namespace troupe::sim
