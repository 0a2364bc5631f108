// One rank's own actors: scheduler, rank and expert shard live in one process.
//
//   scheduler                       rank                               engine thread
//     | rank_attach                   |                                    |
//     |------------------------------>|                                    |
//     |<--------------- rank_update --|  also later, when its state or group changes
//     | fetch_start, fetch_drop       |  sequences from other ranks: handoff.hpp
//     | submit_plan{group, plan}      |                                    |
//     |------------------------------>| gives pages, engine::submit        |
//     |                               |<----------------- engine_step -----|  posted from the thread
//     |<----------------- step_done --|  pages of closed slots are free    |
//     |                               |-- shard_group --> expert_shard     |  eplb.hpp
//
// The rank's host (runtime) posts engine_opened and engine_grouped when its slow work is done.
#pragma once

#include "actors/protocol/balance.hpp"
#include "actors/protocol/cluster.hpp"
#include "actors/protocol/eplb.hpp"
#include "actors/protocol/prefix.hpp"
#include "actors/protocol/serving.hpp"

namespace troupe::actors {

/// From the scheduler: it is the one whose plans this rank runs from now on.
struct rank_attach {
  bool operator==(const rank_attach&) const = default;
};
TROUPE_NO_FIELDS(rank_attach)

/// The rank's state as its scheduler needs it. `waiting`: no group view yet, or the group lost a rank.
struct rank_update {
  role_state state = role_state::starting;
  group_epoch group;
  kernels::model_facts facts;  // valid once `ready`
  kernels::engine_limits limits;
  uint32_t pages_free = 0;
  std::string text;
  bool operator==(const rank_update&) const = default;
};
TROUPE_FIELDS(rank_update, state, group, facts, limits, pages_free, text)

/// grow[i] pages are to be appended to the table of plan.sequences[i]: the rank names them. imports[i] is the fetch
/// that plan.open[i] comes from, 0 for none: the rank names its pages and its place. reads[i] is the read of cached
/// blocks that plan.open[i] starts with, 0 for none: its pages come first in the slot's table. Where
/// plan.sequences[i].export_to is not no_handoff, the rank names the place, or exports nothing when none is free. The
/// same with the places of plan.sequences[i].snapshots; that of plan.open[i].windows is what came with the read.
/// Imports of a plan that is not applied are dropped. `follows`: there was work for it when the step before it ended.
/// A plan of another group epoch is answered with a step_done that
/// has failure `stale` and applied = false.
struct submit_plan {
  group_epoch group;
  kernels::step_plan plan;
  std::vector<uint32_t> grow;
  std::vector<uint64_t> imports, reads;
  bool follows = false;
  bool operator==(const submit_plan&) const = default;
};
TROUPE_FIELDS(submit_plan, group, plan, grow, imports, reads, follows)

struct step_done {
  group_epoch group;
  kernels::step_result result;
  uint32_t pages_free = 0, pages_held = 0;  // held: by transfers and write-back alone
  std::vector<slot_ticket> tickets;         // of sequences that were exported
  bool operator==(const step_done&) const = default;
};
TROUPE_FIELDS(step_done, group, result, pages_free, pages_held, tickets)

/// From the engine's thread.
struct engine_step {
  kernels::step_result result;
  bool operator==(const engine_step&) const = default;
};
TROUPE_FIELDS(engine_step, result)

/// The host has loaded what it needs; the rank can be reached on the data plane.
struct engine_opened {
  status outcome;
  std::string ep_address;
  bool operator==(const engine_opened&) const = default;
};
TROUPE_FIELDS(engine_opened, outcome, ep_address)

/// The engine runs (or again runs) in the group of this view.
struct engine_grouped {
  status outcome;
  group_epoch group;
  bool operator==(const engine_grouped&) const = default;
};
TROUPE_FIELDS(engine_grouped, outcome, group)

struct rank_query {
  bool operator==(const rank_query&) const = default;
};
TROUPE_NO_FIELDS(rank_query)

/// What lay between a rank's steps while work was waiting: sums in nanoseconds over `steps` steps that had work waiting
/// when the one before ended. `gap` and `waited` as in kernels::step_times, `busy` the time of those steps themselves.
struct gap_counts {
  uint64_t steps = 0;
  int64_t gap = 0, waited = 0, busy = 0;
  bool operator==(const gap_counts&) const = default;
};
TROUPE_FIELDS(gap_counts, steps, gap, waited, busy)

/// free + owned = total, always; a page with several owners counts for each of request, transfer and write-back.
struct rank_report {
  role_state state = role_state::starting;
  group_epoch group;
  uint32_t pages_total = 0, pages_free = 0, pages_owned = 0;
  uint32_t pages_request = 0, pages_transfer = 0, pages_write_back = 0;
  uint32_t slots_open = 0, plans_open = 0;
  uint64_t steps = 0, split_steps = 0;  // split: in two micro-batches
  kernels::step_times times;            // sums
  gap_counts gaps;
  transfer_counts transfers;
  prefix_counts prefix;
  snapshot_counts snapshots;
  store_load store;
  bool operator==(const rank_report&) const = default;
};
TROUPE_FIELDS(rank_report, state, group, pages_total, pages_free, pages_owned, pages_request, pages_transfer,
              pages_write_back, slots_open, plans_open, steps, split_steps, times, gaps, transfers, prefix, snapshots,
              store)

using rank_actor = actor_type<answers<rank_attach, rank_update>, takes<submit_plan>, takes<cluster_view>,
                              takes<engine_opened>, takes<engine_grouped>, takes<engine_step>,
                              answers<transfer_open, transfer_grant>, answers<transfer_close, ack>, takes<fetch_start>,
                              takes<fetch_drop>, takes<engine_fetched>, takes<prefix_read>, takes<prefix_drop>,
                              takes<prefix_write>, takes<prefix_event>, takes<snapshot_write>, takes<snapshot_event>,
                              answers<drain_request, drain_reply>, answers<rank_query, rank_report>, takes<tick>>;

using scheduler_actor =
    actor_type<answers<attach_front, attach_reply>, answers<enqueue_request, enqueue_reply>,
               answers<lease_request, enqueue_reply>, answers<rank_load_query, rank_load>, answers<cancel_request, ack>,
               takes<token_ack>, takes<cluster_view>, takes<rank_update>, takes<step_done>, takes<fetch_done>,
               takes<pool_update>, takes<prefix_done>, answers<transfer_close, ack>,
               answers<drain_request, drain_reply>, answers<scheduler_query, scheduler_report>, takes<tick>>;

}  // namespace troupe::actors
