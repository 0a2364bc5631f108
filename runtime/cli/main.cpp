// troupe: one program, one subcommand per task. stdout is data, stderr is for people.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>

#include "runtime/cli/command.hpp"
#include "runtime/config/units.hpp"

namespace {

// A pipe whose other end was closed, as by `head`.
bool nobody_reads_stdout() {
  pollfd p{STDOUT_FILENO, 0, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & POLLERR) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace troupe::cli;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe or connection is an error value where it is written, not a death
  context ctx;
  ctx.program = argv[0];
  CLI::App app{
      "Troupe serves mixture-of-experts models of the DeepSeek-V4.1 architecture on a cluster of actors.\n"
      "stdout is data, stderr is for people. Exit codes: 0 ok, 1 the check or run failed, 2 wrong command line or\n"
      "configuration, 3 nothing to talk to (no cluster, or not ready in time)."};
  app.name("troupe");
  app.require_subcommand(1);
  app.footer("Start with:  troupe doctor;  troupe up -c configs/local.yaml;  troupe chat");
  add_up(app, ctx);
  add_node(app, ctx);
  add_chat(app, ctx);
  add_generate(app, ctx);
  add_verify(app, ctx);
  add_eval(app, ctx);
  add_doctor(app, ctx);
  add_status(app, ctx);
  add_config(app, ctx);
  add_policy(app, ctx);
  add_kv(app, ctx);
  add_sim(app, ctx);
  add_bench(app, ctx);
  add_version(app, ctx);
  std::vector<std::string> names;
  for (const auto* c : app.get_subcommands({})) names.push_back(c->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    std::string near = troupe::config::nearest(argv[1], names);
    tell("troupe: there is no command '{}'{}\n", argv[1],
         near.empty() ? "; `troupe --help` lists all" : "; did you mean " + near + "?");
    return usage;
  }
  std::string name = argc > 1 ? argv[1] : "";  // what messages call this run, e.g. "kv put"
  if (argc > 2 && argv[1][0] != '-' && argv[2][0] != '-') {
    const auto* group = app.get_subcommand(argv[1]);
    std::vector<std::string> inner;
    for (const auto* c : group->get_subcommands({})) inner.push_back(c->get_name());
    if (std::find(inner.begin(), inner.end(), argv[2]) != inner.end()) name += std::string(" ") + argv[2];
    if (group->get_require_subcommand_min() > 0 && std::find(inner.begin(), inner.end(), argv[2]) == inner.end()) {
      std::string near = troupe::config::nearest(argv[2], inner);
      tell("troupe {}: there is no command '{}'{}\n", argv[1], argv[2],
           near.empty() ? fmt::format("; `troupe {} --help` lists all", argv[1]) : "; did you mean " + near + "?");
      return usage;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    app.exit(e);
    return usage;
  } catch (const std::exception& e) {
    return complain(name, std::string("unexpected: ") + e.what(), failed);
  }
  // What was not written is a failure, except that a reader may have seen enough.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && ctx.result == ok && !nobody_reads_stdout())
    return complain(name, "stdout could not be written", failed);
  return ctx.result;
}
