// What the block store hands around, as parts of messages.
#pragma once

#include "actors/protocol/fields.hpp"
#include "kv/extent/footer.hpp"
#include "kv/hash/block_hash.hpp"
#include "kv/index/block_index.hpp"
#include "kv/store/scrub.hpp"

namespace troupe::kv {

TROUPE_FIELDS(block_place, extent, ordinal)
TROUPE_FIELDS(index_change, kind, info, owned, expiry_s)
TROUPE_FIELDS(remove_reply, removed, kept, changes)
TROUPE_FIELDS(reclaim_plan, extents, bytes, short_bytes, reason)
TROUPE_FIELDS(index_stats, extents, blocks, bytes, expired_extents, expired_blocks, expired_bytes, leases, corrupt)
TROUPE_FIELDS(index_finding, in, key, what, repaired)
TROUPE_FIELDS(index_cursor, in, key, done)
TROUPE_FIELDS(shard_key, extent, shard)
TROUPE_FIELDS(shard_usage, capacity, allocated, payload, shards, largest_free, chunks)
TROUPE_FIELDS(shard_footer, device, chunk, first_run, runs, sequence, shard, payload_bytes, crc_shift, crcs, extent)
TROUPE_FIELDS(scrub_report, extents, blocks, block_bytes, shards, shard_bytes, missing, rotten, orphans, young_orphans,
              strays, lost, lost_blocks, index_findings, unreplicated, draining, absent, rebuilt, adopted,
              removed_orphans, removed_strays, restored, dropped, relocated, kept_orphans, waiting, stopped, notes)

/// Lets CAF serialise an extent with its expiry.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, block_index::extent_entry& e) {
  return f(e.info, e.expiry_s, e.owned);
}

}  // namespace troupe::kv
