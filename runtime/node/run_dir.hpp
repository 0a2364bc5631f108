// The run directory of a local cluster: logs, a lock against a second cluster in the same place, and the file by which
// `troupe status` and `troupe chat` find the cluster.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::node {

/// A process of the cluster as `up` started it.
struct cluster_process {
  std::string name, log;
  int pid = 0;
  bool operator==(const cluster_process&) const = default;
};

/// What cluster.json holds.
struct cluster_file {
  std::string name;      // of the cluster
  std::string director;  // HOST:PORT of the actor network
  std::string http;      // HOST:PORT of the gateway of front process 0
  std::string model;     // name for clients
  int pid = 0;           // of `troupe up`
  std::vector<cluster_process> processes;
  std::vector<std::string> fronts;  // HOST:PORT of every front process, by number
  bool operator==(const cluster_file&) const = default;
};

/// $TROUPE_RUN_DIR, else $XDG_RUNTIME_DIR/troupe/CLUSTER, else TMPDIR/troupe-UID/CLUSTER.
std::string default_run_dir(const std::string& cluster);

/// Owns a run directory for as long as it lives; removes cluster.json at the end and leaves the logs.
class run_dir {
 public:
  /// Makes the folder (mode 0700) and locks it. `unavailable` when another process holds it, naming its pid.
  static result<run_dir> take(const std::string& path);
  run_dir(run_dir&& other) noexcept;
  run_dir& operator=(run_dir&&) = delete;
  ~run_dir();

  const std::string& path() const { return path_; }
  /// Writes cluster.json in one step, so that a reader sees all or nothing.
  result<void> write(const cluster_file& f) const;

 private:
  run_dir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_ = -1;
};

/// Reads PATH/cluster.json. not_found when no cluster runs there.
result<cluster_file> read_cluster_file(const std::string& path);

}  // namespace troupe::node
