// Who stores: the targets and index owners of one storage epoch.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kv/store/owner.hpp"
#include "kv/store/target.hpp"
#include "policies/shard_place.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// Targets and owners as of one epoch. The pointers must outlive everything that uses the members.
struct members {
  storage_epoch epoch{1};
  std::map<target_id, target*> targets;       // all that may hold shards, also those that get no new ones
  std::vector<policies::shard_node> placing;  // those that get new shards: id = target_id, alive, weight > 0
  std::vector<owner*> owners;                 // ascending by id; all there should be, so that no slot moves
  std::vector<owner_id> away;                 // those of them that do not answer now
  uint32_t replicas = 0;                      // owners besides the primary that keep a slot (m of the code)
};

/// Whether new shards go to `t`. A target for which that is not so, and which answers, is being drained.
bool takes_new(const members& m, target_id t);

/// The owners of a slot by the hash of its first block: primary first, then replicas; at most 1 + replicas of them.
/// Rendezvous hashing: when an owner goes, only its slots move.
std::vector<owner*> owners_of(const members& m, const block_hash& first_of_slot);

/// The first of them that is there: the one that reclaims and repairs. Null when all are away.
owner* primary_of(const members& m, const block_hash& first_of_slot);

/// Targets for a new extent by policies::place_shards; `without` are left out. Errors: unavailable, which says how many
/// there are and how many are needed.
result<std::vector<target_id>> place(const members& m, const extent_id& id, uint32_t data, uint32_t parity,
                                     const std::vector<target_id>& current = {},
                                     const std::vector<target_id>& without = {});

}  // namespace troupe::kv
