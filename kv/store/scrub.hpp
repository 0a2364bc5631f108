// Reads everything, says what is wrong, and puts it right.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"
#include "kv/types.hpp"

namespace troupe::kv {

/// How much of it.
struct scrub_options {
  bool repair = false;  // false: look only (verify)
  // The index is not complete (it was lost): shards without a record come back into it; what cannot come back is kept
  // until it is known to be worthless. Otherwise they are orphans.
  bool restore = false;
  bool drop_lost = false;  // extents with fewer than k good shards go for good; otherwise they are kept and reported
  int64_t orphan_grace_s = 3600;  // younger shards without a record may belong to a write under way: left alone
  // Only extents of which this owner is the primary, and only its records: every node does its own part. None: all.
  std::optional<owner_id> primary;
  uint64_t window = 64ull << 20;                             // bytes of shards being checked or rebuilt at once
  uint64_t bytes_per_s = 0;                                  // that are read, at most, on average; 0: no limit
  std::shared_ptr<std::atomic<bool>> stop;                   // may be null; true: end after what is under way
  std::function<void(const struct scrub_report&)> progress;  // may be null; called after each extent
  // May be null; called once, before damaged records of an index go: from then on, until the end of the run, the index
  // is not complete, which must survive a crash. On the executor.
  std::function<result<void>()> before_index_repair;
  crash_hook* crash = nullptr;
};

/// What was found and done. After a repair: found counts what was wrong before.
struct scrub_report {
  uint64_t extents = 0, blocks = 0, block_bytes = 0;  // in the index, expired ones too
  uint64_t shards = 0, shard_bytes = 0;               // checked
  // found
  uint64_t missing = 0;           // shards that the index names and nobody has
  uint64_t rotten = 0;            // shards that do not hold their checksum, or are of another extent
  uint64_t orphans = 0;           // shards of extents that the index does not know
  uint64_t young_orphans = 0;     // of these, younger than the grace
  uint64_t strays = 0;            // shards at a target that the index does not name for them
  uint64_t lost = 0;              // extents with fewer than k good shards, also such that have no record
  uint64_t lost_blocks = 0;       // in these
  uint64_t index_findings = 0;    // records that contradict each other or do not hold their checksum
  uint64_t unreplicated = 0;      // records that one of their owners lacks
  uint64_t draining = 0;          // shards on targets that get no new ones
  std::vector<target_id> absent;  // targets that did not answer
  // done
  uint64_t rebuilt = 0, adopted = 0, removed_orphans = 0, removed_strays = 0, restored = 0, dropped = 0,
           relocated = 0;          // shards taken off targets that get no new ones
  uint64_t kept_orphans = 0;       // shards without a record that may yet be needed: the index is not complete
  uint64_t waiting = 0;            // extents that could not be repaired now: too few targets or a write that failed
  bool stopped = false;            // by `stop`, before the end
  std::vector<std::string> notes;  // the first 100 findings in words

  /// Nothing wrong was found; what the index does not know yet but is young counts as a write under way. Shards on
  /// targets that are being drained are no fault.
  bool clean() const;
  /// Everything that was wrong has been put right.
  bool repaired() const;
  bool operator==(const scrub_report&) const = default;
};

/// Compares the index with itself, every owner's records with every target's shards, and reads every shard. With
/// `repair`: damaged records are dropped or restored from the shards, lost shards are rebuilt from k others onto the
/// targets that policies::plan_repair chooses, shards on targets that get no new ones are copied to others, orphans
/// removed. Extents beyond repair are kept, because what
/// they lack may come back; with `drop_lost` they are dropped, if every target that they name answered. Order of a
/// rebuild: shard written -> index told; a crash in between leaves a stray, which the next run adopts. Reads and writes
/// go on meanwhile. All on the executor, which must outlive it, as must the members' targets and owners. Errors: those
/// of an owner; everything else is in the report.
void scrub(members who, scrub_options options, executor& home, const unix_clock& wall, reply<scrub_report> done);

}  // namespace troupe::kv
