// Which damaged extents are rebuilt in the next round, from where to where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A storage target and what it may spend on repair in this round.
struct repair_node {
  uint64_t id = 0;
  uint64_t domain = 0;
  uint64_t read_bytes = 0, write_bytes = 0;  // budgets
};

/// An extent that lacks shards.
struct repair_extent {
  uint64_t id = 0;
  uint32_t data = 0;  // shards that are needed to rebuild, k
  uint64_t shard_bytes = 0;
  std::vector<uint64_t> holders;  // nodes with a good shard
  uint32_t missing = 0;           // shards to be made again
};

/// The damage and the means.
struct repair_input {
  std::vector<repair_node> nodes;  // alive ones
  std::vector<repair_extent> extents;
  uint32_t max_tasks = 1024;
};

/// Read one shard from each of `sources`, rebuild, write one to each of `targets`.
struct repair_task {
  uint64_t extent = 0;
  std::vector<uint64_t> sources, targets;
};

/// The round.
struct repair_plan {
  std::vector<repair_task> tasks;  // most endangered first
  std::vector<uint64_t> lost;      // fewer than k holders are alive: nothing can be done
  std::vector<uint64_t> waiting;   // not in this round, or not all of their shards
  std::string reason;
};

/// Extents in the order of how many more losses they survive (alive holders - k), then as listed. Each reads from the k
/// alive holders that have spent the least of their read budget, and writes to nodes that hold no shard of it: first
/// those in a domain without a shard of it, among them the one that has spent the least of its write budget; ties to
/// the lowest id. No budget is exceeded. An extent that does not fit waits, later ones may still fit. Errors: an id 0
/// or twice, k 0, a holder twice.
result<repair_plan> plan_repair(const repair_input& in);

}  // namespace troupe::policies
