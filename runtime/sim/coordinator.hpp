// A scheduler module for CAF without threads: one runnable actor after the other, chosen by the seed, one message each;
// time is the agenda's. Load it before the actor_system is made (install), then drive it with step().
#pragma once

#include <caf/actor_clock.hpp>
#include <caf/execution_unit.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include <map>
#include <vector>

#include "runtime/sim/agenda.hpp"

namespace troupe::sim {

/// The agenda as CAF's clock. Supports what our actors use: request timeouts and delayed messages.
class agenda_clock final : public caf::actor_clock {
 public:
  explicit agenda_clock(agenda& a) : agenda_(a) {}
  time_point now() const noexcept override;
  duration_type difference(caf::atom_value, long, time_point t0, time_point t1) const noexcept override {
    return t1 - t0;
  }
  void set_ordinary_timeout(time_point, caf::abstract_actor*, caf::atom_value, uint64_t) override;
  void set_multi_timeout(time_point, caf::abstract_actor*, caf::atom_value, uint64_t) override;
  void set_request_timeout(time_point t, caf::abstract_actor* self, caf::message_id id) override;
  void cancel_ordinary_timeout(caf::abstract_actor*, caf::atom_value) override {}
  void cancel_request_timeout(caf::abstract_actor* self, caf::message_id id) override;
  void cancel_timeouts(caf::abstract_actor* self) override;
  void schedule_message(time_point t, caf::strong_actor_ptr receiver, caf::mailbox_element_ptr content) override;
  void schedule_message(time_point, caf::group, caf::strong_actor_ptr, caf::message) override;
  void cancel_all() override;
  /// Request timeouts that are set now.
  size_t request_timeouts() const { return requests_.size(); }

 private:
  agenda& agenda_;
  std::map<std::pair<caf::actor_id, uint64_t>, agenda::handle> requests_;
};

/// The scheduler module: which actor runs next is drawn from the seed. One thread.
class coordinator final : public caf::scheduler::abstract_coordinator {
 public:
  coordinator(caf::actor_system& system, agenda& a, uint64_t seed);

  /// Makes `config` use this module for the next actor_system. The agenda must outlive the system.
  static void install(caf::actor_system_config& config, agenda& a, uint64_t seed);
  static coordinator& of(caf::actor_system& system);

  bool has_job() const { return !jobs_.empty(); }
  /// Runs one message of one runnable actor, chosen by the seed.
  void run_job();
  /// Takes an actor off the list of runnable ones.
  void drop_jobs(const std::vector<caf::resumable*>& which);

  /// Actors of the node do not run (on), or go on with what they have got meanwhile.
  void hold(const caf::node_id& node, bool on);
  /// Times that an actor of a held node was not run, since the start, all nodes together.
  uint64_t held() const { return held_times_; }

  caf::execution_unit* unit() { return &unit_; }
  /// Every actor that ever ran and may still exist, by id.
  const std::map<caf::actor_id, caf::weak_actor_ptr>& actors() const { return actors_; }
  /// Hash over (time, actor) of every message handled so far.
  uint64_t hash() const { return hash_; }
  uint64_t handled() const { return handled_; }

  void enqueue(caf::resumable* job) override;
  agenda_clock& clock() noexcept override { return clock_; }
  bool detaches_utility_actors() const override { return false; }

 protected:
  void start() override {}  // the base class would start a printer thread
  void stop() override;

 private:
  struct sim_unit final : caf::execution_unit {
    sim_unit(caf::actor_system* s, coordinator& o) : caf::execution_unit(s), owner(o) {}
    void exec_later(caf::resumable* job) override { owner.enqueue(job); }
    coordinator& owner;
  };

  agenda& agenda_;
  agenda_clock clock_;
  rng random_;
  sim_unit unit_;
  std::vector<caf::resumable*> jobs_;
  std::vector<caf::node_id> held_nodes_;
  std::vector<caf::resumable*> held_;  // jobs of their actors
  uint64_t held_times_ = 0;
  std::map<caf::actor_id, caf::weak_actor_ptr> actors_;
  uint64_t hash_ = 14695981039346656037ull, handled_ = 0;
};

}  // namespace troupe::sim
