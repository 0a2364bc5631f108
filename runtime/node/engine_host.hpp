// A rank's engine in this process: maps the checkpoint, holds page memory and the end of the group's data plane, and
// makes the engine when the group's first view comes. Slow work runs on a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "actors/serving/rank_host.hpp"
#include "kernels/engine/snapshot_pull.hpp"
#include "kernels/engine/step_timer.hpp"
#include "kernels/ep/transport_group.hpp"
#include "kernels/model/model.hpp"
#include "policies/step_cost.hpp"
#include "runtime/config/config.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::node {

/// What an engine host is made for.
struct host_options {
  std::string model;  // checkpoint folder
  config::ranks_section rank;
  config::engine_section engine;
  config::transport_section transport;
  uint64_t incarnation = 0;
  uint32_t index = 0;      // of the rank in its group
  uint32_t ranks = 1;      // of the group; 1: no endpoint of a group is opened
  uint32_t snapshots = 0;  // places of the snapshot memory; none where nobody keeps any
  bool reachable = true;   // KV pages lie in memory that other processes can read; false: nobody will
};

/// See actors::rank_host for the thread rules. Destroying it ends the engine and joins the thread, which may take as
/// long as a step deadline: not on an actor's thread.
class engine_host final : public actors::rank_host {
 public:
  explicit engine_host(host_options options);
  ~engine_host() override;

  void open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) override;
  void regroup(const actors::group_view& view, std::function<void(result<void>)> done) override;
  actors::peer_memory memory() const override { return memory_; }
  actors::page_memory pages() override {
    return pages_ ? actors::page_memory{pages_->bytes(), pages_} : actors::page_memory{};
  }
  void pull(const actors::transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
            std::function<void(result<uint64_t>)> done) override;
  actors::snapshot_memory snapshots() const override { return snapshot_memory_; }
  void pull_snapshot(const actors::snapshot_source& from, uint32_t place,
                     std::function<void(result<void>)> done) override;
  kernels::engine* engine() override { return engine_pointer_.load(std::memory_order_acquire); }
  void stop() override;

  /// True once a stop is through: destroying the host does not block any more.
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  // Stands between the engine's thread and the rank, so that `stop` can drop the rank's reference.
  struct gate {
    std::mutex mutex;
    kernels::engine::sink sink;
  };

  void run();
  void post(std::function<void()> task);
  result<std::string> load();
  result<void> regroup_now(const actors::group_view& view);
  result<kernels::handoff_route> route_of(const actors::transfer_grant& from,
                                          const std::vector<kernels::page_id>& pages, uint32_t place);
  result<std::unique_ptr<kernels::ep::group>> make_group(const actors::group_view& view);

  const host_options options_;
  kernels::engine_limits limits_;

  // Of the host's thread.
  std::shared_ptr<const kernels::model> model_;
  std::shared_ptr<const policies::cost_model> cost_;  // engine.kind is cost: model_ has no weights
  std::shared_ptr<kernels::step_timer> timer_;        // of such an engine
  std::unique_ptr<transport::transport> transport_;
  transport::region_ptr pages_;              // the engine's KV pages; constant once `open` has called back
  transport::region_ptr states_;             // places of sequences that come from or go to other engines
  transport::region_ptr snapshots_;          // places of window snapshots; constant once `open` has called back
  actors::peer_memory memory_;               // the same
  actors::snapshot_memory snapshot_memory_;  // the same
  uint32_t place_bytes_ = 0;
  std::unique_ptr<kernels::ep::ep_endpoint> endpoint_;
  std::unique_ptr<kernels::engine> engine_;

  std::atomic<kernels::engine*> engine_pointer_{nullptr};
  std::atomic<bool> stopped_{false};
  const std::shared_ptr<gate> gate_ = std::make_shared<gate>();

  std::mutex mutex_;  // protects what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // open, one regroup and stop at most, and parts of pulls
  bool ending_ = false;

  std::thread thread_;
};

/// What schedulers and the gateway need to know about the model of a cluster, without an engine: `name` for clients,
/// `max_context` the smaller of the model's and `limit`.
result<kernels::model_facts> read_facts(const config::settings& s, const std::string& name, uint32_t limit);

}  // namespace troupe::node
