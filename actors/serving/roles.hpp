// Starting the actors of a serving role, for the runtime's role_factory.
#pragma once

#include <memory>

#include "actors/cluster/role_factory.hpp"
#include "actors/serving/entrypoint.hpp"
#include "actors/serving/eplb_rebalancer.hpp"
#include "actors/serving/rank_host.hpp"
#include "actors/serving/scheduler.hpp"

namespace troupe::actors {

/// What a role's actors have in common.
struct role_context {
  caf::local_actor* parent = nullptr;
  role_assignment assignment;
  node_identity identity;
  node_agent_actor agent;
  directory_actor directory;
};

/// prefill and decode: expert_shard, rank and scheduler, named "<seat>/expert_shard", "<seat>/rank",
/// "<seat>/scheduler"; in groups of several ranks that are to be balanced "<seat>/eplb_rebalancer" too.
role_actors start_rank_role(const role_context& context, std::shared_ptr<rank_host> host,
                            const scheduler_options& options, const eplb_options& balance = {});

/// front: the entrypoint, named "<seat>/entrypoint", whose handle is also stored in `entrypoint`, for the gateway; and
/// a pair of balancers, "<seat>/prefill_balancer" and "<seat>/decode_balancer".
role_actors start_front_role(const role_context& context, const entrypoint_options& options,
                             entrypoint_actor& entrypoint);

}  // namespace troupe::actors
