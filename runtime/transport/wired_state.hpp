// Frames between transports, and the state that one keeps per peer.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "runtime/transport/address.hpp"
#include "runtime/transport/arena.hpp"
#include "runtime/transport/detail.hpp"
#include "runtime/transport/wire.hpp"

namespace troupe::transport {

/// Sent between processes: append only.
enum class frame : uint32_t {
  hello = 1,         // payload: address blob of the sender; a = its deadline in ns; operation = the receiver's
                     // connection that it answers, 0 = none
  beat = 2,          // sign of life
  message = 3,       // payload: the message; a = channel
  message_done = 4,  // code
  pull = 5,          // payload: wire_piece list; region, generation
  page = 6,          // payload: bytes of piece `a`
  put = 7,           // payload: bytes; a = offset in the region; region, generation
  put_done = 8,      // code
  pull_failed = 9,   // code
};

/// In front of every message between two transports; little endian, fixed size.
struct frame_header {
  frame kind = frame::beat;
  uint32_t code = 0;        // errc, 0 = success
  uint64_t sender = 0;      // identity
  uint64_t connection = 0;  // number of the sender's connection, growing
  uint64_t operation = 0;   // of the side that asked
  uint64_t a = 0;
  uint64_t region = 0, generation = 0;
};
static_assert(sizeof(frame_header) == 56);

/// One piece of a pull request.
struct wire_piece {
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// One operation of this side from post to completion.
struct operation {
  enum class kind { move_in, move_out, message } what = kind::message;
  uint64_t id = 0;
  peer_id peer;
  completion done;
  region_ptr local;
  remote_region remote;
  std::vector<piece> pieces;
  std::vector<std::byte> message;
  channel_id channel;
  size_t next = 0;            // piece to move or send next
  size_t finished = 0;        // pieces that are done
  std::vector<bool> arrived;  // per piece, of a pull by messages
};

/// A pull that a peer asked for.
struct serving {
  uint64_t operation = 0;
  region_ptr region;
  std::vector<wire_piece> pieces;
  size_t next = 0;
};

/// A frame that waits, or whose payload the wire still reads.
struct flight {
  frame_header header;
  std::vector<std::byte> owned;  // payload, or
  std::span<const std::byte> bytes;
  region_ptr keep;
};

/// Frames of one connection that have not left yet, by number.
struct window {
  std::deque<uint64_t> control, bulk;
  /// Forgets those that have left.
  void advance(uint64_t sent) {
    while (!control.empty() && control.front() <= sent) control.pop_front();
    while (!bulk.empty() && bulk.front() <= sent) bulk.pop_front();
  }
};

/// A peer; all but identity and address belong to the transport thread.
struct peer_state {
  peer_id id;
  endpoint_address where;

  // The connection. `out` null: none.
  std::unique_ptr<link> out;
  uint64_t connection = 0;      // number of mine
  uint64_t remote = 0;          // number of theirs, 0 before their hello; frames of another number are dropped
  uint64_t remote_highest = 0;  // hellos that are not newer are dropped
  bool dead = false;            // it cannot go on
  bool restarted = false;       // the peer has begun a new connection: end mine
  bool wanted = false;          // the peer has said hello and waits for mine
  nanoseconds heard{}, beat{}, progressed{};
  nanoseconds their_deadline{};

  std::unordered_map<uint64_t, std::unique_ptr<operation>> operations;
  std::deque<uint64_t> direct;  // operations to run through shared memory, in order
  std::deque<uint64_t> puts;    // operations whose pieces are being sent
  std::deque<serving> servings;
  std::deque<std::shared_ptr<flight>> outbox;                                  // requests and answers
  window flying;                                                               // of this connection
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<mapping>> mappings;  // by region id, generation
};

/// Limits of one connection.
inline constexpr size_t bulk_window = 16;     // pages and puts in flight (libraries: more brings nothing over TCP)
inline constexpr size_t control_window = 64;  // other frames in flight
inline constexpr size_t max_outbox = 65536;   // frames that wait; beyond it the connection ends
inline constexpr size_t max_servings = 4096;  // pulls that wait; beyond: exhausted
inline constexpr size_t max_mappings = 256;   // regions of a peer mapped at once
inline constexpr uint64_t piece_bytes = 1u << 20;
inline constexpr size_t direct_slice = 8u << 20;  // bytes copied before looking at the network again

}  // namespace troupe::transport
