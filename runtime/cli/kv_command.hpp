// The `troupe kv` group. One file per subcommand or two; each adds itself to the group.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/cli/command.hpp"

namespace troupe::cli {

/// Each adds its subcommands to `troupe kv`: put, get, match; ls, stat, verify, scrub; targets; bench; replay.
void add_kv_blocks(CLI::App& kv, context& ctx);
void add_kv_maintain(CLI::App& kv, context& ctx);
void add_kv_targets(CLI::App& kv, context& ctx);
void add_kv_bench(CLI::App& kv, context& ctx);
void add_kv_replay(CLI::App& kv, context& ctx);

}  // namespace troupe::cli
