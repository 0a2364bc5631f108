// Reads everything, says what is wrong, and puts it right.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"
#include "kv/types.hpp"

namespace troupe::kv {

/// How much of it.
struct scrub_options {
  bool repair = false;     // false: look only (verify)
  bool restore = false;    // shards without a record come back into the index (it was lost); otherwise they are orphans
  bool drop_lost = false;  // extents with fewer than k good shards go for good; otherwise they are kept and reported
  int64_t orphan_grace_s = 3600;  // younger shards without a record may belong to a write under way: left alone
  uint64_t window = 64ull << 20;  // bytes of shards being checked or rebuilt at once
  std::shared_ptr<std::atomic<bool>> stop;                   // may be null; true: end after what is under way
  std::function<void(const struct scrub_report&)> progress;  // may be null; called after each extent
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
  uint64_t lost = 0;              // extents with fewer than k good shards
  uint64_t lost_blocks = 0;       // in these
  uint64_t index_findings = 0;    // records that contradict each other or do not hold their checksum
  uint64_t unreplicated = 0;      // records that one of their owners lacks
  std::vector<target_id> absent;  // targets that did not answer
  // done
  uint64_t rebuilt = 0, adopted = 0, removed_orphans = 0, removed_strays = 0, restored = 0, dropped = 0;
  uint64_t waiting = 0;            // extents that could not be repaired now: too few targets or a write that failed
  bool stopped = false;            // by `stop`, before the end
  std::vector<std::string> notes;  // the first 100 findings in words

  /// Nothing wrong was found; what the index does not know yet but is young counts as a write under way.
  bool clean() const;
  /// Everything that was wrong has been put right.
  bool repaired() const;
};

/// Compares the index with itself, every owner's records with every target's shards, and reads every shard. With
/// `repair`: damaged records are dropped or restored from the shards, lost shards are rebuilt from k others onto the
/// targets that policies::plan_repair chooses, orphans removed. Extents beyond repair are kept, because what
/// they lack may come back; with `drop_lost` they are dropped, if every target that they name answered. Order of a
/// rebuild: shard written -> index told; a crash in between leaves a stray, which the next run adopts. Reads and writes
/// go on meanwhile. All on the executor, which must outlive it, as must the members' targets and owners. Errors: those
/// of an owner; everything else is in the report.
void scrub(members who, scrub_options options, executor& home, const unix_clock& wall, reply<scrub_report> done);

}  // namespace troupe::kv
