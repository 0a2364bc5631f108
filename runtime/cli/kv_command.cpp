// troupe kv: the block store from the shell.
#include "runtime/cli/kv_command.hpp"

namespace troupe::cli {

void add_kv(CLI::App& app, context& ctx) {
  CLI::App* kv =
      app.add_subcommand("kv", "The block store: what it holds, how fast it is, what a trace would find in it");
  kv->require_subcommand(1);
  add_kv_replay(*kv, ctx);
}

}  // namespace troupe::cli
