// What can be broken in a simulated cluster. Fault plans call it, the world implements it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::sim {

/// How the end of a node or link looks from outside: its peers are told after one latency (a process was killed), or
/// hear nothing (the host is gone).
enum class crash_kind : uint8_t { killed, silent };

/// What is wrong with a disk.
enum class disk_fault : uint8_t {
  none,        // it works again (rot stays)
  gone,        // every call fails
  full,        // no room for new chunks
  read_only,   // writes fail
  lost_write,  // the next write reports success and stores nothing
  torn_write,  // the next write stores its first sectors only, and fails
  power_loss,  // unsynced writes are gone or old; follows a crash of the node
  slow,        // every call takes `slow_factor` times as long
};

/// What a node is for, by its wanted seat.
enum class node_kind : uint8_t { director, front, prefill, decode, storage, spare };

/// Every fault is posted to the agenda by the caller (never from an actor's handler). Nodes are named by index. Errors:
/// invalid_argument for a node that is not of the kind that the fault needs, unavailable for one that is down.
class fault_target {
 public:
  virtual ~fault_target() = default;

  virtual size_t nodes() const = 0;
  virtual const std::string& node_name(size_t node) const = 0;
  virtual std::optional<size_t> find_node(const std::string& name) const = 0;
  virtual node_kind kind_of(size_t node) const = 0;
  virtual bool up(size_t node) const = 0;
  virtual nanoseconds now() const = 0;
  /// Runs `what` at `when` of virtual time.
  virtual void at(nanoseconds when, std::function<void()> what) = 0;
  /// Every seat is filled and ready, and the fronts are attached to every scheduler.
  virtual bool serving() const = 0;

  /// Ends the process. A killed director forgets everything.
  virtual result<void> kill(size_t node, crash_kind how) = 0;
  /// As a supervisor would, with a new incarnation; a director with a higher epoch.
  virtual result<void> restart(size_t node) = 0;
  /// Asks the node to drain and leave within `grace`, as SIGTERM does.
  virtual result<void> leave(size_t node, nanoseconds grace) = 0;
  /// SIGSTOP and SIGCONT: nothing of the node runs, its connections stay.
  virtual result<void> freeze(size_t node, bool on) = 0;
  /// Everything of the node takes `factor` times as long: messages, steps, disk calls. 1: normal.
  virtual result<void> slow(size_t node, double factor) = 0;
  /// Bytes from one node to the other are swallowed silently (on), or pass again; one way.
  virtual result<void> cut(size_t from, size_t to, bool on) = 0;
  /// Bytes from one node to the other wait (on), and come in order when it is over; one way.
  virtual result<void> stall(size_t from, size_t to, bool on) = 0;
  /// The connection of two nodes breaks: what is under way is lost, handles are dead; killed: both are told.
  virtual result<void> break_link(size_t a, size_t b, crash_kind how) = 0;
  /// Messages of all links are lost, doubled and overtaken with these probabilities: the hostile profile.
  virtual void hostile(double loss, double duplication, double reordering) = 0;
  /// Of a storage node. `slow_factor` with slow only.
  virtual result<void> disk(size_t node, uint32_t disk, disk_fault what, double slow_factor) = 0;
  /// One byte of the disk's content, drawn from the seed, changes. Errors: not_found while the disk is empty.
  virtual result<void> rot(size_t node, uint32_t disk) = 0;
  /// The next step of this rank's group fails with nobody suspected.
  virtual result<void> fail_step(size_t node) = 0;
  /// The node's wall clock is off by `offset` from now on; its monotonic clock goes on.
  virtual result<void> clock_offset(size_t node, nanoseconds offset) = 0;
};

}  // namespace troupe::sim
