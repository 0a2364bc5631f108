// Window snapshots in memory: fixed-size entries keyed by the hash of the block at whose end they were taken.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/types.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// Sizes and times of a tier.
struct snapshot_tier_options {
  size_t entry_bytes = 0;                     // of every snapshot, > 0
  nanoseconds ttl = std::chrono::minutes(5);  // since an entry was written or last read
  size_t per_request = 3;                     // newest snapshots that a request keeps
  size_t max_pins = 1024;                     // entries being read at once
};

/// Numbers for metrics. An entry takes entry_bytes of the memory, a room that is being written too.
struct snapshot_tier_stats {
  size_t entries = 0, capacity = 0, pinned = 0, writing = 0;
  uint64_t puts = 0, hits = 0, misses = 0, expired = 0, evicted = 0, superseded = 0;
};

/// An entry that is being read: it stays where it is until it is given back.
struct snapshot_pin {
  uint64_t id = 0;
  std::span<const std::byte> bytes;
  uint32_t crc = 0;  // as it was written with
};

/// Room that is being written, in no hash's name yet.
struct snapshot_room {
  uint64_t id = 0;
  std::span<std::byte> bytes;
};

/// The tier of one storage node. Lost with the process, by design: it only saves replay. Bounded by the memory that it
/// is given; when that is full, the entry that was used longest ago and is not pinned makes room. Expired entries are
/// invisible at once. Times are those of one monotonic clock and never go back. Not thread safe.
class snapshot_tier {
 public:
  /// `memory` holds floor(size / entry_bytes) entries and must outlive the tier; the transport allocates it where peers
  /// pull from it.
  snapshot_tier(const snapshot_tier_options& options, std::span<std::byte> memory);

  /// Copies a snapshot in. `request` names who takes it, unique over all fronts; of one request only the newest
  /// `per_request` stay, unless another request holds the same entry. Writing a hash that is there renews it and keeps
  /// its bytes, which are the same by what the hash means. Errors: invalid_argument (another size), exhausted (every
  /// entry is pinned).
  result<void> put(uint64_t request, const block_hash& at, std::span<const std::byte> bytes, nanoseconds now);

  /// The same in two steps, for bytes that come from elsewhere: room is taken, and becomes the entry once it is
  /// written. Errors: exhausted (as put; or half of the entries are being written).
  result<snapshot_room> begin(nanoseconds now);
  /// `crc`: of the bytes, for readers. Where the hash has an entry already, that one is renewed and the room given
  /// back. Errors: invalid_argument (no such room).
  result<void> finish(uint64_t room, uint64_t request, const block_hash& at, uint32_t crc, nanoseconds now);
  /// As put, where the hash has an entry already: nothing needs to be copied. False: there is none.
  bool renew(uint64_t request, const block_hash& at, nanoseconds now);
  /// Gives room back unused; unknown ones are ignored.
  void abandon(uint64_t room);

  /// The newest (longest) snapshots of a chain, at most `limit` of them, as positions into `chain`, newest first. Looks
  /// only: extends nothing.
  std::vector<size_t> newest(std::span<const block_hash> chain, size_t limit, nanoseconds now) const;

  /// Starts reading one and extends its life. Errors: not_found, exhausted (max_pins).
  result<snapshot_pin> pin(const block_hash& at, nanoseconds now);
  /// Ends reading. An id that was not given out, or twice: invalid_argument.
  result<void> unpin(uint64_t id);

  /// The request keeps this one no longer; it goes unless another one does. Ignored where the request does not.
  void release(uint64_t request, const block_hash& at);
  /// The request has ended: its entries stay for their ttl, but nothing is kept about it any more.
  void forget(uint64_t request);
  /// Frees expired entries that nobody reads; returns how many. Called now and then, and when memory is short.
  size_t sweep(nanoseconds now);
  snapshot_tier_stats stats() const;

 private:
  using place = uint32_t;  // index of an entry in the memory
  struct entry {
    block_hash at;
    nanoseconds expiry{0};
    uint64_t used = 0;     // order of use; key in by_use_
    uint32_t holders = 0;  // requests that keep it among their newest
    uint32_t pins = 0;
    uint32_t crc = 0;
    bool live = false;  // reachable by its hash; a dead entry only waits for its pins
  };

  std::byte* bytes_of(place p) { return memory_.data() + size_t{p} * options_.entry_bytes; }
  void use(place p, nanoseconds now);
  void drop(place p);
  void release_holder(const block_hash& at);
  void drop_idle_requests();
  bool visible(const block_hash& at, nanoseconds now, place* p) const;
  result<place> take_place(nanoseconds now);
  void keep(uint64_t request, const block_hash& at, place p, nanoseconds now);

  const snapshot_tier_options options_;
  const std::span<std::byte> memory_;
  std::vector<entry> entries_;
  std::vector<place> free_;
  std::unordered_map<block_hash, place> by_hash_;
  std::map<uint64_t, place> by_use_;   // live entries, used longest ago first
  std::map<uint64_t, place> pinned_;   // by pin id
  std::map<uint64_t, place> writing_;  // by room id
  // Newest entries of a request, oldest first. Requests that hold nothing live are dropped by sweep(), at the latest
  // when there are twice as many as entries; those that are still too many then are forgotten.
  std::unordered_map<uint64_t, std::deque<block_hash>> requests_;
  uint64_t clock_ = 0, next_pin_ = 1;
  snapshot_tier_stats counts_;
};

}  // namespace troupe::kv
