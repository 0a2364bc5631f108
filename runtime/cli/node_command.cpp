// troupe node: one process of a cluster.
#include <memory>

#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"
#include "runtime/node/node_process.hpp"

namespace troupe::cli {
namespace {

struct node_options : config_options {
  std::string seat, join;
  int report_fd = -1;
};

int run(const node_options& o) {
  node::node_request request;
  auto s = config::load(o.file, o.overrides);
  if (!s) return complain("node", s.error().message, usage);
  request.settings = std::move(*s);
  request.seat = o.seat;
  request.report_fd = o.report_fd;
  bool director = o.seat == "director";
  if (!director && o.join.empty())
    return complain(
        "node", "--join HOST:PORT is needed, the address of the director; or start one with --seat director", usage);
  if (director && !o.join.empty()) return complain("node", "a director joins nobody; leave --join out", usage);
  if (!o.join.empty()) {
    auto join = config::parse_address(o.join);
    if (!join) return complain("node", "--join: " + join.error().message, usage);
    if (!join->loopback()) {
      return complain(
          "node",
          "--join: " + o.join +
              " is not a loopback address: the actor network is neither encrypted nor authenticated in this version",
          usage);
    }
    request.join = *join;
  }
  auto done = node::run_node(request);
  return done ? ok : complain("node", done.error().message, code_for(done.error()));
}

}  // namespace

void add_node(CLI::App& app, context& ctx) {
  auto o = std::make_shared<node_options>();
  CLI::App* c = app.add_subcommand("node", "One process of a cluster");
  o->add_to(*c);
  c->add_option("--seat", o->seat,
                "director, front/0, prefill-0/0, decode-0/1, or a group such as decode-0; any free seat by default");
  c->add_option("--join", o->join, "Address of the director, HOST:PORT");
  c->add_option("--report-fd", o->report_fd, "File descriptor for reports to a supervisor")->group("");
  c->footer(
      "SIGTERM or Ctrl-C drains: unready, no new requests, running ones finish, leave. A second one ends at once.\n"
      "Examples:\n  troupe node --seat director --set director.listen=127.0.0.1:7000\n  troupe node --seat decode-0/1 "
      "--join 127.0.0.1:7000");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
