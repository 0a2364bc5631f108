#include "runtime/cli/find_cluster.hpp"

namespace troupe::cli {

void cluster_options::add_to(CLI::App& command) {
  command.add_option("--run-dir", run_dir, "Run directory of the cluster, as `troupe up` printed it");
  command.add_option("--cluster", cluster, "Name of the cluster, for its default run directory")->capture_default_str();
}

result<node::cluster_file> cluster_options::find() const {
  return node::read_cluster_file(run_dir.empty() ? node::default_run_dir(cluster) : run_dir);
}

int code_for(const error& e) {
  switch (e.code) {
    case errc::unavailable:
    case errc::timeout:
    case errc::not_found:
    case errc::peer_lost:
      return unavailable;
    case errc::invalid_argument:
      return usage;
    default:
      return failed;
  }
}

}  // namespace troupe::cli
