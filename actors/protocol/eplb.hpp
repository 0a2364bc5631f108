// Expert placement of an EP group: what its ranks count, and how they all move to another placement.
//
// Every rank's process has a rebalancer; the one of the first rank of the group view does the work.
//
//   eplb_rebalancer                                  expert_shard (one per rank)            engine
//     | load_query{group, min_steps}                   |                                      |
//     |----------------------------------------------->| engine::take_expert_window           |
//     |<---------------------------------- load_report |                                      |
//     |  policies/eplb                                 |                                      |
//     | stage_placement{group, from, to, slots}        |                                      |
//     |----------------------------------------------->| engine::stage                        |
//     |                                                |      loads a few experts per step -->|
//     |<------------------------------ placement_reply | when this rank has staged it         |
//     |  when all have:                                |                                      |
//     | flip_placement{group, to}                      |                                      |
//     |----------------------------------------------->| engine::flip                         |
//     |                                                |    all ranks at one step, which the  |
//     |                                                |    step header names              -->|
//     |<------------------------------ placement_reply | when it is in force                  |
//     |  else, before any flip: drop_placement         |                                      |
//
// Every message names the group epoch and, where it moves something, the placement version; a shard that is in another
// group, or has another placement in force, answers `stale` and does nothing.
#pragma once

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// From the rank to its shard: the engine runs in the group of this epoch, its so-many-th regroup
/// (step_result::regroups).
struct shard_group {
  group_epoch group;
  uint64_t regroups = 0;
  bool operator==(const shard_group&) const = default;
};
TROUPE_FIELDS(shard_group, group, regroups)

/// With fewer than `min_steps` steps counted the answer has their number only, and counting goes on.
struct load_query {
  group_epoch group;
  uint64_t min_steps = 0;
  bool operator==(const load_query&) const = default;
};
TROUPE_FIELDS(load_query, group, min_steps)

/// What the steps since the last report have counted on one rank (kernels::expert_window).
struct load_report {
  status outcome;
  group_epoch group;
  placement_version placement;
  uint64_t steps = 0, received_steps = 0;
  std::vector<std::vector<uint64_t>> loads;  // [MoE layer][logical expert]
  std::vector<uint64_t> received;            // [MoE layer]
  uint32_t free_slots = 0;                   // expert slots that this rank could still fill
  bool operator==(const load_report&) const = default;
};
TROUPE_FIELDS(load_report, outcome, group, placement, steps, received_steps, loads, received, free_slots)

/// Asks for what is in force.
struct placement_query {
  group_epoch group;
  bool operator==(const placement_query&) const = default;
};
TROUPE_FIELDS(placement_query, group)

/// What is in force on a rank. `slots` of backbone layers as ep::slot_list: [layer][slot] -> logical expert, slots by
/// rank of the view.
struct placement_report {
  status outcome;
  group_epoch group;
  placement_version placement;
  std::vector<std::vector<int32_t>> slots;
  uint64_t flips = 0;
  bool operator==(const placement_report&) const = default;
};
TROUPE_FIELDS(placement_report, outcome, group, placement, slots, flips)

/// Loads what `to` wants of the rank, beside `from`, which stays in force; answered when that is done.
struct stage_placement {
  group_epoch group;
  placement_version from, to;
  std::vector<std::vector<int32_t>> slots;  // of `to`
  uint32_t loads_per_step = 1;
  bool operator==(const stage_placement&) const = default;
};
TROUPE_FIELDS(stage_placement, group, from, to, slots, loads_per_step)

/// All ranks have staged `to`: answered when it is in force.
struct flip_placement {
  group_epoch group;
  placement_version to;
  bool operator==(const flip_placement&) const = default;
};
TROUPE_FIELDS(flip_placement, group, to)

/// Gives `to` up, if no rank was told to flip.
struct drop_placement {
  group_epoch group;
  placement_version to;
  bool operator==(const drop_placement&) const = default;
};
TROUPE_FIELDS(drop_placement, group, to)

/// How an order about `placement` went.
struct placement_reply {
  status outcome;
  group_epoch group;
  placement_version placement;  // that was asked about
  uint32_t loaded = 0;          // experts that this rank has loaded for it
  bool operator==(const placement_reply&) const = default;
};
TROUPE_FIELDS(placement_reply, outcome, group, placement, loaded)

using expert_shard_actor =
    actor_type<takes<shard_group>, answers<load_query, load_report>, answers<placement_query, placement_report>,
               answers<stage_placement, placement_reply>, answers<flip_placement, placement_reply>,
               answers<drop_placement, placement_reply>, takes<tick>>;

/// Asks a rebalancer how it stands.
struct eplb_query {
  bool operator==(const eplb_query&) const = default;
};
TROUPE_NO_FIELDS(eplb_query)

/// How a group's experts are balanced. lb = busiest rank / mean rank, mean over the layers (1 = even), in rows that
/// came for the experts of each rank.
struct eplb_report {
  std::string group;
  bool leads = false;  // this rebalancer is the one that works for its group
  group_epoch view;
  uint32_t ranks = 0;
  placement_version placement;
  std::string phase;                   // what it is doing
  uint64_t window = 0;                 // steps counted since the last look at the loads
  uint64_t interval = 0;               // steps from look to look
  uint64_t looks = 0;                  // windows that were looked at
  uint64_t moves = 0;                  // placements that took effect
  uint64_t loaded = 0;                 // experts that ranks have loaded for them
  uint64_t abandoned = 0;              // moves given up: a rank that did not finish in time, a new group view
  double lb_measured = 0;              // of the last window, as it was; 0 before the first
  double lb_before = 0, lb_after = 0;  // of the last plan, on its window: the placement before and the one it chose
  std::string text;                    // the last decision or trouble
  bool operator==(const eplb_report&) const = default;
};
TROUPE_FIELDS(eplb_report, group, leads, view, ranks, placement, phase, window, interval, looks, moves, loaded,
              abandoned, lb_measured, lb_before, lb_after, text)

using eplb_rebalancer_actor = actor_type<takes<cluster_view>, answers<eplb_query, eplb_report>, takes<tick>>;

}  // namespace troupe::actors
