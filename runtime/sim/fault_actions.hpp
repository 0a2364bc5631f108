// Applies what a fault driver decides to a world, and tells the driver what the world saw of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/sim/events/log.hpp"
#include "runtime/sim/faults/driver.hpp"
#include "runtime/sim/world.hpp"

namespace troupe::sim {

/// The shape of a world for check_plan and drawing plans.
cluster_shape shape_of(const world& w);

/// What swarm may draw: nothing that a world cannot do.
swarm_rates possible_rates();

/// One plan in one world. Not thread safe; world, log and this live until the run is over.
class fault_actions {
 public:
  /// Errors: a plan that does not fit, or that has a kind that the world cannot do (unsupported).
  static result<std::unique_ptr<fault_actions>> make(world& w, event_log& log, fault_plan plan);
  ~fault_actions();

  /// The run begins now; times of the plan count from here.
  void start();
  /// Counters of the load; cheap.
  void progress(uint64_t submitted, uint64_t finished);
  fault_driver& driver() { return driver_; }
  const fault_plan& plan() const { return plan_; }

 private:
  fault_actions(world& w, event_log& log, fault_plan plan);
  struct active {
    world_node* node = nullptr;
    std::vector<world_node*> peers;
    uint64_t before = 0;  // of the counter that proves the effect
    bool seen = false;
  };
  world_node* node_of(node_ref r);
  void tick();
  void act(const fault_action& a);
  void begin(const fault_action& a, active& f);
  void end(const fault_action& a, active& f);
  void partition(const active& f, bool one_way, bool on);
  uint64_t counter(const fault& f, const active& a);
  void look();
  void seen(size_t index, fault_effect effect);
  void come_back(world_node& n, size_t index);

  world& world_;
  event_log& log_;
  fault_plan plan_;
  fault_driver driver_;
  std::map<size_t, active> active_;
  nanoseconds begin_{0};
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::sim
