#include "runtime/node/live_parts.hpp"

#include <map>
#include <mutex>
#include <optional>

#include "runtime/base/log.hpp"
#include "runtime/node/engine_host.hpp"
#include "runtime/node/storage_host.hpp"
#include "runtime/node/store_link.hpp"

namespace troupe::node {
namespace {

class live_parts final : public role_parts {
 public:
  live_parts(const config::settings& s, bool reachable) : settings_(s), reachable_(reachable) {
    if (!reachable) return;  // alone in its process
    if (auto scheme = cache_scheme(s))
      cache_ = std::move(*scheme);
    else
      log::warn("prompts are not cached: {}", scheme.error().message);
  }

  std::shared_ptr<actors::rank_host> rank(const actors::role_assignment& seat,
                                          const actors::node_identity& identity) override {
    host_options options;
    options.model = settings_.model.path;
    options.rank = seat.what == actors::role::prefill ? static_cast<const config::ranks_section&>(settings_.prefill)
                                                      : settings_.decode;
    options.engine = settings_.engine;
    options.transport = settings_.transport;
    options.incarnation = identity.inc.value;
    options.index = seat.index;
    options.ranks = seat.ranks;
    options.reachable = reachable_;
    options.snapshots = cache_ ? settings_.cache.snapshots : 0;
    auto host = std::make_shared<engine_host>(std::move(options));
    std::lock_guard lock(mutex_);
    hosts_[seat.seat()] = host;
    return host;
  }

  std::shared_ptr<actors::storage_host> storage(const actors::role_assignment& seat) override {
    auto host = std::make_shared<storage_host>(settings_, seat.index);
    std::lock_guard lock(mutex_);
    std::erase_if(retired_stores_, [](const auto& h) { return h->stopped(); });
    stores_[seat.seat()] = host;
    return host;
  }

  const actors::prefix_options* cache(const actors::role_assignment& seat) override {
    if (!cache_) return nullptr;
    auto link = store_link::make(settings_, *cache_);
    if (!link) {
      log::warn("{}: prompts are not cached: {}", seat.seat(), link.error().message);
      return nullptr;
    }
    std::lock_guard lock(mutex_);
    return &(links_[seat.seat()] = std::move(*link))->options();
  }

  void start_cache(const actors::role_context& context, actors::role_actors& role) override {
    std::lock_guard lock(mutex_);
    links_.at(context.assignment.seat())->start(context, role);
  }

  std::shared_ptr<kv::worker> planner() override {
    std::lock_guard lock(mutex_);
    if (!planner_) planner_ = std::make_shared<kv::io_pool>(1, 64);
    return planner_;
  }

  void stopped(const actors::role_assignment& seat) override {
    std::lock_guard lock(mutex_);
    if (auto link = links_.find(seat.seat()); link != links_.end()) {
      link->second->stop();
      std::erase_if(retired_links_, [](const auto& l) { return l->stopped(); });
      retired_links_.push_back(std::move(link->second));
      links_.erase(link);
    }
    if (auto store = stores_.find(seat.seat()); store != stores_.end()) {
      store->second->stop();
      retired_stores_.push_back(std::move(store->second));
      stores_.erase(store);
      return;
    }
    auto it = hosts_.find(seat.seat());
    if (it == hosts_.end()) return;
    it->second->stop();
    // Destroying a host may block, and this is an actor's thread: it waits here until it is through.
    std::erase_if(retired_, [](const auto& h) { return h->stopped(); });
    retired_.push_back(std::move(it->second));
    hosts_.erase(it);
  }

 private:
  const config::settings settings_;
  const bool reachable_;
  std::optional<kv::hash_scheme> cache_;
  std::mutex mutex_;                                             // protects what follows
  std::shared_ptr<kv::worker> planner_;                          // of this process's rebalancers
  std::map<std::string, std::unique_ptr<store_link>> links_;     // by seat
  std::vector<std::unique_ptr<store_link>> retired_links_;       // one per incarnation whose client has not ended yet
  std::map<std::string, std::shared_ptr<engine_host>> hosts_;    // by seat
  std::map<std::string, std::shared_ptr<storage_host>> stores_;  // by seat
  std::vector<std::shared_ptr<storage_host>> retired_stores_;    // one per incarnation that has not closed yet
  std::vector<std::shared_ptr<engine_host>> retired_;            // one per incarnation whose engine has not stopped yet
};

}  // namespace

std::shared_ptr<role_parts> make_live_parts(const config::settings& s, bool reachable) {
  return std::make_shared<live_parts>(s, reachable);
}

}  // namespace troupe::node
