// troupe status: nodes, roles, pids, ports, queues and pages of a running cluster.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "runtime/cli/find_cluster.hpp"
#include "runtime/node/signals.hpp"
#include "runtime/node/status_client.hpp"

namespace troupe::cli {
namespace {

struct status_options : cluster_options {
  std::string director;
  bool json = false, watch = false;
  double interval = 2;
};

int run(const status_options& o) {
  std::string where = o.director;
  if (where.empty()) {
    auto file = o.find();
    if (!file) return complain("status", file.error().message, code_for(file.error()));
    where = file->director;
  }
  auto address = config::parse_address(where);
  if (!address) return complain("status", address.error().message, usage);
  node::signal_reader signals{SIGINT, SIGTERM};
  node::actor_net net({});
  for (;;) {
    auto picture = node::take_picture(net, *address, std::chrono::seconds(3));
    if (!picture) return complain("status", picture.error().message, code_for(picture.error()));
    if (o.watch && isatty(STDOUT_FILENO)) fmt::print("\x1b[H\x1b[2J");
    fmt::print("{}", o.json ? node::as_json(*picture) : node::as_table(*picture));
    std::fflush(stdout);
    if (!o.watch) return picture->cluster.complete ? ok : failed;
    auto pause = std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(o.interval));
    if (signals.wait(pause) != 0) return ok;
  }
}

}  // namespace

void add_status(CLI::App& app, context& ctx) {
  auto o = std::make_shared<status_options>();
  CLI::App* c = app.add_subcommand("status", "Nodes, roles, queues and pages of a running cluster");
  o->add_to(*c);
  c->add_option("--director", o->director, "Address of the director, HOST:PORT, instead of a cluster on this machine");
  c->add_flag("--json", o->json, "As JSON");
  c->add_flag("--watch", o->watch, "Again and again, until Ctrl-C");
  c->add_option("--interval", o->interval, "Seconds between two looks of --watch")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  c->footer(
      "Exit code 0 when every seat is filled and ready, 1 when not, 3 when no cluster was found.\nExamples:\n  troupe "
      "status\n  troupe status --watch\n  troupe status --json --run-dir DIR");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
