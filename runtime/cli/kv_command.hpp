// The `troupe kv` group. One file per subcommand (kv_<name>_command.cpp); each adds itself to the group.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/cli/command.hpp"

namespace troupe::cli {

/// Each adds one subcommand of `troupe kv`.
void add_kv_replay(CLI::App& kv, context& ctx);

}  // namespace troupe::cli
