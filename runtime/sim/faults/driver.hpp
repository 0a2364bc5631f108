// Decides when the faults of a plan begin and end, and whether they took effect. A state machine over virtual time: no
// clock, no I/O; the world applies the actions and reports what it sees.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/sim/faults/plan.hpp"

namespace troupe::sim {

/// A node by role and index.
struct node_ref {
  node_role role = node_role::any;
  uint32_t index = 0;
  auto operator<=>(const node_ref&) const = default;
};
/// "storage/3".
std::string format_node(node_ref n);

/// What the world is to do now.
struct fault_action {
  enum class what : uint8_t {
    begin,  // break it
    end,    // heal it, start the process again
    cut,    // flap: swallow again
    join,   // flap: let through again
    next,   // rolling_restart: drain and restart this node now
  } does = what::begin;
  size_t index = 0;             // of the fault in the plan
  node_ref target;              // chosen
  std::vector<node_ref> peers;  // partition, flap: everybody on the other side
  bool operator==(const fault_action&) const = default;
};

/// What the world saw of a fault's effect; which of them proves what: fault_driver::observe.
enum class fault_effect : uint8_t {
  process_down,       // the process is gone (its peers or its supervisor say so, or the world itself for a silent host)
  process_up,         // it answers again, in a new incarnation
  stalled,            // something that was due on the node did not happen while it was frozen
  slowed,             // an operation of the node took longer than it would have
  message_swallowed,  // between the two sides
  write_torn,         // a write was cut short
  write_dropped,      // acknowledged and dropped
  bits_flipped,       // of stored data
  write_refused,      // no room
  unflushed_gone,     // what had not been flushed is lost (may be nothing: then the process going down is the effect)
  step_failed,        // a step of the rank returned an error
  coordination_error,  // somebody asked who leads and got no answer
  clock_moved,         // the node read a time that jumped
};

/// How a fault went.
struct fault_outcome {
  std::string name;
  fault_kind kind = fault_kind::kill;
  node_ref target;
  std::optional<nanoseconds> began, ended;  // nothing: its trigger never came, or it lasts
  std::optional<nanoseconds> seen;          // first proof of its effect
  uint64_t proofs = 0;
  uint64_t needed = 1;  // proofs; rolling_restart: one per node
  bool took_effect() const { return began.has_value() && proofs >= needed; }
};

/// One run of a plan. Not thread safe.
class fault_driver {
 public:
  /// The plan passes check_plan for the shape (else an assertion).
  fault_driver(fault_plan plan, cluster_shape shape);

  /// Counters that triggers look at; monotone.
  void requests_submitted(uint64_t total) { submitted_ = total; }
  void requests_finished(uint64_t total) { finished_ = total; }
  /// Requests queued and running on a node now.
  void node_load(node_ref node, uint64_t requests);

  /// Time of the next action that is known now; nothing when all that is left waits for a condition.
  std::optional<nanoseconds> next() const;
  /// Everything that is due at `now` (never before an earlier `now`), in the order of time, then of the plan. Call it
  /// at next() and whenever a counter changed.
  std::vector<fault_action> due(nanoseconds now);
  /// The world saw an effect of fault `index`. False: it proves nothing (another kind's effect, or before its begin).
  bool observe(size_t index, fault_effect effect, nanoseconds now);

  /// No fault is active and none will begin by itself.
  bool over() const;
  /// When the last action so far was; the liveness phase counts from there.
  nanoseconds last_action() const { return last_; }
  /// One per fault of the plan.
  std::vector<fault_outcome> outcomes() const;
  /// A sentence for each fault that was to begin and did not, or that had no effect; empty: the plan is valid evidence.
  std::vector<std::string> without_effect() const;

 private:
  struct state {
    fault_outcome out;
    std::optional<nanoseconds> armed;  // begins then
    std::vector<node_ref> peers;
    std::optional<nanoseconds> flip, end;  // next turn of a flap or rolling restart; the end
    uint32_t rolled = 0;
    bool is_cut = false;
  };
  void arm(nanoseconds now);
  node_ref choose(size_t i) const;
  std::vector<node_ref> peers_of(const fault& f, node_ref target) const;
  void begin(size_t i, nanoseconds at, std::vector<fault_action>& out);
  void turn(size_t i, nanoseconds at, std::vector<fault_action>& out);
  void finish(size_t i, nanoseconds at, std::vector<fault_action>& out);

  fault_plan plan_;
  cluster_shape shape_;
  std::vector<state> states_;
  std::vector<uint64_t> loads_[node_roles];
  uint64_t submitted_ = 0, finished_ = 0;
  nanoseconds last_{0};
};

}  // namespace troupe::sim
