// What the roles of a virtual node are made of: the counterpart of node/live_parts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/storage/store_client.hpp"
#include "runtime/node/roles.hpp"
#include "runtime/sim/world.hpp"

namespace troupe::sim {

/// The parts of one life of a node. Lives as long as the world, because what is under way may refer to it.
class node_parts final : public node::role_parts {
 public:
  node_parts(world& w, world_node& n) : world_(w), node_(n), life_(++w.next_pid_) {}

  std::shared_ptr<actors::rank_host> rank(const actors::role_assignment& seat,
                                          const actors::node_identity& identity) override;
  std::shared_ptr<actors::storage_host> storage(const actors::role_assignment& seat) override;
  const actors::prefix_options* cache(const actors::role_assignment& seat) override;
  void start_cache(const actors::role_context& context, actors::role_actors& role) override;
  std::shared_ptr<kv::worker> planner() override;
  void stopped(const actors::role_assignment& seat) override;

  /// The process has ended. `noticed`: when the peers of its engines are told.
  void crash(nanoseconds noticed);
  void freeze(bool on);
  void slow(double factor);
  int32_t life() const { return life_; }
  /// Engines of the node, most have one.
  const std::map<std::string, std::shared_ptr<cost_host>>& ranks() const { return ranks_; }

 private:
  // The way of one seat to the store.
  struct link {
    actors::prefix_options options;
    std::shared_ptr<actors::store_session> session = std::make_shared<actors::store_session>();
    std::shared_ptr<agenda_worker> compute;
    std::shared_ptr<transport::transport> endpoint;
  };

  world& world_;
  world_node& node_;
  const int32_t life_;                                         // counts all lives of all nodes; also the pid
  std::map<std::string, std::shared_ptr<cost_host>> ranks_;    // by seat
  std::map<std::string, std::shared_ptr<disk_host>> storage_;  // by seat
  std::map<std::string, std::shared_ptr<link>> links_;         // by seat
  std::shared_ptr<agenda_worker> planner_;
  std::vector<std::shared_ptr<void>> retired_;
};

}  // namespace troupe::sim
