// The sweep of the index families: drops, while files are rewritten anyway, what expired so long ago that reclaim must
// have seen it.
#pragma once

#include <memory>

#include "kv/index/db.hpp"

namespace troupe::kv {

/// Default of `make_index_sweeper`: a day. Reclaim removes an expired extent and frees its shards long before; what it
/// could not (it was off) is dropped from the index after this, and its shards are then orphans of the scrub.
inline constexpr int64_t sweep_grace_s = 86'400;

/// Drops extents and expiry entries whose expiry < now - grace, and blocks whose extent is gone or is such an extent.
/// Damaged records are kept: `check` reports them. Families other than the three of the index are left alone.
std::shared_ptr<const sweeper> make_index_sweeper(int64_t grace_s = sweep_grace_s);

}  // namespace troupe::kv
