// Gives space back: what has expired, and under pressure what is worth least.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "kv/device/crash_point.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"

namespace troupe::kv {

/// When eviction begins and how far it goes, as shares of a target's capacity.
struct reclaim_options {
  double high = 0.90, low = 0.85;
  size_t batch = 256;            // extents per step
  std::optional<owner_id> only;  // what this owner is the primary of; none: everything
  crash_hook* crash = nullptr;
};

/// What was given back.
struct reclaim_report {
  uint64_t expired = 0, evicted = 0;  // extents
  uint64_t bytes = 0;                 // of block data
  uint64_t short_bytes = 0;           // still above the mark because the rest is leased
};

/// Takes expired extents out of the index, then frees their shards: until nothing that may go has expired. Leased ones
/// stay. A crash in between leaves shards without a record for scrub. Ends with the first error.
void reclaim_expired(members who, reclaim_options options, executor& home, reply<reclaim_report> done);

/// Where a target is above `high`: evicts by policies::plan_evict until all are at or below `low`, or nothing is left
/// that may go. Expired ones go first. Children before parents on each owner.
void evict_above_mark(members who, reclaim_options options, executor& home, reply<reclaim_report> done);

}  // namespace troupe::kv
