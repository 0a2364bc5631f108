// One simulated run from beginning to end: the cluster comes up, the workload is played, faults happen, invariants are
// checked, and what came of it is summed up.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/sim/events/invariants.hpp"
#include "runtime/sim/faults/plan.hpp"
#include "runtime/sim/load.hpp"
#include "runtime/sim/report/summary.hpp"
#include "runtime/sim/workload/workload.hpp"

namespace troupe::sim {

/// What is run.
struct run_options {
  config::settings settings;
  uint64_t seed = 1;
  std::shared_ptr<const policies::cost_model> cost;
  workload_options workload;
  fault_plan plan;
  bool swarm = false;     // the plan is drawn from the seed instead, for `length`
  nanoseconds length{0};  // of the load, from the cluster being ready; 0: until the workload is over
  nanoseconds ready_within{std::chrono::minutes(2)};
  nanoseconds drain_within{std::chrono::minutes(10)};  // after the last arrival; then open requests are a violation
  load_options clients;
  summary_options about;
  std::string command;                                                                  // that repeats the run
  std::ostream* events = nullptr;                                                       // the event log, msgpack
  event_sink* watch = nullptr;                                                          // sees every event, too
  std::function<void(nanoseconds at, uint64_t submitted, uint64_t finished)> progress;  // every virtual minute
};

/// What came of it.
struct run_report {
  run_summary summary;
  std::vector<request_outcome> requests;  // in the order in which they ended
  uint64_t event_log_hash = 0, events = 0;
  uint64_t scheduler_hash = 0, handled = 0;  // messages handled by actors, and the hash of their order
  uint64_t messages = 0, message_bytes = 0;  // on the actor network
  uint64_t plane_bytes = 0;                  // on the data plane, as the model's pages count
  nanoseconds virtual_time{0}, ready_after{0};
  std::string violation;  // empty: none
};

/// Runs it. An error: the run could not be made (configuration, workload, plan; the cluster did not come up). A broken
/// invariant is no error: it is in the report.
result<run_report> run_simulation(run_options options);

}  // namespace troupe::sim
