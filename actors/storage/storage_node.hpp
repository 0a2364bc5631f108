// The actor of a storage seat: opens the node's disks (behind storage_host), starts index, targets, client and
// scrubber, introduces them to clients, follows the view, reports.
//
//   starting --opened--> waiting --storage group's view has this node--> ready --drain_request--> drained
#pragma once

#include <memory>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/storage.hpp"
#include "actors/serving/roles.hpp"
#include "actors/storage/storage_host.hpp"

namespace troupe::actors {

/// Times of a storage node's background work; on the actor clock.
struct storage_times {
  nanoseconds reclaim_every{std::chrono::seconds(30)};
  nanoseconds repair_after{std::chrono::minutes(10)};   // after a change of the membership
  nanoseconds scrub_every{std::chrono::hours(24 * 7)};  // 0: never by itself
  nanoseconds staging_hold{std::chrono::seconds(10)};
};

/// The storage role, for the runtime's role_factory: one actor, named "<seat>/storage". It opens its host at once.
role_actors start_storage_role(const role_context& context, std::shared_ptr<storage_host> host,
                               const storage_times& times);

}  // namespace troupe::actors
