// troupe up: a whole cluster on this machine, one process per node.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "runtime/base/log.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"
#include "runtime/node/local_cluster.hpp"
#include "runtime/node/preflight.hpp"
#include "runtime/node/status_client.hpp"

namespace troupe::cli {
namespace {

struct up_options : config_options {
  std::string run_dir, then;
  double ready_within = 120;
  bool json = false;
};

// This executable, so that children run the same program whatever happens to PATH.
std::string own_path(const std::string& fallback) {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : fallback;
}

// Starts `command` in a shell with the cluster's address in its environment.
pid_t start_shell(const std::string& command, const node::local_cluster& c) {
  std::string url = "http://" + c.facts().http;
  pid_t pid = fork();
  if (pid != 0) return pid;
  setenv("TROUPE_URL", url.c_str(), 1);
  setenv("TROUPE_MODEL", c.facts().model.c_str(), 1);
  setenv("TROUPE_RUN_DIR", c.run_dir().c_str(), 1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

// Watches the cluster until a signal, a death, or the end of the shell command; returns the exit code.
// `broken`: set when a process died.
int watch(node::local_cluster& c, const up_options& o, bool& broken) {
  pid_t shell = o.then.empty() ? -1 : start_shell(o.then, c);
  for (;;) {
    auto going_on = c.watch(std::chrono::milliseconds(shell > 0 ? 100 : 60000));
    int status = 0;
    if (shell > 0 && waitpid(shell, &status, WNOHANG) == shell) {
      return WIFEXITED(status) && WEXITSTATUS(status) == 0
                 ? ok
                 : complain("up", "the command of --then: " + node::describe_exit(status), failed);
    }
    if (going_on && *going_on) continue;
    if (shell > 0) {
      kill(shell, SIGTERM);
      waitpid(shell, &status, 0);
    }
    if (!going_on) return broken = true, complain("up", going_on.error().message, failed);
    return shell > 0 ? failed : ok;
  }
}

int run(const up_options& o, const std::string& program) {
  auto s = config::load(o.file, o.overrides);
  if (!s) return complain("up", s.error().message, usage);
  log::init("up", s->log.level);
  auto problems = node::check_all(*s, o.file);
  for (const auto& p : problems) complain("up", p.text(), usage);
  if (!problems.empty()) return usage;
  node::up_request request;
  request.program = own_path(program);
  request.otherwise = "/proc/self/exe";  // an upgrade or a build may have taken the file away meanwhile
  request.config_file = o.file;
  request.overrides = o.overrides;
  request.settings = *s;
  request.run_dir = o.run_dir.empty() ? node::default_run_dir(s->cluster.name) : o.run_dir;
  request.ready_within = std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(o.ready_within));
  auto cluster = node::local_cluster::start(request);
  if (!cluster)
    return complain("up", cluster.error().message,
                    cluster.error().code == errc::cancelled ? interrupted : code_for(cluster.error()));
  const auto& facts = (*cluster)->facts();
  {
    node::actor_net net({});
    auto director = config::parse_address(facts.director);
    auto picture = node::take_picture(net, *director, std::chrono::seconds(5));
    if (picture)
      fmt::print("{}", o.json ? node::as_json(*picture) : node::as_table(*picture));
    else
      complain("up", picture.error().message, unavailable);
    std::fflush(stdout);
  }
  std::string served;
  for (const auto& front : facts.fronts) served += fmt::format("{}http://{}/v1", served.empty() ? "" : ", ", front);
  tell(
      "\n{} is served at {}; logs are in {}\n"
      "  curl http://{}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}], "
      "\"max_tokens\": 32}}'\n",
      facts.model, served, (*cluster)->run_dir(), facts.http, facts.model);
  if (o.then.empty()) tell("Ctrl-C stops it.\n");
  bool broken = false;
  int code = watch(**cluster, o, broken);
  tell("stopping\n");
  auto killed = (*cluster)->stop(broken, [&](uint64_t requests) {
    if (requests == 0) return;
    tell("{} request{} running; they get {} to finish; a second Ctrl-C skips the wait\n", requests,
         requests == 1 ? " is" : "s are", broken ? "at most 1s" : config::format_duration(s->cluster.drain_timeout));
  });
  for (const auto& name : killed)
    complain("up", fmt::format("{} did not stop by itself and was killed, or ended with an error; see its log", name),
             failed);
  return code == ok && !killed.empty() ? failed : code;
}

}  // namespace

void add_up(CLI::App& app, context& ctx) {
  auto o = std::make_shared<up_options>();
  CLI::App* c = app.add_subcommand("up", "A whole cluster on this machine, one process per node");
  o->add_to(*c);
  c->add_option("--run-dir", o->run_dir, "Folder for logs and cluster.json; by default one per cluster name and user");
  c->add_option("--then", o->then,
                "When ready, run this shell command (TROUPE_URL, TROUPE_MODEL, TROUPE_RUN_DIR are set), then stop");
  c->add_option("--ready-within", o->ready_within, "Seconds until a canary request must have gone through")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86400.0));
  c->add_flag("--json", o->json, "Print the nodes as JSON");
  c->footer(
      "Prints the table of nodes when a canary request went through, then runs until Ctrl-C, which stops everything; a "
      "second\n"
      "Ctrl-C does so at once. Exit code 0 after a stop, 1 if a process died or the command of --then failed, 2 for a "
      "wrong\n"
      "configuration, key file or checkpoint, 3 if the cluster did not become ready, 130 for a Ctrl-C before it was.\n"
      "Examples:\n  troupe up\n  troupe up -c configs/local.yaml --set front.listen=127.0.0.1:0\n  troupe up --then "
      "'curl -s $TROUPE_URL/v1/models'");
  c->callback([o, &ctx] { ctx.result = run(*o, ctx.program); });
}

}  // namespace troupe::cli
