// troupe kv: the block store from the shell.
#include "runtime/cli/kv_command.hpp"

namespace troupe::cli {

void add_kv(CLI::App& app, context& ctx) {
  CLI::App* kv =
      app.add_subcommand("kv", "The block store: what it holds, how fast it is, what a trace would find in it");
  kv->require_subcommand(1);
  kv->footer(
      "A store is a directory (--dir), which one process at a time has open, or that of a running cluster with "
      "storage\n"
      "nodes (--join, --cluster, --run-dir). docs/kv.md shows how to use both.\n"
      "Exit codes: 0 ok, 1 not all of it could be done or something is wrong, 2 wrong command line, 3 no store there, "
      "in "
      "use\n"
      "or to be repaired first, 130 stopped by Ctrl-C (the store is closed in order).");
  add_kv_blocks(*kv, ctx);
  add_kv_maintain(*kv, ctx);
  add_kv_targets(*kv, ctx);
  add_kv_bench(*kv, ctx);
  add_kv_replay(*kv, ctx);
}

}  // namespace troupe::cli
