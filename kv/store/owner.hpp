// An index owner as the client sees it: calls that return at once, and one reply each on the client's executor.
//
// An owner keeps the records of the slots that hash to it (primary), and copies of its neighbours' (replica). The local
// one is a block_index of this process; a remote one will send the same plain structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kv/index/block_index.hpp"
#include "kv/store/target.hpp"
#include "policies/ttl.hpp"

namespace troupe::kv {

using owner_id = strong_id<struct owner_id_tag, uint32_t>;

/// Looks blocks up, by their hashes, in any order.
struct lookup_request {
  std::vector<block_hash> hashes;
  bool lease = false;  // take a lease on every extent found
};

/// One place per hash; nothing for unknown and expired blocks. `extents`: every extent named in `blocks`, once each,
/// but for those whose record is damaged or just gone. `lease`: 0 when none was asked for or nothing was found.
struct lookup_reply {
  std::vector<std::optional<block_place>> blocks;
  std::vector<block_index::extent_entry> extents;
  uint64_t lease = 0;
};

/// Runs of consecutive blocks of one chain that this owner holds, root first.
struct touch_request {
  std::vector<std::vector<block_hash>> runs;
  policies::ttl_touch touch = policies::ttl_touch::read;
  traffic_class traffic = traffic_class::agent;
};

/// An index owner. All calls on the executor. Errors, besides those named: io, unavailable (the owner is gone). A
/// record that does not hold its checksum counts as missing everywhere.
class owner {
 public:
  virtual ~owner() = default;
  virtual owner_id id() const = 0;
  virtual void lookup(lookup_request request, reply<lookup_reply> done) = 0;
  /// block_index::match without runs: slots of one chain, ascending, the block positions below `limit`.
  virtual void match(std::vector<match_slot> slots, uint64_t limit, reply<match_reply> done) = 0;
  /// block_index::put. Reply: safe from the death of the process.
  virtual void put(std::vector<extent_info> extents, reply<put_reply> done) = 0;
  /// Takes over what the primary decided.
  virtual void apply(std::vector<index_change> changes, reply<void> done) = 0;
  /// Raises expiries. Reply: what was raised, for the replicas.
  virtual void touch(touch_request request, reply<std::vector<index_change>> done) = 0;
  /// Ends a lease early. No reply: unknown ones are ignored.
  virtual void release(uint64_t lease) = 0;
  /// Whether a lease still protects what is being read under it.
  virtual void is_live(uint64_t lease, reply<bool> done) = 0;
  /// What has expired, at most `limit` extents, replicas included. Only the primary owner of an extent may reclaim it,
  /// because it alone knows the leases.
  virtual void expired(size_t limit, reply<reclaim_plan> done) = 0;
  /// What should go so that `bytes` of block data become free.
  virtual void evict(uint64_t bytes, size_t limit, reply<reclaim_plan> done) = 0;
  /// The extents of these ids, expired or not; unknown ones are left out.
  virtual void describe(std::vector<extent_id> extents, reply<std::vector<extent_info>> done) = 0;
  /// Takes extents out of the index; afterwards their shards are to be removed.
  virtual void remove(std::vector<extent_id> extents, remove_why why, reply<remove_reply> done) = 0;
  /// Everything, expired or not, in the order of extent ids; `at` moves on (reply: the cursor to go on from).
  virtual void list(index_cursor at, size_t limit, reply<std::pair<std::vector<index_change>, index_cursor>> done) = 0;
  /// block_index::restore. Reply: which of them hold nothing that is not elsewhere.
  virtual void restore(std::vector<extent_info> extents, reply<std::vector<extent_id>> done) = 0;
  /// block_index::check over a part.
  virtual void check(index_cursor at, size_t limit, bool repair,
                     reply<std::pair<std::vector<index_finding>, index_cursor>> done) = 0;
  virtual void stats(reply<index_stats> done) = 0;
};

}  // namespace troupe::kv
