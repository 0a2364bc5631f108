// The scrubber of a storage node: looks after the extents whose primary owner is on this node. It gives back what has
// expired, evicts above the mark, rebuilds what is lost, on its own clock and when it is asked.
//
//   idle --kv_scrub, or `repair_after` a change of the membership, or every `scrub_every`--> running --> idle
//   every `reclaim_every`: expired extents out, eviction; not within twice the lease of a change of the membership,
//   because the leases that an owner of before has given are not known here
#pragma once

#include <memory>

#include "actors/protocol/storage.hpp"
#include "actors/storage/store_client.hpp"
#include "kv/store/reclaim.hpp"

namespace troupe::actors {

/// What a scrubber is told at its start; times are on the actor clock.
struct scrubber_options {
  kv::owner_id owner;                      // of its node
  std::shared_ptr<store_session> session;  // of its node
  const kv::unix_clock* wall = nullptr;
  kv::reclaim_options reclaim;
  bool index_lost = false;  // scrubs restore it, until one has put everything right; then index_complete is called
  std::function<void()> index_complete;
  uint64_t bytes_per_s = 64ull << 20;  // that a run of its own may read; one that was asked for is not held back
  nanoseconds reclaim_every{std::chrono::seconds(30)};
  nanoseconds lease{std::chrono::seconds(10)};
  nanoseconds repair_after{std::chrono::minutes(10)};
  nanoseconds scrub_every{std::chrono::hours(24 * 7)};  // 0: never by itself
};

/// Spawns it as a child of `parent`.
scrubber_actor spawn_scrubber(caf::local_actor* parent, scrubber_options options);

}  // namespace troupe::actors
