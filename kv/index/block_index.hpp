// The index of one owner: which extent holds a block, until when, and who may read it right now.
//
// Records (kv/index/keys.hpp): one per block, one per extent, one per extent in order of expiry; every change is one
// batch, so that a block record never names an extent that is not there, except as garbage older than the sweep grace.
// Expired means expiry < now, and every read compares it itself. A value that does not hold what it should is reported
// by `check`, counted, and taken for missing everywhere else.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/extent/extent.hpp"
#include "kv/index/db.hpp"
#include "kv/types.hpp"
#include "policies/ttl.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// What the index is told once.
struct index_options {
  int64_t agent_ttl_s = 3 * 86'400;
  int64_t chatbot_ttl_s = 7 * 86'400;
  int64_t step_s = 3'600;                        // expiries are multiples of this
  nanoseconds lease = std::chrono::seconds(10);  // what a reader may count on, by its own clock from the request on
  size_t leases_max = 65'536;                    // open leases; one more is errc::exhausted
  int64_t sweep_grace_s = 86'400;                // as the database's sweep was made (kv/index/sweep.hpp)
  bool hold_after_open = true;                   // leases of an earlier life may exist: reclaim waits twice `lease`
  crash_hook* hook = nullptr;                    // of tests; told before and after each batch
  sync_write sync = sync_write::no;              // whether an acknowledged change is safe from power loss
};

/// Where a block is.
struct block_place {
  extent_id extent;
  uint32_t ordinal = 0;  // block number within the extent
  bool operator==(const block_place&) const = default;
};

/// One change as the primary owner made it, for the further owners (apply), for a new owner (export_extents).
/// Applying is idempotent; changes of one extent must be applied in the order in which they were made.
struct index_change {
  enum class kind_t : uint8_t { put = 1, raise = 2, remove = 3, move = 4 };  // sent between processes: append only
  kind_t kind = kind_t::put;
  extent_info info;      // put: all of it; move: id, targets, epoch; otherwise only the id
  uint32_t owned = 0;    // put: bit j = block j of the extent is the winner of its hash
  int64_t expiry_s = 0;  // put, raise
  bool operator==(const index_change&) const = default;
};

inline constexpr size_t put_extents_max = 64;  // of one call: a context of 131,072 tokens in blocks of 128

/// Answer of `put`.
struct put_reply {
  std::vector<std::vector<block_place>> winners;  // [extent][block]: where that block is to be read
  std::vector<bool> recorded;                     // [extent]: false = no block of it won, its shards are to be freed
  std::vector<index_change> changes;              // for the further owners
};

/// The part of a chain that one slot (16 aligned blocks) holds.
struct match_slot {
  uint64_t number = 0;             // block position / 16
  std::vector<block_hash> hashes;  // of the slot's blocks from its first one on, 1 to 16
};

/// A run of blocks of one extent on the way of a match.
struct match_run {
  extent_id extent;
  uint64_t first = 0;    // block position in the chain
  uint32_t ordinal = 0;  // of that block within the extent
  uint32_t count = 0;
};

/// Answer of `match`.
struct match_reply {
  uint64_t first_missing = 0;   // smallest block position asked for that is not there; the end of the last slot if none
  std::vector<match_run> runs;  // only when asked for: what holds the blocks before first_missing, in order
  uint32_t probes = 0;          // records looked up
  std::vector<uint64_t> snapshots;  // block positions with a window snapshot at this owner; filled by who keeps any
};

/// Answer of `touch`.
struct touch_reply {
  size_t visible = 0;                 // blocks from the first on that are there
  std::vector<index_change> changes;  // what was raised, for the further owners
};

/// A promise that extents are not reclaimed.
struct lease_grant {
  uint64_t token = 0;      // never 0; names the lease within this life of the owner
  nanoseconds deadline{};  // owner's monotonic time until which the reader may use it
  std::vector<bool> held;  // per extent asked for: false = not there or expired, nothing is promised for it
};

/// Why extents go; for the log and for the checks made before.
enum class remove_why : uint8_t {
  expired = 1,   // only if it still is
  evicted = 2,   // a target passed its mark
  lost = 3,      // more than m shards are gone
  replaced = 4,  // an operator or a repair says so; goes even while leased
};

/// Answer of `remove`.
struct remove_reply {
  std::vector<extent_info> removed;   // shards of these are to be freed on info.targets
  std::vector<extent_id> kept;        // leased, held back after a restart, or no longer expired
  std::vector<index_change> changes;  // for the further owners
  bool operator==(const remove_reply&) const = default;
};

/// What `expired` and `evict` offer.
struct reclaim_plan {
  std::vector<extent_id> extents;  // in the order in which to remove them: children before parents
  uint64_t bytes = 0;              // sum of count * block_bytes
  uint64_t short_bytes = 0;        // of what was asked for, not found
  std::string reason;
  bool operator==(const reclaim_plan&) const = default;
};

/// What goes under pressure: every extent that expires before expiry_s, and of those that expire at it the ones that
/// lie deep enough in their chain.
struct evict_cut {
  int64_t expiry_s = 0;
  uint32_t depth = 0;  // within expiry_s: extents whose first block number is >= depth
};

/// Counters of the records. `extents`, `blocks` and `bytes` are exact whenever no call is under way, also after a
/// crash: they are counted at open from the expiry family. What expired more than the sweep grace ago is in neither
/// group.
struct index_stats {
  uint64_t extents = 0, blocks = 0, bytes = 0;                          // visible at `now`; bytes = count * block_bytes
  uint64_t expired_extents = 0, expired_blocks = 0, expired_bytes = 0;  // waiting for reclaim
  uint64_t leases = 0;
  uint64_t corrupt = 0;  // values that were found damaged since open
  bool operator==(const index_stats&) const = default;
};

/// One thing that `check` found.
struct index_finding {
  family in;
  std::string key;  // raw
  std::string what;
  bool repaired = false;
  bool operator==(const index_finding&) const = default;
};

/// Progress of `check` and `export_extents`: empty = from the start, `done` = all seen.
struct index_cursor {
  family in = family::extent;
  std::string key;
  bool done = false;
  bool operator==(const index_cursor&) const = default;
};

/// The index. Thread safe; calls block on the database. `now_s` is Unix time (unix_clock), `now` is the owner's
/// monotonic time; both are parameters, so the index itself reads no clock. Everything that it keeps in memory is
/// bounded: counters per expiry step and `leases_max` leases.
class block_index {
 public:
  /// Counts the records (about 0.3 s per million extents). `now`: nothing is reclaimed for twice the lease from here
  /// on, because leases of an earlier life are not known. Errors of the database.
  static result<std::unique_ptr<block_index>> open(db& database, const index_options& options, int64_t now_s,
                                                   nanoseconds now);
  virtual ~block_index() = default;

  /// Put-if-absent, block by block; each extent appears whole or not at all. A block that is already there and has not
  /// expired stays where it is, and that extent's expiry is raised as by a write; an expired one is replaced. The
  /// shards must be on disk. Expiry of a new extent: policies::plan_ttl for info.traffic. The ancestors must have been
  /// touched before (touch with ttl_touch::write). The same id again: answered as the first time. Errors:
  /// invalid_argument (count, crossing a slot), errors of the database; then nothing has changed.
  virtual result<put_reply> put(std::span<const extent_info> extents, int64_t now_s) = 0;

  /// Where each block is; nothing for missing and expired ones and those with another token count.
  virtual result<std::vector<std::optional<block_place>>> lookup(std::span<const block_hash> hashes, int64_t now_s) = 0;

  /// An extent and its expiry. not_found also when it has expired; corrupt when its record is damaged.
  struct extent_entry {
    extent_info info;
    int64_t expiry_s = 0;
    uint32_t owned = 0;  // bit j: block j is the winner of its hash
    bool operator==(const extent_entry&) const = default;
  };
  virtual result<extent_entry> extent(const extent_id& id, int64_t now_s) = 0;

  /// How far the chain is there (decision 27). `slots` in ascending order: those of the chain's slots that belong to
  /// this owner; all but the chain's last have 16 hashes. Only positions below `limit` count. Without `runs`, presence
  /// is taken for monotone: a binary search over the slots' last blocks, then a scan of the slot after the last full
  /// one; a hole is met when reading. With `runs`, every extent on the way is looked up and a hole ends the answer.
  /// Never extends.
  virtual result<match_reply> match(std::span<const match_slot> slots, uint64_t limit, bool runs, int64_t now_s) = 0;

  /// A real read or write of a chain (root first, consecutive among this owner's blocks): raises the expiry of the
  /// visible part by policies::plan_ttl, at most one write per extent and step. probe changes nothing.
  virtual result<touch_reply> touch(std::span<const block_hash> chain, policies::ttl_touch touch,
                                    policies::traffic_class traffic, int64_t now_s) = 0;

  /// Promises that the extents stay for the lease time; the owner keeps them as long again. Errors: exhausted.
  virtual result<lease_grant> lease(std::span<const extent_id> extents, int64_t now_s, nanoseconds now) = 0;
  /// Whether a reader may trust what it has read under the lease.
  virtual bool is_live(uint64_t token, nanoseconds now) = 0;
  /// Ends a lease early; unknown tokens are ignored.
  virtual void release(uint64_t token) = 0;

  /// Up to `limit` expired extents, earliest first.
  virtual result<reclaim_plan> expired(int64_t now_s, size_t limit) = 0;
  /// What to remove so that `need_bytes` become free, by policies::plan_evict over the first extents in order of expiry
  /// and depth, up to `cut` and at most `limit`; leased ones and their ancestors stay.
  virtual result<reclaim_plan> evict(uint64_t need_bytes, const evict_cut& cut, size_t limit, int64_t now_s,
                                     nanoseconds now) = 0;
  /// The smallest cut under which at least `need_bytes` lie (for gossip between owners); everything if there is less.
  virtual result<evict_cut> cut_for(uint64_t need_bytes) = 0;
  /// Takes extents and their block records out, each extent in one batch; unknown ids are ignored.
  virtual result<remove_reply> remove(std::span<const extent_id> extents, remove_why why, int64_t now_s,
                                      nanoseconds now) = 0;

  /// Follows the primary owner. Unknown extents in raise, move and remove are ignored, an expiry is only ever raised. A
  /// move says where the shards of an extent lie after a repair, and nothing else: unlike a put it cannot bring back an
  /// extent that was removed meanwhile. After an error a first part may have been applied: apply all of it again.
  virtual result<void> apply(std::span<const index_change> changes) = 0;
  /// Up to `limit` put changes of the extents for which `wanted` (given info.slot_first) is true, in the order of their
  /// ids from `at` on, which moves on. Expired ones are included: who takes over must reclaim them. Looks at no more
  /// than 64 * `limit` records, so there may be few or none before at.done.
  virtual result<std::vector<index_change>> export_extents(index_cursor& at, size_t limit,
                                                           const std::function<bool(const block_hash&)>& wanted) = 0;
  /// Takes extents found on targets into the index (rebuild): put-if-absent with expiry max(header, now + 1 h). Known
  /// ids are ignored. Answers which of them hold no block that is not elsewhere: orphans.
  virtual result<std::vector<extent_id>> restore(std::span<const extent_info> extents, int64_t now_s) = 0;

  /// Looks at up to `limit` records from `at` on, which moves on: values damaged, blocks without their extent, expiry
  /// entries that disagree. With `repair`, what can be derived from other records is written anew and the rest is
  /// removed (a damaged extent record: its blocks become missing until `restore` brings it back from the shards). Error
  /// corrupt: a file of the database itself is damaged; then the index is to be deleted and rebuilt with `restore`.
  virtual result<std::vector<index_finding>> check(index_cursor& at, size_t limit, bool repair, int64_t now_s) = 0;

  virtual index_stats stats(int64_t now_s) = 0;
};

}  // namespace troupe::kv
