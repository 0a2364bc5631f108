// The index owner as an actor: kv::local_owner behind messages. Every question that touches the database runs on the
// I/O pool and answers when that comes back.
#pragma once

#include <memory>

#include "actors/protocol/storage.hpp"
#include "kv/store/local_owner.hpp"

namespace troupe::actors {

/// Window snapshots of the same node, for match replies.
class snapshot_listing {
 public:
  virtual ~snapshot_listing() = default;
  /// Positions in `chain` of the newest snapshots, at most `limit`, newest first. Any thread.
  virtual std::vector<size_t> newest(std::span<const kv::block_hash> chain, size_t limit) const = 0;
};

/// What an index owner is told at its start. What is pointed to must outlive the actor and everything on the pool.
struct kv_index_options {
  std::shared_ptr<void> keep;  // held as long as the actor or work of it lives: whoever owns the rest waits for it
  kv::owner_id id;
  kv::block_index* index = nullptr;
  kv::worker* blocking = nullptr;
  const kv::unix_clock* wall = nullptr;
  std::shared_ptr<const snapshot_listing> snapshots;  // may be null
  uint32_t max_open = 4096;                           // questions under way; one more is refused with `exhausted`
};

/// Spawns it as a child of `parent`.
kv_index_actor spawn_kv_index(caf::local_actor* parent, kv_index_options options);

}  // namespace troupe::actors
