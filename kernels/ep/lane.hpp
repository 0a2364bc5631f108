// How the ranks of a group reach each other: the part that differs between threads, shared memory and TCP. The protocol
// itself (exchange_group) is written once over it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "kernels/ep/wire.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels::ep {

/// What a lane delivers, inside `progress`.
class lane_sink {
 public:
  virtual ~lane_sink() = default;
  /// A message; both valid during the call. `header` is a copy, of any content: check it.
  virtual void on_message(const slot_header& header, std::span<const std::byte> payload) = 0;
  /// The connection to `rank` has ended.
  virtual void on_dead(uint32_t rank) = 0;
};

/// One rank's end. All calls by the group's thread, except `signal`.
class lane {
 public:
  virtual ~lane() = default;
  /// Serialises the calls of groups that share what is below the lane.
  virtual std::recursive_mutex& serial() = 0;
  /// Set (then `signal`) to end the group: its running call returns cancelled. Any thread.
  std::atomic<bool> ended{false};
  /// This rank's inbox region, zeroed at first.
  virtual std::byte* inbox() = 0;
  /// The peer's inbox region mapped here, or null: reach it by messages.
  virtual std::byte* peer_inbox(uint32_t rank) = 0;
  /// Some peer is reached by messages only, so that waiting means to progress all the time.
  virtual bool has_message_peers() const = 0;

  /// A buffer of `bytes` for the next message to `rank`; waits, progressing `sink`, up to `limit` for an older one to
  /// be sent. Null when the peer is dead or that takes longer. 64-byte aligned.
  virtual std::byte* buffer(uint32_t rank, size_t bytes, nanoseconds limit, lane_sink& sink) = 0;
  /// Sends the first `bytes` of the last buffer of `rank` after `header`. Messages to one rank arrive in order.
  virtual void post(uint32_t rank, const slot_header& header, size_t bytes) = 0;

  /// Delivers what has come.
  virtual void progress(lane_sink& sink) = 0;
  /// Sleeps until something comes, `signal` is called (also since the last sleep), or `limit` has passed. May return
  /// early.
  virtual void sleep(nanoseconds limit) = 0;
  /// Ends a sleep. Any thread.
  virtual void signal() = 0;
  /// Gives posted messages up to `limit` to leave.
  virtual void flush(nanoseconds limit, lane_sink& sink) = 0;
};

}  // namespace troupe::kernels::ep
