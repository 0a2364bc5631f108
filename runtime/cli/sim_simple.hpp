// `troupe sim --simple`: prefix caches without queueing; and `troupe sim compare`. Parts of the sim command.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "runtime/cli/command.hpp"
#include "runtime/sim/workload/workload.hpp"

namespace troupe::cli {

/// What to play, as options of a command. `take` turns them into a workload.
struct workload_choice {
  std::string trace, arrivals = "poisson", scale = "1", rate = "1", length;
  uint64_t per_hour = 3'600, loops = 1, first = 0, seed = 1;
  uint32_t agents_percent = 20;
  bool as_recorded = false;
  /// Adds --trace, --loops, --rate, --scale, --first, --for, --as-recorded, and for drawn requests --per-hour,
  /// --arrivals,
  /// --agents; not --seed, which is the command's.
  void add_to(CLI::App& command);
  /// The workload's options; invalid_argument names the option.
  result<sim::workload_options> take(uint32_t block_tokens) const;
};

/// Options of the simple mode beside the workload's.
struct sim_simple_choice {
  std::string place = "shared";
  uint32_t caches = 1, block_tokens = 512;
  uint64_t cache_tokens = 0;
  /// Adds --place, --caches, --cache-tokens, --block-tokens.
  void add_to(CLI::App& command);
};

/// Runs it: JSON to stdout; the exit code.
int run_sim_simple(const workload_choice& load, const sim_simple_choice& o);

/// Adds `compare A B` to the sim command: two summaries side by side, JSON to stdout, what changed to stderr.
void add_sim_compare(CLI::App& sim, context& ctx);

}  // namespace troupe::cli
