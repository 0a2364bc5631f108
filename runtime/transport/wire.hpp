// Frames between processes: what the transport and the lanes of expert-parallel groups are made of. A wire listens and
// receives; a link is a connection that this side has made, and sends. Nothing is promised about delivery but the
// order: who needs an answer asks for one, and who needs to know that the other side lives sends signs of life.
//
// Not thread safe, except where stated: one thread at a time uses a wire and its links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::transport {

inline constexpr size_t max_frame_header = 64;
inline constexpr uint64_t max_frame_payload = uint64_t{1} << 30;

/// A connection to one peer; frames go one way, in the order of posting. Destroying it closes the connection at once:
/// frames that have not been sent are dropped. It must go before its wire.
class link {
 public:
  virtual ~link() = default;
  /// Takes a frame and returns its number, counted from 1. The header (at most max_frame_header) is copied; the payload
  /// (at most max_frame_payload) must stay as it is while `keep` lives, which the link holds for as long as it needs
  /// the payload. A frame of a lost link is dropped.
  virtual uint64_t post(std::span<const std::byte> header, std::span<const std::byte> payload,
                        std::shared_ptr<const void> keep) = 0;
  /// All frames up to this number have left: their payloads may be changed.
  virtual uint64_t sent() const = 0;
  /// The connection is gone, or could not be made: no frame gets through any more.
  virtual bool lost() const = 0;
};

/// One end of many connections. The destructor closes those that peers have made.
class wire {
 public:
  /// Called inside progress, where links may be neither made nor destroyed and nothing may be posted; the spans are
  /// valid during the call.
  using receiver = std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload)>;
  virtual ~wire() = default;
  /// Bytes by which others connect to this one. Opaque.
  virtual const std::string& address() const = 0;
  virtual void on_frame(receiver to) = 0;
  /// Begins a connection; frames may be posted at once. corrupt for an address that no wire of this kind gave,
  /// unavailable when the system refuses.
  virtual result<std::unique_ptr<link>> connect(std::string_view address) = 0;
  /// Sends and receives what can be without waiting; 0 when there was nothing.
  virtual unsigned progress() = 0;
  /// Waits until there is something to progress, `signal` is called, or `limit` has passed. Returns at once after a
  /// signal since the last sleep. Progress until idle before, and look at your condition after that progress.
  virtual void sleep(nanoseconds limit) = 0;
  /// Any thread, async-signal safe.
  virtual void signal() = 0;
};

}  // namespace troupe::transport
