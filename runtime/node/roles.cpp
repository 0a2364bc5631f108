#include "runtime/node/roles.hpp"

#include "actors/protocol/storage.hpp"
#include "runtime/node/store_options.hpp"

namespace troupe::node {
namespace {

class configured_roles final : public actors::role_factory {
 public:
  configured_roles(const config::settings& s, std::shared_ptr<role_parts> parts, on_entrypoint entrypoint,
                   std::string http)
      : settings_(s), parts_(std::move(parts)), on_entrypoint_(std::move(entrypoint)), http_(std::move(http)) {}

  result<actors::role_actors> start(caf::local_actor* parent, const actors::role_assignment& assignment,
                                    const actors::node_identity& identity, const actors::node_agent_actor& agent,
                                    const actors::directory_actor& directory) override {
    actors::role_context context{parent, assignment, identity, agent, directory};
    switch (assignment.what) {
      case actors::role::front: {
        actors::entrypoint_options options;
        options.assignment = assignment;
        options.identity = identity;
        options.agent = agent;
        options.directory = directory;
        options.max_requests = settings_.front.max_requests;
        options.http = http_;
        const auto* cache = parts_->cache(assignment);
        if (cache) options.prefix = *cache;
        actors::entrypoint_actor entrypoint;
        auto out = actors::start_front_role(context, options, entrypoint);
        if (cache) parts_->start_cache(context, out);
        on_entrypoint_(entrypoint);
        return out;
      }
      case actors::role::prefill:
      case actors::role::decode: {
        bool prefill = assignment.what == actors::role::prefill;
        const config::ranks_section& rank =
            prefill ? static_cast<const config::ranks_section&>(settings_.prefill) : settings_.decode;
        actors::scheduler_options scheduler;
        if (prefill || !settings_.engine.speculation) scheduler.verify_budget = 0;
        scheduler.plans_ahead = settings_.engine.plan_ahead ? 1 : 0;
        scheduler.step_budget = rank.step_budget;
        auto host = parts_->rank(assignment, identity);
        actors::eplb_options eplb;
        eplb.interval = rank.rebalance_every;
        eplb.loads_per_step = settings_.eplb.loads_per_step;
        eplb.max_moves = settings_.eplb.max_moves;
        eplb.min_gain = settings_.eplb.min_gain / 100.0;
        eplb.move_timeout = settings_.eplb.move_timeout;
        eplb.planner = parts_->planner();
        const auto* cache = parts_->cache(assignment);
        if (cache) scheduler.prefix = *cache;
        auto out = actors::start_rank_role(context, std::move(host), scheduler, eplb);
        if (cache) parts_->start_cache(context, out);
        return out;
      }
      case actors::role::storage: {
        return actors::start_storage_role(context, parts_->storage(assignment), storage_times_of(settings_.storage));
      }
      default:
        return fail(errc::unsupported, "this process cannot take the role {}", actors::to_string(assignment.what));
    }
  }

  void stopped(const actors::role_assignment& assignment) override {
    if (assignment.what == actors::role::front) on_entrypoint_({});
    parts_->stopped(assignment);
  }

 private:
  const config::settings settings_;
  const std::shared_ptr<role_parts> parts_;
  const on_entrypoint on_entrypoint_;
  const std::string http_;
};

}  // namespace

std::vector<actors::wanted_group> wanted_groups(const config::settings& s) {
  std::vector<actors::wanted_group> out{{actors::role::front, "front", s.front.count}};
  // Where roles change, every rank may have either: there is a seat for it in both.
  const bool changes = s.cluster.role_changes;
  const uint32_t all = s.prefill.ranks + s.decode.ranks;
  auto add = [&](actors::role what, const config::ranks_section& r) {
    const uint32_t open = r.ranks / r.ep;
    for (uint32_t g = 0; g < (changes && r.ep == 1 ? all : open); ++g) {
      actors::wanted_group w{what, fmt::format("{}-{}", to_string(what), g), r.ep};
      if (changes) {
        w.open = g < open ? r.ep : 0;
        if (r.ep > 1) w.count = all;
      }
      out.push_back(std::move(w));
    }
  };
  add(actors::role::prefill, s.prefill);
  add(actors::role::decode, s.decode);
  if (s.storage.nodes > 0) out.push_back({actors::role::storage, actors::storage_group, s.storage.nodes});
  return out;
}

actors::director_options director_options_of(const config::settings& s, cluster_epoch epoch) {
  actors::director_options d;
  d.cluster = s.cluster.name;
  d.epoch = epoch;
  d.wanted = wanted_groups(s);
  d.heartbeat = s.cluster.heartbeat;
  d.lost_after = s.cluster.lost_after;
  d.changes.on = s.cluster.role_changes;
  d.changes.every = s.cluster.role_every;
  d.changes.drain = s.cluster.drain_timeout;
  return d;
}

kernels::engine_limits engine_limits_of(const config::ranks_section& r, const config::engine_section& e) {
  kernels::engine_limits l;
  l.slots = r.slots;
  l.max_chunk = r.max_chunk;
  l.max_context = r.max_context;
  l.pages = r.pages;
  l.max_draft = e.max_draft;
  l.threads = r.threads;
  l.handoffs = r.handoffs;
  l.micro_batch_rows = r.micro_batch_rows;
  return l;
}

std::shared_ptr<actors::role_factory> make_role_factory(const config::settings& s, std::shared_ptr<role_parts> parts,
                                                        on_entrypoint entrypoint, std::string http) {
  return std::make_shared<configured_roles>(s, std::move(parts), std::move(entrypoint), std::move(http));
}

}  // namespace troupe::node
