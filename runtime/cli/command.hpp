// What the subcommands of `troupe` share. One file per subcommand; each adds itself to the command line and leaves its
// exit code in `result`.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/installation.hpp"

namespace troupe::cli {

/// Exit codes, the same for every subcommand (docs/cluster.md).
enum exit_code : int {
  ok = 0,
  failed = 1,         // the check or run failed
  usage = 2,          // wrong command line or configuration
  unavailable = 3,    // nothing to talk to: no cluster, not ready in time
  interrupted = 130,  // `up` was told to stop before the cluster was ready
};

/// State of one run of the program, shared by the subcommands.
struct context {
  std::string program;  // path of this executable
  int result = ok;      // set by the subcommand that ran
};

/// Options that every command with a configuration has.
struct config_options {
  std::string file = installed_file("configs/local.yaml");  // which names the model that comes with the program
  std::vector<std::string> overrides;
  /// Adds -c/--config and --set to `command`.
  void add_to(CLI::App& command);
};

/// Each adds one subcommand.
void add_up(CLI::App& app, context& ctx);
void add_node(CLI::App& app, context& ctx);
void add_chat(CLI::App& app, context& ctx);
void add_generate(CLI::App& app, context& ctx);
void add_verify(CLI::App& app, context& ctx);
void add_eval(CLI::App& app, context& ctx);
void add_doctor(CLI::App& app, context& ctx);
void add_status(CLI::App& app, context& ctx);
void add_config(CLI::App& app, context& ctx);
/// `troupe policy`.
void add_policy(CLI::App& app, context& ctx);
/// `troupe kv`.
void add_kv(CLI::App& app, context& ctx);
/// `troupe sim`.
void add_sim(CLI::App& app, context& ctx);
/// `troupe bench`.
void add_bench(CLI::App& app, context& ctx);
void add_version(CLI::App& app, context& ctx);

/// Writes to stderr. Unlike fmt::print it goes on where nobody reads (closed, a full disk, `2>&1 | head`): words for
/// people must not end the work they are about.
void tell(const std::string& text);
template <class... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  tell(fmt::format(format, std::forward<Args>(args)...));
}

/// Prints "troupe COMMAND: TEXT" to stderr and returns `code`.
int complain(const std::string& command, const std::string& text, int code);

}  // namespace troupe::cli
