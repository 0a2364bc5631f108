// Which nodes hold the shards of an extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A storage target that may hold shards.
struct shard_node {
  uint64_t id = 0;      // > 0, stable over restarts
  uint64_t domain = 0;  // what fails together: host, rack
  uint32_t weight = 1;  // share of the shards, e.g. its capacity in 100 GB; 1 to 2^24; 0: holds nothing new
};

/// One extent and the members of a storage epoch.
struct shard_place_input {
  uint64_t key_high = 0, key_low = 0;  // the extent id
  uint32_t data = 10, parity = 2;      // k, m
  std::vector<shard_node> nodes;
  std::vector<uint64_t> current;  // node of each shard before this epoch; empty: a new extent. 0: that shard is lost
};

/// The targets.
struct shard_place_plan {
  std::vector<uint64_t> nodes;   // node id per shard, data shards first; all different
  uint32_t moved = 0;            // shards whose node differs from `current`
  uint32_t per_domain = 0;       // most shards in one domain
  bool survives_domain = false;  // any one domain may go: per_domain <= parity
  std::string reason;
};

/// Weighted rendezvous hashing: every node draws from (key, node id); the largest draws win, at most ceil(n / domains)
/// per domain where domains are those with a node of weight > 0 (more where small domains leave shards over). Shards
/// whose node still wins stay at their index, the others fill the gaps. So when a node leaves, only its shards move,
/// and when one comes, an extent moves at most one shard there (while the number per domain stays the same). Only
/// integers decide: the same on every machine. Errors: k or n out of 1..255, an id 0 or twice, weights above 2^24,
/// `current` of another length, fewer usable nodes than shards. Source: rendezvous hashing, Thaler and Ravishankar
/// 1998; the weighted form by -w / log(u).
result<shard_place_plan> place_shards(const shard_place_input& in);

}  // namespace troupe::policies
