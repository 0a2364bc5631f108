// The data plane: moves bytes between the memories of processes. Actors pass small messages; KV pages, snapshots and
// store blocks go through here.
//
// Contract of every operation: it completes with success or an error of its own (a bad descriptor, a bound), or the
// connection to the peer ends and all operations of that connection complete with peer_lost. So a deadline belongs to
// the peer: when a peer shows no sign of life, or an operation makes no progress, for `deadline`, its connection ends.
// The next use of the peer makes a new connection; nothing of the old one is delivered any more. Buffers given to an
// operation stay untouched by the transport after its completion, and must stay valid until then.
//
// What a completion means: get and pull: the bytes are in local memory. put: they are in the peer's memory. send: the
// peer's handler has returned. On the same host with shared memory, a get from the memory of a dead or stopped process
// succeeds: trust content only after the epoch in its header or its checksum.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe::transport {

/// A peer of one transport; never reused within it.
using peer_id = strong_id<struct peer_id_tag, uint32_t>;
/// What a message is about; the receiver registers one handler per channel.
using channel_id = strong_id<struct channel_id_tag, uint16_t>;

/// Names a memory region of some process so that another can reach it: send it in a message, attach it to a request.
struct remote_region {
  uint64_t owner = 0;       // identity of the transport that allocated it
  uint64_t id = 0;          // of the region in its owner
  uint64_t generation = 0;  // random per region: an id of an earlier life is refused
  uint64_t base = 0;        // address in the owner
  uint64_t length = 0;
  std::string key;  // for access through shared memory; empty where that is off
  bool operator==(const remote_region&) const = default;

  /// Compact bytes, under 256 B.
  std::string encode() const;
  /// corrupt for anything that `encode` did not make (truncated, too long, wrong version or checksum).
  static result<remote_region> decode(std::string_view bytes);
};

/// Memory that peers can reach, allocated by the transport, zeroed, page aligned. Freed by the last reference; peers
/// that use it afterwards get `stale`. Reading and writing it while a peer puts into it is the caller's business.
class memory_region {
 public:
  virtual ~memory_region() = default;
  virtual std::span<std::byte> bytes() const = 0;
  virtual const remote_region& descriptor() const = 0;
};
using region_ptr = std::shared_ptr<memory_region>;

/// One page of a pull: `bytes` from the remote offset to the local offset.
struct page_move {
  uint64_t remote_offset = 0;
  uint64_t local_offset = 0;
  bool operator==(const page_move&) const = default;
};

/// Called exactly once, on the transport's thread (loopback: inside progress). It must not block; it may post
/// operations.
using completion = std::function<void(result<void>)>;

/// A completion to poll or wait for. Any thread.
class pending {
 public:
  /// Pass this to one operation.
  completion callback() const;
  bool done() const { return state_->done.load(std::memory_order_acquire); }
  /// After done().
  const result<void>& value() const { return state_->value; }
  /// Blocks the calling thread until done or `limit` has passed; returns done().
  bool wait(nanoseconds limit) const;

 private:
  struct state {
    std::atomic<bool> done{false};
    result<void> value;
    std::mutex mutex;
    std::condition_variable changed;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

/// Called for a message; `bytes` is valid during the call. Transport thread; must not block.
using message_handler = std::function<void(peer_id from, std::span<const std::byte> bytes)>;
/// Called once per connection that ended, after its operations have completed. Transport thread; must not block.
using peer_lost_handler = std::function<void(peer_id peer, const std::string& why)>;

/// Counters of one transport since its start.
struct counters {
  uint64_t gets = 0, puts = 0, sends = 0, pulls = 0, pages = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // payload moved by this side's operations
  uint64_t served_bytes = 0;             // payload sent for the pulls of others
  uint64_t connections = 0, peers_lost = 0, refused = 0;
  uint64_t stale_dropped = 0;  // messages of an ended connection that were ignored
};

/// What carries messages, and bulk between hosts. Peers must have the same.
enum class message_path {
  sockets,  // plain TCP
  ucx,      // UCX's active messages over TCP, which do not survive every death of a peer (see ucx_core.hpp)
};

/// Bounds of a transport, and the paths it may use.
struct options {
  bool shared_memory = true;  // use it for peers on this host
  message_path messages = message_path::sockets;
  std::string interface = "lo";                    // network device; empty = all
  nanoseconds deadline = std::chrono::seconds(5);  // sign of life and progress per peer; at least 20 ms
  uint32_t max_operations = 4096;    // of this transport at once, queued ones included; beyond: exhausted, not posted
  uint32_t max_peers = 1024;         // known at once; beyond: exhausted
  uint64_t max_message = 16u << 20;  // bytes of one send; beyond: invalid_argument
  uint32_t max_pages = 65536;        // of one pull; beyond: invalid_argument
};

/// Thread rules: every member may be called from any thread (loopback: from the one that calls progress). Operations
/// are queued and return at once; an error result of the call itself means that the completion will not be called.
class transport {
 public:
  virtual ~transport() = default;

  /// Bytes by which other transports reach this one while it lives. Opaque, under 1 KiB.
  virtual const std::string& address() const = 0;

  /// Memory that peers can reach. exhausted when the system has none.
  virtual result<region_ptr> allocate(size_t bytes) = 0;

  /// Makes a peer known; no byte moves before its first use. The same address gives the same peer. A transport that
  /// sends to this one becomes known by itself. corrupt for a blob that no transport gave.
  virtual result<peer_id> add_peer(std::string_view address) = 0;
  /// Ends the connection (operations complete with peer_lost) and forgets the peer.
  virtual void remove_peer(peer_id peer) = 0;

  /// Copies bytes [remote_offset, +length) of the peer's region to [local_offset, +length) of `local`, which stays
  /// referenced until completion. Bad ranges: invalid_argument. Freed region: completes with stale.
  virtual result<void> get(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                           uint64_t remote_offset, uint64_t length, completion done) = 0;
  /// The other way.
  virtual result<void> put(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                           uint64_t remote_offset, uint64_t length, completion done) = 0;
  /// Moves pages of `page_bytes` from the peer's region into `local`. One completion for the whole list.
  virtual result<void> pull(peer_id peer, region_ptr local, const remote_region& remote, uint64_t page_bytes,
                            std::vector<page_move> pages, completion done) = 0;
  /// Sends a message; a peer without a handler for the channel answers not_found.
  virtual result<void> send(peer_id peer, channel_id channel, std::vector<std::byte> bytes, completion done) = 0;

  /// Sets the handler of a channel (empty: none), or of ended connections. Takes effect before it returns: a call of
  /// the old one that runs on the transport's thread has ended by then. What a handler uses must live until it is unset
  /// or the transport is destroyed.
  virtual void on_message(channel_id channel, message_handler handler) = 0;
  virtual void on_peer_lost(peer_lost_handler handler) = 0;

  virtual counters stats() const = 0;
};

}  // namespace troupe::transport
