// The group whose ranks are processes: messages over TCP, shared memory on one host. A rank process makes one
// `ep_endpoint`, hands its address to the director, and makes one group per group epoch from the view that the
// director sends to all members.
//
//   endpoint = make_ep_endpoint(options)          any thread, once
//   director <- endpoint->address()
//   director -> view{epoch, rank, members, shape}
//   group    = endpoint->connect(view)            blocks up to view.connect_timeout: not on an actor
//   engine  <- group                              owned and used by the engine thread until it fails or a new view
//   comes
//
// Peers on the same host write straight into each other's memory: one shared-memory object per rank and epoch, never
// recycled, so that a rank that wakes up late writes into memory that nobody reads. Other peers, or all with
// `shared_memory` off, get one eager message per exchange. Every slot and message starts with a header of epoch, step,
// exchange and incarnation, and the reader ignores what is not of its epoch and membership.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ep/ep.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels::ep {

/// How a rank waits for its peers: it polls `spins` times, then yields the core for `yields`, then announces that it
/// sleeps and does so until a message or a death notice. More spinning than cores ruins every rank.
struct wait_policy {
  uint32_t spins = 12;  // about 1 us on shared memory; ranks that share cores need the others to run
  nanoseconds yields = std::chrono::microseconds(500);
  bool operator==(const wait_policy&) const = default;
};

/// How a process takes part in groups.
struct ep_endpoint_options {
  bool shared_memory = true;     // false where ranks of one host must not share memory (network namespaces)
  std::string interface = "lo";  // network device for messages, as in /sys/class/net; empty = all
  uint64_t incarnation = 0;      // of this process; peers check it
};

/// A member of a group as the director knows it.
struct group_member {
  uint64_t incarnation = 0;
  std::string address;  // what that process's ep_endpoint gave
  bool operator==(const group_member&) const = default;
};

/// What the director tells one rank about a new epoch. `members` is the same, in the same order, for all ranks.
struct group_view {
  group_epoch epoch;
  uint32_t rank = 0;  // this process: index into members
  std::vector<group_member> members;
  group_shape shape;                                      // ranks == members.size()
  nanoseconds deadline = std::chrono::seconds(5);         // per exchange
  nanoseconds connect_timeout = std::chrono::seconds(5);  // until all members have answered
  wait_policy wait;
};

/// Counters of one endpoint, over all its groups. Read from any thread.
struct ep_counters {
  uint64_t exchanges = 0;
  uint64_t stale_headers = 0;  // slots and messages of another epoch, incarnation or step that were ignored
  uint64_t sleeps = 0;         // waits that ended in sleep
  uint64_t nudges = 0;         // messages sent to wake sleeping peers
  uint64_t peers_lost = 0;
};

/// Thread rules: every call from any thread; calls are serialised with each other and with the current group's calls.
class ep_endpoint {
 public:
  virtual ~ep_endpoint() = default;

  /// Bytes by which peers reach this endpoint; valid while it lives. Opaque, under 1 KiB.
  virtual const std::string& address() const = 0;

  /// Meets the members of `view` and returns this rank's group, ready for begin_step. Ends the group of an earlier
  /// epoch first (its running call returns cancelled). Errors: invalid_argument (view, address blob), stale (epoch not
  /// newer than the last one), peer_lost (a member did not answer in time or died; `suspects` names them), exhausted
  /// (no memory for the region). A group outlives its endpoint safely.
  virtual result<std::unique_ptr<group>> connect(const group_view& view) = 0;

  /// Ranks that the last connect missed.
  virtual std::vector<uint32_t> suspects() const = 0;

  virtual ep_counters counters() const = 0;
};

/// Opens an endpoint. Errors: unavailable with what the system said (no such interface).
result<std::unique_ptr<ep_endpoint>> make_ep_endpoint(const ep_endpoint_options& options);

}  // namespace troupe::kernels::ep
