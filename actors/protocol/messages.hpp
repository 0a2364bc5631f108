// The one block of type ids. Ids follow the order of the lines, so append only while clusters of mixed builds exist;
// ids are never stored.
#pragma once

#include <caf/type_id.hpp>

#include "actors/protocol/cluster.hpp"
#include "actors/protocol/front.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/protocol/serving.hpp"

/// TROUPE_MESSAGES(F) applies F to every message type; the type-id block and the round-trip test read the same list.
#define TROUPE_MESSAGES(F)                                                                                             \
  F(ack)                                                                                                               \
  F(tick) F(drain_request) F(drain_reply) F(join_request) F(join_reply) F(heartbeat) F(heartbeat_reply)                \
      F(assign_roles) F(suspect_report) F(leave_request) F(cluster_view) F(status_query) F(status_report)              \
          F(role_update) F(suspects_found) F(lookup_request) F(lookup_reply) F(stop_request) F(stop_reply)             \
              F(agent_query) F(agent_report) F(resolve_request) F(resolve_reply) F(attach_front) F(attach_reply)       \
                  F(enqueue_request) F(enqueue_reply) F(token_batch) F(token_ack) F(cancel_request) F(scheduler_query) \
                      F(scheduler_report) F(rank_attach) F(rank_update) F(submit_plan) F(step_done) F(engine_step)     \
                          F(engine_opened) F(engine_grouped) F(rank_query) F(rank_report) F(expert_loads)              \
                              F(load_query) F(load_report) F(client_cancel) F(front_query) F(front_report)

#define TROUPE_MESSAGE_ID(type) CAF_ADD_TYPE_ID(troupe, (troupe::actors::type))

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
TROUPE_MESSAGES(TROUPE_MESSAGE_ID)
CAF_END_TYPE_ID_BLOCK(troupe)
