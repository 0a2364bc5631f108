#include "runtime/node/roles.hpp"

#include <map>
#include <mutex>

#include "actors/protocol/storage.hpp"
#include "actors/serving/roles.hpp"
#include "actors/storage/storage_node.hpp"
#include "runtime/base/log.hpp"
#include "runtime/node/engine_host.hpp"
#include "runtime/node/storage_host.hpp"
#include "runtime/node/store_link.hpp"

namespace troupe::node {
namespace {

class live_roles final : public actors::role_factory {
 public:
  live_roles(const config::settings& s, on_entrypoint entrypoint, bool reachable, std::string http)
      : settings_(s), on_entrypoint_(std::move(entrypoint)), reachable_(reachable), http_(std::move(http)) {
    if (!reachable) return;  // alone in its process
    if (auto scheme = cache_scheme(s))
      cache_ = std::move(*scheme);
    else
      log::warn("prompts are not cached: {}", scheme.error().message);
  }

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
        auto* link = link_to_store(assignment);
        if (link) options.prefix = link->options();
        actors::entrypoint_actor entrypoint;
        auto out = actors::start_front_role(context, options, entrypoint);
        if (link) link->start(context, out);
        on_entrypoint_(entrypoint);
        return out;
      }
      case actors::role::prefill:
      case actors::role::decode: {
        bool prefill = assignment.what == actors::role::prefill;
        host_options options;
        options.model = settings_.model.path;
        const config::ranks_section& rank =
            prefill ? static_cast<const config::ranks_section&>(settings_.prefill) : settings_.decode;
        options.rank = rank;
        options.engine = settings_.engine;
        options.transport = settings_.transport;
        options.incarnation = identity.inc.value;
        options.index = assignment.index;
        options.ranks = assignment.ranks;
        options.reachable = reachable_;
        actors::scheduler_options scheduler;
        if (prefill || !settings_.engine.speculation) scheduler.verify_budget = 0;
        scheduler.plans_ahead = settings_.engine.plan_ahead ? 1 : 0;
        scheduler.step_budget = rank.step_budget;
        auto host = std::make_shared<engine_host>(std::move(options));
        {
          std::lock_guard lock(mutex_);
          hosts_[assignment.seat()] = host;
        }
        actors::eplb_options eplb;
        eplb.interval = rank.rebalance_every;
        eplb.loads_per_step = settings_.eplb.loads_per_step;
        eplb.max_moves = settings_.eplb.max_moves;
        eplb.min_gain = settings_.eplb.min_gain / 100.0;
        eplb.move_timeout = settings_.eplb.move_timeout;
        if (!planner_) planner_ = std::make_shared<kv::io_pool>(1, 64);
        eplb.planner = planner_;
        auto* link = link_to_store(assignment);
        if (link) scheduler.prefix = link->options();
        auto out = actors::start_rank_role(context, std::move(host), scheduler, eplb);
        if (link) link->start(context, out);
        return out;
      }
      case actors::role::storage: {
        actors::storage_times times;
        times.repair_after = settings_.storage.repair_after;
        times.scrub_every = settings_.storage.scrub_every;
        auto host = std::make_shared<storage_host>(settings_, assignment.index);
        {
          std::lock_guard lock(mutex_);
          std::erase_if(retired_stores_, [](const auto& h) { return h->stopped(); });
          stores_[assignment.seat()] = host;
        }
        return actors::start_storage_role(context, std::move(host), times);
      }
      default:
        return fail(errc::unsupported, "this process cannot take the role {}", actors::to_string(assignment.what));
    }
  }

  void stopped(const actors::role_assignment& assignment) override {
    if (assignment.what == actors::role::front) on_entrypoint_({});
    std::lock_guard lock(mutex_);
    if (auto link = links_.find(assignment.seat()); link != links_.end()) {
      link->second->stop();
      std::erase_if(retired_links_, [](const auto& l) { return l->stopped(); });
      retired_links_.push_back(std::move(link->second));
      links_.erase(link);
    }
    if (auto store = stores_.find(assignment.seat()); store != stores_.end()) {
      store->second->stop();
      retired_stores_.push_back(std::move(store->second));
      stores_.erase(store);
      return;
    }
    auto it = hosts_.find(assignment.seat());
    if (it == hosts_.end()) return;
    it->second->stop();
    // Destroying a host may block, and this is an actor's thread: it waits here until it is through.
    std::erase_if(retired_, [](const auto& h) { return h->stopped(); });
    retired_.push_back(std::move(it->second));
    hosts_.erase(it);
  }

 private:
  // Null where there is no cache.
  store_link* link_to_store(const actors::role_assignment& assignment) {
    if (!cache_) return nullptr;
    auto link = store_link::make(settings_, *cache_);
    if (!link) {
      log::warn("{}: prompts are not cached: {}", assignment.seat(), link.error().message);
      return nullptr;
    }
    std::lock_guard lock(mutex_);
    return (links_[assignment.seat()] = std::move(*link)).get();
  }

  const config::settings settings_;
  const on_entrypoint on_entrypoint_;
  const bool reachable_;
  const std::string http_;
  std::optional<kv::hash_scheme> cache_;
  std::shared_ptr<kv::worker> planner_;  // of this process's rebalancers
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<store_link>> links_;     // by seat
  std::vector<std::unique_ptr<store_link>> retired_links_;       // one per incarnation whose client has not ended yet
  std::map<std::string, std::shared_ptr<engine_host>> hosts_;    // by seat
  std::map<std::string, std::shared_ptr<storage_host>> stores_;  // by seat
  std::vector<std::shared_ptr<storage_host>> retired_stores_;    // one per incarnation that has not closed yet
  std::vector<std::shared_ptr<engine_host>> retired_;            // one per incarnation whose engine has not stopped yet
};

}  // namespace

std::vector<actors::wanted_group> wanted_groups(const config::settings& s) {
  std::vector<actors::wanted_group> out{{actors::role::front, "front", s.front.count}};
  for (uint32_t g = 0; g < s.prefill.ranks / s.prefill.ep; ++g)
    out.push_back({actors::role::prefill, "prefill-" + std::to_string(g), s.prefill.ep});
  for (uint32_t g = 0; g < s.decode.ranks / s.decode.ep; ++g)
    out.push_back({actors::role::decode, "decode-" + std::to_string(g), s.decode.ep});
  if (s.storage.nodes > 0) out.push_back({actors::role::storage, actors::storage_group, s.storage.nodes});
  return out;
}

std::shared_ptr<actors::role_factory> make_role_factory(const config::settings& s, on_entrypoint entrypoint,
                                                        bool reachable, std::string http) {
  return std::make_shared<live_roles>(s, std::move(entrypoint), reachable, std::move(http));
}

}  // namespace troupe::node
