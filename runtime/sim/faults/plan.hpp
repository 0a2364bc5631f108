// What breaks, when, and how one sees that it broke: the fault plan of a simulated (or live) run, as a value. Files are
// in configs/faults; docs/simulate.md explains every key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::sim {

/// What can break. In event logs: append only, never renumber.
enum class fault_kind : uint8_t {
  kill = 0,                  // the process ends; with `silent` its host is gone, and nobody is told
  freeze = 1,                // it does nothing for a while, then goes on with what it had
  slow = 2,                  // everything it does takes `factor` times as long
  partition = 3,             // messages between target and `peer` are swallowed
  flap = 4,                  // a partition that comes and goes every `period`
  disk_torn = 5,             // a write reaches the disk in part only, as a crash would leave it
  disk_lost = 6,             // writes are acknowledged and never reach the disk
  disk_rot = 7,              // bits of what is stored turn over
  disk_full = 8,             // writes are refused
  disk_slow = 9,             // every operation takes `factor` times as long
  power_loss = 10,           // the process ends and what was not flushed is gone
  step_failure = 11,         // a rank's steps fail
  director_loss = 12,        // the leading director's process ends
  coordination_outage = 13,  // whoever decides which director leads does not answer
  rolling_restart = 14,      // the nodes of a role are drained and started again, one after the other
  clock_jump = 15,           // a node's clock is ahead by `jump` from now on
};
inline constexpr size_t fault_kinds = 16;

/// Lower-case name as in files, e.g. "disk_torn"; and the kind of that name, or invalid_argument with the list.
const char* to_string(fault_kind k);
result<fault_kind> parse_fault_kind(std::string_view name);

/// What a node of the cluster does, as targets name it. In event logs: append only, never renumber.
enum class node_role : uint8_t { any = 0, director = 1, front = 2, prefill = 3, decode = 4, storage = 5, encoder = 6 };
inline constexpr size_t node_roles = 7;

/// Lower-case name, e.g. "prefill"; and back.
const char* to_string(node_role r);
result<node_role> parse_node_role(std::string_view name);

/// Which node: "storage/3", "decode/any" (drawn by the plan's seed when the fault begins), "decode/busiest" (most
/// queued and running requests then), "any" (drawn among all), "all" (as a peer only: everybody else).
struct fault_target {
  enum class pick : uint8_t { index, drawn, busiest, everybody } how = pick::drawn;
  node_role role = node_role::any;
  uint32_t index = 0;  // with pick::index
  bool operator==(const fault_target&) const = default;
};

/// Text as in files, and back.
std::string format_target(const fault_target& t);
result<fault_target> parse_target(std::string_view text);

/// When a fault begins: at a time, or `after` a condition came true for the first time.
struct fault_trigger {
  enum class what : uint8_t { time, submitted, finished, busy, fault_began, fault_ended } on = what::time;
  nanoseconds at{0};   // time: of the run; else: so long after the condition
  uint64_t count = 0;  // submitted, finished: so many requests so far. busy: requests queued and running in the role
  node_role role = node_role::any;  // busy
  std::string name;                 // fault_began, fault_ended: of the other fault
  bool operator==(const fault_trigger&) const = default;
};

/// One thing that breaks. Members that a kind does not have keep their defaults (parser and checks insist).
struct fault {
  std::string name;  // unique in the plan; given by the parser where the file has none: "kill-2"
  fault_kind kind = fault_kind::kill;
  fault_trigger when;
  fault_target target;
  fault_target peer{fault_target::pick::everybody};  // partition, flap
  bool one_way = false;                              // partition, flap: only what the target sends is swallowed
  bool silent = false;                               // kill, power_loss: the host is gone, no connection is closed
  nanoseconds lasts{0};  // until it heals or the process starts again; 0: for good (disk_rot, clock_jump and
                         // rolling_restart have none: they are done at once or end by themselves)
  uint32_t factor = 10;  // slow, disk_slow: 2 to 1,000
  nanoseconds period{std::chrono::seconds(1)};  // flap: half of it cut; rolling_restart: from one node to the next
  uint32_t permille = 1'000;  // disk_torn, disk_lost, step_failure: of operations; disk_rot: of stored runs
  int64_t jump_ns = 0;        // clock_jump: may be negative
  bool operator==(const fault&) const = default;
};

/// A plan. An empty one is a run without faults.
struct fault_plan {
  std::string name;
  std::string why;                                       // what the experiment is about, for reports
  uint64_t seed = 1;                                     // draws targets
  nanoseconds recover_within{std::chrono::seconds(60)};  // after the last fault ended: the liveness deadline
  std::vector<fault> faults;
  bool operator==(const fault_plan&) const = default;
};

/// How many nodes of each role there are (index: node_role; `any` unused).
struct cluster_shape {
  uint32_t nodes[node_roles] = {0, 1, 1, 1, 1, 0, 0};
  uint32_t of(node_role r) const;  // any: all of them
  bool operator==(const cluster_shape&) const = default;
};

/// How one sees that a fault took effect, in one sentence: "its peers report the process lost".
const char* expectation(fault_kind k);

/// Does the plan fit the cluster? Errors name the fault and the member: targets that do not exist, members out of
/// bounds, triggers on unknown faults or in a circle, two faults of one name.
result<void> check_plan(const fault_plan& plan, const cluster_shape& shape);

/// Reads YAML. Errors are "FILE:LINE:COLUMN: faults[2].lasts: ..." and say what is expected.
result<fault_plan> parse_fault_plan(const std::string& text, const std::string& file);

/// The same from a file; io if it cannot be read.
result<fault_plan> load_fault_plan(const std::string& file);

/// YAML that parses back to the same plan; members at their defaults are left out.
std::string print_fault_plan(const fault_plan& plan);

/// How often swarm draws each kind: faults per hour of virtual time and cluster (index: fault_kind).
struct swarm_rates {
  uint32_t per_hour[fault_kinds] = {60, 40, 40, 40, 20, 30, 30, 30, 15, 30, 20, 60, 20, 15, 4, 20};
};

/// A random plan: which kinds occur at all (about half), how often, when, whom and for how long are functions of
/// `seed`. All faults have ended by 3/4 of `duration`, so that recovery can be watched; at most `storage_parity`
/// storage nodes are without their data at once (more may lose data by design, which is no finding). Always passes
/// check_plan.
fault_plan draw_swarm(uint64_t seed, const cluster_shape& shape, nanoseconds duration, uint32_t storage_parity = 1,
                      const swarm_rates& rates = {});

}  // namespace troupe::sim
