// A storage target as the client sees it: calls that return at once, and one reply each on the client's executor.
//
// The local one runs a shard_store of this process; a remote one will send the same plain structs. Bytes do not travel
// inside them: a local target writes from and copies into the spans given, a remote one pulls and is pulled from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/device/shard_store.hpp"
#include "kv/extent/extent.hpp"
#include "kv/types.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// How an answer comes back: exactly once, on the executor of whoever asked, never inside the call.
template <class T>
using reply = std::function<void(result<T>)>;

/// Stores one shard. `payload` is shard_bytes(*info) bytes; `room`, if given, begins with it, is aligned and has room
/// for whole runs with the footer, which the target then writes in place. Both must live until the reply; `keep` may
/// hold them.
struct put_shard {
  std::shared_ptr<const extent_info> info;
  uint32_t shard = 0;
  std::span<const std::byte> payload;
  std::span<std::byte> room;
  std::shared_ptr<const void> keep;
};

/// Memory that a read writes into, which its owner can take back while the read is still under way: the read then
/// writes nothing any more. That is how the loser of a race against a hedge is kept out of reused memory.
class read_guard {
 public:
  /// Copies unless the memory was taken back; any thread.
  template <class F>
  void deliver(F&& copy) {
    std::lock_guard lock(mutex_);
    if (!revoked_) copy();
  }
  /// After this returns nothing is written any more; any thread.
  void revoke() {
    std::lock_guard lock(mutex_);
    revoked_ = true;
  }

 private:
  std::mutex mutex_;
  bool revoked_ = false;
};

/// Reads bytes [offset, offset + sum of into) of a shard's payload into the spans, one after the other. What is
/// delivered has been checked against the shard's checksums. The spans live until the reply or until `guard` is
/// revoked.
struct read_shard {
  shard_key at;
  uint64_t offset = 0;
  std::vector<std::span<std::byte>> into;
  std::shared_ptr<read_guard> guard;  // may be null: never taken back
};

/// A storage target. All calls on the executor. Errors, besides those named: io (the device refused), exhausted (the
/// queue is full; try again), unavailable (the target is gone).
class target {
 public:
  virtual ~target() = default;
  virtual target_id id() const = 0;
  /// Reply: the shard will survive the death of the process (and power loss, if the target was opened so). A shard that
  /// is there already is replaced. Errors: exhausted (disk full; reads go on), invalid_argument.
  virtual void put(put_shard request, reply<void> done) = 0;
  /// Errors: not_found (no such shard here), corrupt (its checksum does not hold; nothing was delivered).
  virtual void read(read_shard request, reply<void> done) = 0;
  /// Frees shards; those that are not there count as done.
  virtual void remove(std::vector<shard_key> shards, reply<void> done) = 0;
  /// Up to `limit` footers in the order of (extent, shard), from the first after `after`; an empty answer is the end.
  /// Records that do not hold are left out.
  virtual void list(std::optional<shard_key> after, size_t limit, reply<std::vector<shard_footer>> done) = 0;
  /// Reads the whole shard and checks it and its footer. Errors: not_found, corrupt.
  virtual void check(shard_key at, reply<void> done) = 0;
  virtual void usage(reply<shard_usage> done) = 0;
};

}  // namespace troupe::kv
