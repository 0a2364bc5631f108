// A real cluster under `troupe up`, for a test: started on free ports in a folder of its own, watched, and counted out.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/node/run_dir.hpp"
#include "tests/cli/run_program.hpp"

namespace troupe::tests {

/// One `troupe up`. Kills it with everything it started when it goes away.
class live_cluster {
 public:
  /// Starts configs/local.yaml with the model tiny-v41 and `overrides` on free ports and waits until it has printed its
  /// table. On failure `ready` is false and `output` says why.
  /// With `wait` false it returns as soon as the run folder is there, while the cluster starts. `processes`: as many
  /// as the overrides make, `up` itself not counted.
  explicit live_cluster(const std::vector<std::string>& overrides = {}, bool wait = true, int processes = 5);
  ~live_cluster();

  bool ready = false;
  std::string table;         // what it printed on stdout
  node::cluster_file facts;  // pids, addresses

  pid_t pid() const { return pid_; }
  std::string run_dir() const { return folder_.path + "/run"; }
  /// stderr of `troupe up` so far.
  std::string output() const { return read_file(folder_.path + "/stderr"); }
  /// Pid of the process with that name.
  pid_t pid_of(const std::string& name) const;

  /// Sends `signal` and waits for the end; the exit code (128 + n after signal n), or -1 when it did not end within
  /// `limit`.
  int stop(int signal, nanoseconds limit = std::chrono::seconds(60));
  /// Waits for the end without a signal.
  int wait(nanoseconds limit = std::chrono::seconds(60));
  /// Waits until every process that `up` started is gone; names those that are not within `limit`.
  std::vector<std::string> left_over(nanoseconds limit = std::chrono::seconds(30)) const;

 private:
  temporary_folder folder_;
  pid_t pid_ = -1;
};

/// Names in /dev/shm.
std::set<std::string> shared_memory_names();

/// Waits until the process is gone (not even a zombie of ours); false after `limit`.
bool gone(pid_t pid, nanoseconds limit);

}  // namespace troupe::tests
