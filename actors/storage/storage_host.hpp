// What the runtime opens for a storage node: disks, index, I/O pool, the data plane. The actors use it through
// pointers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/hash/block_hash.hpp"
#include "kv/store/client.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/local_owner.hpp"
#include "kv/store/reclaim.hpp"
#include "kv/tiers/snapshot_tier.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::actors {

/// One disk of the node.
struct opened_disk {
  kv::target_id id;
  kv::shard_store* store = nullptr;  // null: absent
  std::string text;                  // why it is absent, or where it is
};

/// All of it. What is pointed to lives until the last copy of `keep` is gone.
struct opened_storage {
  std::shared_ptr<void> keep;
  kv::hash_scheme scheme;
  uint32_t data = 2, parity = 1;
  uint32_t seat = 0, seats = 1, disks = 1;  // disks of every node
  std::vector<opened_disk> targets;         // of this node, `disks` of them
  kv::block_index* index = nullptr;
  kv::worker* blocking = nullptr;
  const kv::unix_clock* wall = nullptr;
  std::shared_ptr<transport::transport> plane;
  uint64_t staging_bytes = 32ull << 20;  // of each target
  kv::snapshot_tier_options snapshots;   // entry_bytes 0: this node keeps no window snapshots
  uint64_t snapshot_bytes = 0;           // memory for them
  kv::reclaim_options reclaim;
  kv::client_options client;  // of the node's own client; the seed is drawn already
  uint64_t scrub_bytes_per_s = 0;
  // The index was lost: until a scrub has restored it, shards without a record are not orphans. The function is called
  // then, from an actor; it must not block.
  bool index_lost = false;
  std::function<void()> index_complete;
  std::vector<std::string> notes;  // what was found at open, for people
};

/// Opens it. Thread rules: open and stop are called from an actor and return at once; `done` comes on any thread, once,
/// unless stop comes first.
class storage_host {
 public:
  virtual ~storage_host() = default;
  virtual void open(std::function<void(result<opened_storage>)> done) = 0;
  /// The node's actors have been told to end.
  virtual void stop() = 0;
};

}  // namespace troupe::actors
