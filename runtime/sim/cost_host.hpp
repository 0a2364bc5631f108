// A rank's engine in a simulation: a cost engine on the agenda, its pages and states in memory of the simulated data
// plane, and the groups in which the engines of all nodes step together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/serving/rank_host.hpp"
#include "kernels/engine/cost_engine.hpp"
#include "kernels/engine/cost_group.hpp"
#include "kernels/engine/handoff_pull.hpp"
#include "runtime/config/config.hpp"
#include "runtime/sim/agenda.hpp"
#include "runtime/sim/plane.hpp"

namespace troupe::sim {

/// The agenda as the engines' timer. What is scheduled runs only while the timer lives.
class agenda_timer final : public kernels::step_timer {
 public:
  explicit agenda_timer(agenda& a) : agenda_(a) {}
  ~agenda_timer() override { *alive_ = false; }
  nanoseconds now() const override { return agenda_.now(); }
  void schedule(nanoseconds after, std::function<void()> what) override {
    agenda_.after(after, [alive = alive_, what = std::move(what)] {
      if (*alive) what();
    });
  }

 private:
  agenda& agenda_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class cost_host;

/// What the engines of a simulation have in common.
struct engine_commons {
  agenda* events = nullptr;
  plane* wires = nullptr;
  std::shared_ptr<kernels::step_timer> timer;
  std::shared_ptr<const policies::cost_model> cost;
  std::shared_ptr<const kernels::model> outline;
  nanoseconds load_time{std::chrono::seconds(2)};
  nanoseconds step_deadline{std::chrono::seconds(5)};
  uint64_t seed = 1;
  /// Told of every step result of every rank, before the rank is.
  std::function<void(const cost_host&, const kernels::step_result&)> on_step;
};

/// Where the engines of one group view find each other: none gets its group before all are there, or after `patience`.
class engine_meeting {
 public:
  explicit engine_meeting(engine_commons& c) : commons_(c) {}
  /// `host` has a view: `join` runs with the group and the host's place in it once all members are there.
  void arrive(const actors::group_view& view, uint32_t place,
              std::function<void(result<std::shared_ptr<kernels::cost_group>>)> join);
  /// Groups that are stepping, by name: the newest of each.
  const std::map<std::string, std::shared_ptr<kernels::cost_group>>& groups() const { return newest_; }

 private:
  struct meeting {
    uint32_t members = 0;
    std::map<uint32_t, std::function<void(result<std::shared_ptr<kernels::cost_group>>)>> waiting;  // by place
    uint64_t number = 0;
  };
  engine_commons& commons_;
  std::map<std::pair<std::string, uint64_t>, meeting> open_;  // by group and epoch
  std::map<std::string, std::shared_ptr<kernels::cost_group>> newest_;
  uint64_t meetings_ = 0;
};

/// See actors::rank_host. Everything happens on the agenda.
class cost_host final : public actors::rank_host {
 public:
  cost_host(engine_commons& c, engine_meeting& m, size_t node, const actors::role_assignment& seat,
            uint64_t incarnation, const config::ranks_section& ranks, const config::engine_section& engine);
  ~cost_host() override;

  void open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) override;
  void regroup(const actors::group_view& view, std::function<void(result<void>)> done) override;
  kernels::engine* engine() override { return engine_.get(); }
  actors::peer_memory memory() const override { return memory_; }
  actors::page_memory pages() override {
    return pages_ ? actors::page_memory{pages_->bytes(), pages_} : actors::page_memory{};
  }
  void pull(const actors::transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
            std::function<void(result<uint64_t>)> done) override;
  void stop() override;

  /// The node's process has ended: its group learns it after `noticed`.
  void crash(nanoseconds noticed);
  void freeze(bool on);
  void slow(uint32_t permille);

  size_t node() const { return node_; }
  const actors::role_assignment& seat() const { return seat_; }
  /// Ranks of the group that it steps with now.
  uint32_t members() const { return members_; }

 private:
  void later(nanoseconds d, std::function<void()> f);
  result<std::string> load();
  result<void> enter(const actors::group_view& view, const std::shared_ptr<kernels::cost_group>& group);
  result<kernels::handoff_route> route_of(const actors::transfer_grant& from,
                                          const std::vector<kernels::page_id>& pages, uint32_t place);

  engine_commons& commons_;
  engine_meeting& meeting_;
  const size_t node_;
  const actors::role_assignment seat_;
  const uint64_t incarnation_;
  const config::ranks_section ranks_;
  const config::engine_section options_;
  kernels::engine_limits limits_;
  kernels::engine::sink sink_;
  std::unique_ptr<transport::transport> transport_;
  transport::region_ptr pages_, states_;
  actors::peer_memory memory_;
  std::shared_ptr<kernels::cost_group> group_;
  uint32_t place_ = 0, members_ = 0;  // in the group; of it
  bool frozen_ = false;
  uint32_t slow_permille_ = 1000;
  std::unique_ptr<kernels::engine> engine_;
  const std::shared_ptr<bool> stopped_ = std::make_shared<bool>(false);
};

}  // namespace troupe::sim
