// Small parts that several conversations share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/protocol/caf.hpp"
#include "actors/protocol/fields.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe::actors {

/// Outcome inside an answer: code 0 = done.
struct status {
  errc code{};
  std::string text;
  bool ok() const { return code == errc{}; }
  bool operator==(const status&) const = default;
};
TROUPE_FIELDS(status, code, text)

inline status to_status(const error& e) { return {e.code, e.message}; }

/// An answer that only says how it went.
struct ack {
  status outcome;
  bool operator==(const ack&) const = default;
};
TROUPE_FIELDS(ack, outcome)

/// Names an actor for good: a restarted process has another incarnation. Names inside a node: "node_agent",
/// "entrypoint",
/// "<seat>/scheduler", "<seat>/rank", "<seat>/expert_shard", "<seat>/storage", "<seat>/prefill_balancer",
/// "<seat>/decode_balancer"; a seat is "<group>/<index>".
struct actor_key {
  node_number node;
  incarnation inc;
  std::string name;
  auto operator<=>(const actor_key&) const = default;
};
TROUPE_FIELDS(actor_key, node, inc, name)

/// What a process does in the cluster. Sent between processes: append only.
enum class role : uint8_t { none = 0, director = 1, front = 2, prefill = 3, decode = 4, storage = 5 };
/// Lower-case name, for seats, logs and JSON.
const char* to_string(role r);

/// Sent between processes: append only.
enum class role_state : uint8_t { starting = 0, waiting = 1, ready = 2, draining = 3, drained = 4, failed = 5 };
const char* to_string(role_state s);

/// A timer's message; `kind` is the receiving actor's own enumeration. Sent only to oneself.
struct tick {
  uint8_t kind = 0;
  uint64_t ticket = 0;
  bool operator==(const tick&) const = default;
};
TROUPE_FIELDS(tick, kind, ticket)

/// One timer of an actor: arming it again makes the earlier tick stale.
class timer {
 public:
  explicit timer(uint8_t kind) : kind_(kind) {}
  void arm(caf::local_actor* self, nanoseconds delay) {
    armed_ = true;
    later(self, delay, tick{kind_, ++ticket_});
  }
  void stop() { armed_ = false; }
  bool armed() const { return armed_; }
  /// True once for the tick of the latest arm.
  bool fired(const tick& t) {
    if (t.kind != kind_ || t.ticket != ticket_ || !armed_) return false;
    armed_ = false;
    return true;
  }

 private:
  uint8_t kind_;
  bool armed_ = false;
  uint64_t ticket_ = 0;
};

/// Asks an actor to stop admitting, finish or hand over, and answer when nothing is left (outcome 0), or at the
/// deadline with what is left (errc::timeout). Every role actor understands it.
struct drain_request {
  int64_t deadline_ms = 0;
  bool operator==(const drain_request&) const = default;
};
TROUPE_FIELDS(drain_request, deadline_ms)

struct drain_reply {
  status outcome;
  uint32_t left = 0;  // requests that did not finish
  bool operator==(const drain_reply&) const = default;
};
TROUPE_FIELDS(drain_reply, outcome, left)

}  // namespace troupe::actors
