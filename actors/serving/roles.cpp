#include "actors/serving/roles.hpp"

#include "actors/serving/balancer.hpp"
#include "actors/serving/expert_shard.hpp"
#include "actors/serving/rank.hpp"

namespace troupe::actors {

role_actors start_rank_role(const role_context& context, std::shared_ptr<rank_host> host,
                            const scheduler_options& options, const eplb_options& balance) {
  const auto seat = context.assignment.seat();
  auto shard = spawn_expert_shard(context.parent, host);
  rank_options of_rank;
  of_rank.assignment = context.assignment;
  of_rank.identity = context.identity;
  of_rank.agent = context.agent;
  of_rank.shard = shard;
  of_rank.directory = context.directory;
  of_rank.host = std::move(host);
  of_rank.prefix = options.prefix;
  auto rank = spawn_rank(context.parent, std::move(of_rank));
  auto scheduler = spawn_scheduler(context.parent, context.assignment.what, context.identity, rank, options);
  role_actors out;
  out.named = {{seat + "/expert_shard", caf::actor_cast<any_handle>(shard)},
               {seat + "/rank", caf::actor_cast<any_handle>(rank)},
               {seat + "/scheduler", caf::actor_cast<any_handle>(scheduler)}};
  out.viewers = {rank, scheduler};
  out.drain_order = {scheduler, rank};
  out.all = {caf::actor_cast<any_handle>(scheduler), caf::actor_cast<any_handle>(rank),
             caf::actor_cast<any_handle>(shard)};
  if (context.assignment.ranks > 1 && balance.interval > 0) {
    auto rebalancer =
        spawn_eplb_rebalancer(context.parent, context.assignment, context.identity, context.directory, shard, balance);
    out.named[seat + "/eplb_rebalancer"] = caf::actor_cast<any_handle>(rebalancer);
    out.viewers.push_back(rebalancer);
    out.all.push_back(caf::actor_cast<any_handle>(rebalancer));
  }
  return out;
}

role_actors start_front_role(const role_context& context, const entrypoint_options& options,
                             entrypoint_actor& entrypoint) {
  entrypoint_options own = options;
  own.assignment = context.assignment;
  own.identity = context.identity;
  own.agent = context.agent;
  own.directory = context.directory;
  entrypoint = spawn_entrypoint(context.parent, std::move(own));
  role_actors out;
  const auto seat = context.assignment.seat();
  out.named = {{seat + "/entrypoint", caf::actor_cast<any_handle>(entrypoint)}};
  out.viewers = {entrypoint};
  out.drain_order = {entrypoint};
  out.all = {caf::actor_cast<any_handle>(entrypoint)};
  for (const role what : {role::prefill, role::decode}) {
    balancer_options of_balancer;
    of_balancer.what = what;
    of_balancer.identity = context.identity;
    of_balancer.directory = context.directory;
    of_balancer.agent = context.agent;
    auto balancer = spawn_balancer(context.parent, std::move(of_balancer));
    out.named[balancer_name(seat, what)] = caf::actor_cast<any_handle>(balancer);
    out.viewers.insert(out.viewers.begin(), balancer);  // active before the entrypoint hears of it
    out.all.push_back(caf::actor_cast<any_handle>(balancer));
  }
  return out;
}

}  // namespace troupe::actors
