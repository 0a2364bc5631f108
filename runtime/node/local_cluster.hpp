// A whole cluster on this machine as a list of processes, and its start.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/node/run_dir.hpp"
#include "runtime/node/supervisor.hpp"

namespace troupe::node {

/// How `up` starts a cluster.
struct up_request {
  std::string program;                 // this executable
  std::string otherwise;               // what to run when that file is not there any more
  std::string config_file;             // given to every process
  std::vector<std::string> overrides;  // the same
  config::settings settings;           // what the two say
  std::string run_dir;
  nanoseconds ready_within = std::chrono::seconds(120);
};

/// A running cluster of child processes. One thread.
class local_cluster {
 public:
  /// Starts one process per node: the director, then fronts and ranks, which find it by its address. Returns when every
  /// front says that it is ready. On a failure everything is stopped, and the error holds the end of the log of the
  /// process at fault: unavailable when a process died, when a rank
  /// reported that it cannot start (with its reason), or when it was not ready in time; cancelled after a signal.
  static result<std::unique_ptr<local_cluster>> start(const up_request& request);

  const cluster_file& facts() const { return facts_; }
  const std::string& run_dir() const { return dir_.path(); }

  /// Watches until a signal comes (success) or a child dies (an error with the end of its log). At most `limit`; true:
  /// go on watching.
  result<bool> watch(nanoseconds limit);

  /// Stops fronts, ranks and director in this order. `broken`: the cluster cannot finish what runs, so running requests
  /// get a second instead of cluster.drain_timeout. `on_waiting` hears how many requests a front waits for. A process
  /// that has not left two seconds after the time for draining is killed. Names the processes that had to be killed.
  std::vector<std::string> stop(bool broken, const std::function<void(uint64_t)>& on_waiting = {});

 private:
  local_cluster(const up_request& request, node::run_dir dir);
  result<void> start_child(const std::string& seat, const std::string& join);
  result<void> bring_up();
  error died(const supervisor_event& e) const;

  const up_request request_;
  node::run_dir dir_;
  supervisor children_;
  cluster_file facts_;
  std::vector<std::string> fronts_, ranks_, stores_;  // process names
};

/// Seats of the cluster in the order in which they are started: "director", "front/0", "prefill-0/0", ...
std::vector<std::string> seats_of(const config::settings& s);

}  // namespace troupe::node
