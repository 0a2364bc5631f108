// What happens in a simulation, as a stream of events of integers, and who looks at it: the event log, the checks of
// the invariants, the summary. The world calls; it decides nothing from what it hears, except to stop at a violation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"

namespace troupe::sim {

/// What an event is about. Written into logs: append only.
enum class event_kind : uint8_t {
  request_arrived = 1,  // subject request; node front; a prompt tokens, b answer tokens asked for, c conversation
  request_tokens = 2,   // subject request; a first position, b number of tokens, c hash of them
  request_ended = 3,    // subject request; a 0 finished, 1 refused, 2 failed, 3 cancelled; b tokens of the answer,
                        // c prompt tokens that came from the cache
  node_up = 4,          // node; a incarnation
  node_down = 5,        // node; a incarnation, b 0 killed, 1 silent, 2 left
  fault_begin = 6,      // subject number of the fault in its plan; node, or -1
  fault_effect = 7,     // the same: seen to have taken effect
  fault_end = 8,        // the same
  epoch = 9,            // subject number of the group (named), a its epoch; subject 0: the cluster
  pages = 10,           // node; subject incarnation; a free, b owned, c total
  queue = 11,           // node; subject kind of queue (queue_kind); a length, b bound
  decode_begin = 12,    // subject request; node: it has a place to decode there from now on; a incarnation
  decode_end = 13,      // the same: it has none any more
  utilisation = 14,     // node; a ns of steps since its start, b rows since its start, c requests running
  ready = 15,           // the cluster serves (again): a 1, 0 it does not
  handoff = 16,         // subject request; node decode; a bytes, b ns
  cluster_counts = 17,  // a bytes on the actor network, b bytes on the data plane, c messages
  group_of_node = 18,   // node; subject number of the group; a rank, b role
};

/// Queues whose bounds are watched.
enum class queue_kind : uint8_t { scheduler = 1, front = 2, writes = 3 };

/// One event. What it means stands beside its kind; unused numbers are 0.
struct event {
  nanoseconds at{0};  // virtual time
  event_kind kind = event_kind::request_arrived;
  int32_t node = -1;  // index of the node in the world
  uint64_t subject = 0;
  int64_t a = 0, b = 0, c = 0;
  bool operator==(const event&) const = default;
};

/// Not thread safe; called from the simulation's thread, in order of time.
class observer {
 public:
  virtual ~observer() = default;
  /// Once each, before the first event about it. what: "node", "group", "fault".
  virtual void named(const std::string& what, uint64_t number, const std::string& name) {
    (void)what, (void)number, (void)name;
  }
  /// A sentence if an invariant of the house is broken by this event: the run ends with it.
  virtual std::optional<std::string> on(const event& e) = 0;
};

/// Several observers, in order; the first violation counts.
class observers final : public observer {
 public:
  void add(observer& o) { all_.push_back(&o); }
  void named(const std::string& what, uint64_t number, const std::string& name) override {
    for (auto* o : all_) o->named(what, number, name);
  }
  std::optional<std::string> on(const event& e) override {
    std::optional<std::string> out;
    for (auto* o : all_)
      if (auto v = o->on(e); v && !out) out = std::move(v);
    return out;
  }

 private:
  std::vector<observer*> all_;
};

}  // namespace troupe::sim
