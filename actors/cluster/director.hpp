// The director: membership, roles, group views. Embedded form: one per cluster, soft state only (it is rebuilt from
// what the node agents report when they join again).
//
// A node:  joined --(no heartbeat for `lost_after`, down, or suspected by its group)--> lost --(joins again)--> joined.
// A seat:  empty --(a node with no seat, see policies/seat_choice.hpp)--> filled --(its node is lost or leaves)-->
// empty. A group gets its first view when every seat has reported an address, and a new one whenever the set of (rank,
// incarnation) with an address changes. It also gets a new one, of the same ranks, when they do not all become ready in
// theirs (policies/group_patience.hpp); after max_views of those `troupe status` reports its ranks as failed until its
// members change or become ready after all. The storage seats are a group too, which has a view as soon as one of them
// has an address: its epoch is the storage epoch. One front that is there and not draining has the active balancers
// (actors/protocol/balance.hpp), the same one as long as it lasts; every change is a new term.
#pragma once

#include <string>
#include <vector>

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// "That many ranks (or front processes) of that role, in that group."
struct wanted_group {
  role what = role::none;
  std::string group;
  uint32_t count = 1;
  uint32_t open = UINT32_MAX;  // seats that are to be filled from the start; others are opened when roles change
};

/// Ranks change between prefill and decode with the load: policies/role_plan.hpp. A unit is a rank.
struct role_changes {
  bool on = false;
  nanoseconds every{std::chrono::seconds(10)};  // between two plans; loads are smoothed over three times that
  nanoseconds drain{std::chrono::seconds(30)};  // for a rank's requests to finish before it changes
  uint32_t least_prefill = 1, least_decode = 1;
};

/// What a director is told at its start; times are on the actor clock.
struct director_options {
  std::string cluster = "troupe";
  cluster_epoch epoch{1};  // of a cluster that begins anew, and this director's term: grows from start to start
  std::vector<wanted_group> wanted;  // seats are given in this order
  nanoseconds heartbeat{std::chrono::milliseconds(500)};
  nanoseconds lost_after{std::chrono::seconds(3)};
  nanoseconds settle{
      0};  // no seat is given so long after the start, so that the nodes of a cluster that runs come first
  nanoseconds group_patience{std::chrono::seconds(10)};  // for a group to be ready in its view; then it gets another
  nanoseconds group_grace{std::chrono::seconds(1)};      // the same, where a step failed and no rank was suspected
  uint32_t max_views = 4;  // further views of the same ranks, each waited for twice as long; then the group has failed
  role_changes changes;
  nanoseconds view_every{0};  // changes within so long go out as one view: the start of a fleet has many
  uint32_t max_nodes = 4096;  // a further join is refused with `exhausted`
};

/// Spawns it on `node`; `unit` may be null.
director_actor spawn_director(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                              director_options options);

}  // namespace troupe::actors
