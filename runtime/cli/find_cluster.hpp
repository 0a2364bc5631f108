// How the commands find a running cluster.
#pragma once

#include <string>

#include "runtime/cli/command.hpp"
#include "runtime/config/units.hpp"
#include "runtime/node/run_dir.hpp"

namespace troupe::cli {

/// Options of the commands that talk to a running cluster.
struct cluster_options {
  std::string run_dir;            // of `troupe up`; empty: the default one of the cluster `cluster`
  std::string cluster = "local";  // its name
  /// Adds --run-dir and --cluster to `command`.
  void add_to(CLI::App& command);
  /// Reads cluster.json of that run directory.
  result<node::cluster_file> find() const;
};

/// Exit code for an error of talking to a cluster.
int code_for(const error& e);

}  // namespace troupe::cli
