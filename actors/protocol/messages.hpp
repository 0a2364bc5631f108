// The one block of type ids. Ids follow the order of the lines, so append only while clusters of mixed builds exist;
// ids are never stored.
#pragma once

#include <caf/type_id.hpp>

#include "actors/protocol/balance.hpp"
#include "actors/protocol/cluster.hpp"
#include "actors/protocol/eplb.hpp"
#include "actors/protocol/front.hpp"
#include "actors/protocol/handoff.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/protocol/serving.hpp"

/// The block store's, which are only named here: whoever uses them includes actors/protocol/storage.hpp.
#define TROUPE_STORAGE_MESSAGES(F)                                                                                     \
  F(kv_match)                                                                                                          \
  F(kv_match_reply)                                                                                                    \
  F(kv_lookup)                                                                                                         \
  F(kv_lookup_reply)                                                                                                   \
  F(kv_index_put) F(kv_index_put_reply) F(kv_apply) F(kv_touch) F(kv_touch_reply) F(kv_release) F(kv_lease_query)      \
      F(kv_lease_reply) F(kv_reclaim_query) F(kv_reclaim_reply) F(kv_describe) F(kv_describe_reply) F(kv_index_remove) \
          F(kv_index_remove_reply) F(kv_index_list) F(kv_index_list_reply) F(kv_restore) F(kv_restore_reply)           \
              F(kv_index_check) F(kv_index_check_reply) F(kv_stats_query) F(kv_stats_reply) F(kv_put) F(kv_read)       \
                  F(kv_read_reply) F(kv_read_done) F(kv_shard_remove) F(kv_shard_list) F(kv_shard_list_reply)          \
                      F(kv_shard_check) F(kv_usage_query) F(kv_usage_reply) F(kv_scrub) F(kv_scrub_query)              \
                          F(kv_scrub_state) F(kv_hello) F(kv_welcome) F(storage_query) F(storage_report)

#define TROUPE_FORWARD(type) struct type;
namespace troupe::actors {
TROUPE_STORAGE_MESSAGES(TROUPE_FORWARD)
}  // namespace troupe::actors

/// Of the conversation with the balancers.
// clang-format off
#define TROUPE_BALANCE_MESSAGES(F) \
  F(place_request) F(place_reply) F(lease_end) F(lease_update) F(rank_load_query) F(rank_load) F(balancer_query) \
  F(balancer_report)
// clang-format on

/// TROUPE_MESSAGES(F) applies F to every message type; the type-id block and the round-trip test read the same list.
// clang-format off
#define TROUPE_MESSAGES(F) \
  F(ack) F(tick) F(drain_request) F(drain_reply) F(join_request) F(join_reply) F(heartbeat) F(heartbeat_reply) \
  F(assign_roles) F(suspect_report) F(leave_request) F(cluster_view) F(status_query) F(status_report) \
  F(role_update) F(suspects_found) F(lookup_request) F(lookup_reply) F(stop_request) F(stop_reply) \
  F(agent_query) F(agent_report) F(resolve_request) F(resolve_reply) F(attach_front) F(attach_reply) \
  F(enqueue_request) F(enqueue_reply) F(token_batch) F(token_ack) F(cancel_request) F(scheduler_query) \
  F(scheduler_report) F(rank_attach) F(rank_update) F(submit_plan) F(step_done) F(engine_step) F(engine_opened) \
  F(engine_grouped) F(rank_query) F(rank_report) F(shard_group) F(load_query) F(load_report) F(client_cancel) \
  F(front_query) F(front_report) F(transfer_open) F(transfer_grant) F(transfer_close) F(fetch_start) \
  F(fetch_drop) F(fetch_done) F(pool_update) F(engine_fetched) F(lease_request) F(placement_query) \
  F(placement_report) F(stage_placement) F(flip_placement) F(drop_placement) F(placement_reply) F(eplb_query) \
  F(eplb_report) F(match_answer) F(prefix_read) F(prefix_drop) F(prefix_done) F(prefix_write) F(prefix_event) \
  TROUPE_BALANCE_MESSAGES(F) \
  F(dial_request) F(greeting) F(rejoin_request) F(pool_load) \
  TROUPE_STORAGE_MESSAGES(F) \
  F(snapshot_write) F(snapshot_event)
// clang-format on

#define TROUPE_MESSAGE_ID(type) CAF_ADD_TYPE_ID(troupe, (troupe::actors::type))

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
TROUPE_MESSAGES(TROUPE_MESSAGE_ID)
CAF_END_TYPE_ID_BLOCK(troupe)
