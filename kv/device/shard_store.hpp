// The local part of one storage target: shards of extents on one disk, their records in a database.
//
// Write order of a put: runs reserved in memory -> payload and footer written in one piece -> (durability power: disk
// synced) -> one batch with the shard's record: the commit point. Of a removal: batch without the record (commit point)
// -> footer wiped, so that a later rebuild does not find it -> runs free. A replacement is both: new runs, commit, old
// footer wiped, old runs free. Runs are never used again before the commit that frees them has returned, nor while a
// read of them is under way. What a crash leaves: runs without a record, which are free again at the next open.
//
// The record of a shard is a copy of its footer (extent/footer.hpp). Which runs are taken is not stored anywhere: it is
// derived from the records at open, so the accounting cannot differ from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/device/disk.hpp"
#include "kv/extent/extent.hpp"
#include "kv/extent/footer.hpp"
#include "kv/index/db.hpp"
#include "kv/types.hpp"

namespace troupe::kv {

/// What an acknowledged put survives. `process`: the death of the process (SIGKILL); after power loss some of the last
/// puts may be gone or rotten, which reads detect. `power`: power loss too; two syncs for each commit.
enum class durability : uint8_t { process = 0, power = 1 };

/// Bounds of a chunk file; all have a multiple of 4 KiB.
constexpr uint64_t min_chunk_bytes = uint64_t{1} << 20, max_chunk_bytes = uint64_t{1} << 34;

/// Settings of one target.
struct shard_store_options {
  target_id target{1};                           // whose records these are; several targets may share a database
  uint64_t capacity_bytes = uint64_t{64} << 30;  // of chunk files; rounded down to whole ones, at least one
  uint64_t chunk_bytes = uint64_t{256} << 20;    // in the bounds above; files that exist keep their size
  durability durable = durability::process;
  device_uuid new_device{};        // identity that a new device gets: random (not all zero)
  bool accept_blank_disk = false;  // a disk without chunk files in the place of one whose records are there: the
                                   // records are dropped. Otherwise refused: the disk may only not be mounted
  // The disk is taken for this target as it is: a blank one as above, one of another device with the shards that it
  // holds; the records of the device before are dropped.
  bool renew = false;
  // Nothing is written, on disk or in the database: puts and removals are refused, headers and records that do not hold
  // are left as they are, and records that must be rebuilt are errc::stale.
  bool read_only = false;
  crash_hook* crash = nullptr;  // tests only
};

/// Names a shard.
struct shard_key {
  extent_id extent;
  uint32_t shard = 0;
  auto operator<=>(const shard_key&) const = default;
};

/// One shard to write: `payload` is shard_bytes(extent) long and stays valid until the call returns. Where `room` is
/// given, it is the 4 KiB aligned buffer of shard_buffer_bytes(payload) whose start is the payload: zeros and footer
/// are then written into it and no copy is made.
struct shard_put {
  const extent_info* extent = nullptr;
  uint32_t shard = 0;
  std::span<const std::byte> payload;
  std::span<std::byte> room;
};

/// Space of a target. Bytes; exact at any time, and the same after a crash and reopen (but the runs of a record that
/// rots in the database while it is open come back at the next open only).
struct shard_usage {
  uint64_t capacity = 0;   // that runs may take: chunk files that exist or may still be made, without their headers
  uint64_t allocated = 0;  // in runs of shards (padding and footers included), and of removed ones still being read
  uint64_t payload = 0;    // true bytes of shards
  uint64_t shards = 0;
  uint64_t largest_free = 0;  // longest row of free bytes in one chunk: no larger shard fits
  uint32_t chunks = 0;        // files that exist
  bool operator==(const shard_usage&) const = default;
};

/// What `open` or `rebuild` found.
struct shard_store_report {
  bool rebuilt = false;  // records were made again from the shards
  uint64_t shards = 0;
  uint64_t dropped_records = 0;   // records that were no footer, pointed outside of the disk or at a newer shard's runs
  uint64_t repaired_headers = 0;  // chunk headers that did not hold and were written again
  uint64_t rotten = 0;            // rebuild: footers whose runs do not hold their checksums
  uint64_t superseded = 0;        // rebuild: older versions of a shard, shards under a newer one
};

/// See the top of this file. Every call may be made from any thread at any time and blocks on the disk: call it from an
/// I/O pool. Two puts or removals of the same shard at a time happen one after the other.
class shard_store {
 public:
  /// Opens the target on `d` and `database`, both of which must outlive it. A disk with chunk files of a device that
  /// the database does not know is rebuilt from its shards (reads all of it). Errors: invalid_argument (options),
  /// unavailable (the database knows another device than the one on the disk: says which; or a blank disk that is not
  /// accepted: nothing is changed), io, exhausted.
  static result<std::unique_ptr<shard_store>> open(disk& d, db& database, const shard_store_options& options);

  /// Drops no committed shard, waits for nothing: calls under way are the caller's bug.
  ~shard_store();

  /// Writes shards with one commit: all or none become visible. A shard that exists is replaced. Errors:
  /// invalid_argument (extent, shard index or payload size; nothing done), exhausted (no room: nothing done), io
  /// (nothing visible, unless the database failed in the commit itself: then it refuses everything until it is opened
  /// again).
  result<void> put(std::span<const shard_put> shards);
  result<void> put(const extent_info& extent, uint32_t shard, std::span<const std::byte> payload);

  /// Fills `out` with payload bytes [offset, offset + out.size()). Bytes are returned only if their granules hold their
  /// checksums. Aligned whole granules into an aligned `out` take no copy. Errors: not_found, invalid_argument (past
  /// the end), corrupt, io; `out` is unspecified then.
  result<void> read(const extent_id& extent, uint32_t shard, uint64_t offset, std::span<std::byte> out);

  /// The same without the last copy: `sink` is called once, on this thread, with exactly these bytes, which live until
  /// it returns; not at all after an error.
  result<void> read(const extent_id& extent, uint32_t shard, uint64_t offset, uint64_t bytes,
                    const std::function<void(std::span<const std::byte>)>& sink);

  /// The record of a shard. Errors: not_found, corrupt (the record is no footer), io.
  result<shard_footer> stat(const extent_id& extent, uint32_t shard) const;

  /// Removes shards with one commit; those that do not exist are skipped. Returns how many existed. A record that is no
  /// footer is removed too. Errors: io.
  result<size_t> remove(std::span<const shard_key> shards);
  result<size_t> remove(const extent_id& extent, uint32_t shard);

  /// Up to `n` records in key order, from the first after `after` (none: from the start). Records that are no footer
  /// are left out and counted in `corrupt` if given. An empty answer is the end.
  result<std::vector<shard_footer>> list(const std::optional<shard_key>& after, size_t n,
                                         uint64_t* corrupt = nullptr) const;

  /// Reads all of a shard from the disk: every granule and the footer must hold and equal the record. Errors: as read.
  result<void> check(const extent_id& extent, uint32_t shard);

  /// Reads all chunk headers and writes those again that do not hold. Returns how many. Errors: io.
  result<uint64_t> check_headers();

  /// Reads the room that no record takes, in the chunk files that exist, and tells of every shard that lies there
  /// whole: what the records should name, had they not been lost, and what a crash left between a removal's commit and
  /// its wipe. `each` returns false to end. Versions of a shard that are older than the recorded one are left out.
  /// Returns how many. Puts and removals may run meanwhile; what they touch may or may not be told of. Errors: io.
  result<uint64_t> find_unrecorded(const std::function<bool(const shard_footer&)>& each);

  /// Forgets all records and makes them again from the shards on the disk (reads all of it, twice where shards are).
  /// May be cut and is then done again by the next open. No other call may run meanwhile.
  result<shard_store_report> rebuild();

  shard_usage usage() const;
  const shard_store_report& report() const;  // of open, or of the last rebuild
  const device_uuid& device() const;

  /// Names of all crash points of this class, in the order of passing.
  static std::span<const std::string_view> crash_points();

 private:
  struct impl;
  explicit shard_store(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

}  // namespace troupe::kv
