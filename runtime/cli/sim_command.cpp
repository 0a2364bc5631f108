// troupe sim: the cluster of a configuration in virtual time.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/sim_cost.hpp"
#include "runtime/cli/sim_simple.hpp"
#include "runtime/config/cost_file.hpp"
#include "runtime/config/units.hpp"
#include "runtime/sim/report/html.hpp"
#include "runtime/sim/run.hpp"

namespace troupe::cli {
namespace {

struct sim_options : config_options {
  workload_choice load;
  sim_simple_choice simple;
  std::string faults, out, check_cost, measure_cost;
  uint32_t threads = 1;
  uint64_t seed = 0, repeat = 1, jobs = 1;
  bool has_seed = false, is_simple = false;
};

constexpr uint32_t trace_block = 128;  // tokens of a block of a workload

int64_t milliseconds_of(nanoseconds d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); }

// The one command that repeats this run.
std::string command_of(const sim_options& o, uint64_t seed) {
  std::string c = fmt::format("troupe sim -c {} --seed {}", o.file, seed);
  for (const auto& s : o.overrides) c += " --set " + s;
  const auto& w = o.load;
  const workload_choice usual;
  if (!w.trace.empty()) c += " --trace " + w.trace;
  if (w.per_hour != usual.per_hour) c += fmt::format(" --per-hour {}", w.per_hour);
  if (w.arrivals != usual.arrivals) c += " --arrivals " + w.arrivals;
  if (w.agents_percent != usual.agents_percent) c += fmt::format(" --agents {}", w.agents_percent);
  if (w.first != usual.first) c += fmt::format(" --first {}", w.first);
  if (w.loops != usual.loops) c += fmt::format(" --loops {}", w.loops);
  if (w.rate != usual.rate) c += " --rate " + w.rate;
  if (w.scale != usual.scale) c += " --scale " + w.scale;
  if (!w.length.empty()) c += " --for " + w.length;
  if (w.as_recorded) c += " --as-recorded";
  if (!o.faults.empty()) c += " --faults " + o.faults;
  return c;
}

result<sim::run_options> options_of(const sim_options& o, const config::settings& s, uint64_t seed) {
  sim::run_options r;
  r.settings = s;
  r.seed = seed;
  if (s.sim.cost.empty())
    return fail(errc::invalid_argument,
                "sim.cost is empty: name a cost model, e.g. --set sim.cost=configs/sim/cost/v41-flash.yaml");
  TROUPE_TRY(r.cost, config::load_cost_model(s.sim.cost));
  auto load = o.load;
  load.seed = seed;
  TROUPE_TRY(r.workload, load.take(trace_block));
  r.length = r.workload.duration;
  const uint32_t longest =
      s.prefill.ranks > 0 ? std::min(s.prefill.max_context, s.decode.max_context) : s.decode.max_context;
  r.workload.generator.max_context = std::min(r.workload.generator.max_context, longest);
  const std::string faults = o.faults.empty() ? s.sim.faults : o.faults;
  if (faults == "swarm") {
    if (r.length == nanoseconds{0}) return fail(errc::invalid_argument, "--faults swarm needs --for");
    r.swarm = true;
  } else if (!faults.empty()) {
    TROUPE_TRY(r.plan, sim::load_fault_plan(faults));
    r.plan.seed = seed;
  }
  r.command = command_of(o, seed);
  r.about.prefill_ranks = s.prefill.ranks;
  r.about.decode_ranks = s.decode.ranks;
  r.about.name = s.cluster.name;
  return r;
}

// One run in this process. Prints the summary to stdout.
int run_one(const sim_options& o, const config::settings& s, uint64_t seed) {
  auto r = options_of(o, s, seed);
  if (!r) return complain("sim", r.error().message, usage);
  tell("seed {}\n", seed);
  std::ofstream events;
  if (!o.out.empty()) {
    std::error_code ec;
    std::filesystem::create_directories(o.out, ec);
    events.open(o.out + "/events.msgpack", std::ios::binary);
    if (!events) return complain("sim", o.out + "/events.msgpack cannot be written", failed);
    r->events = &events;
  }
  const auto begin = steady_clock().now();
  nanoseconds told = begin;
  r->progress = [&](nanoseconds at, uint64_t submitted, uint64_t finished) {
    const auto now = steady_clock().now();
    if (now - told < std::chrono::seconds(2)) return;
    told = now;
    tell("{} of virtual time in {:.1f} s, {} requests, {} finished\n",
         config::format_duration(std::chrono::duration_cast<std::chrono::seconds>(at)),
         static_cast<double>((now - begin).count()) / 1e9, submitted, finished);
  };
  auto report = sim::run_simulation(std::move(*r));
  if (!report) {
    complain("sim", report.error().message, failed);
    tell("seed {}; again: {}\n", seed, command_of(o, seed));
    return failed;
  }
  const double wall = static_cast<double>((steady_clock().now() - begin).count()) / 1e9;
  auto j = sim::to_json(report->summary);
  const double virtual_s = static_cast<double>(report->virtual_time.count()) / 1e9;
  j["simulator"] = {{"ready_ms", milliseconds_of(report->ready_after)},
                    {"messages", report->messages},
                    {"message_bytes", report->message_bytes},
                    {"plane_bytes", report->plane_bytes},
                    {"handled", report->handled}};
  tell("{:.1f} s of virtual time in {:.1f} s, {:.1f} a second; {} messages handled\n", virtual_s, wall,
       virtual_s / wall, report->handled);
  const auto text = j.dump(2);
  fmt::print("{}\n", text);
  if (!o.out.empty()) {
    std::ofstream summary(o.out + "/summary.json");
    summary << text << "\n";
    std::ofstream page(o.out + "/report.html");
    page << sim::html_report(report->summary);
    if (!summary.flush() || !page.flush()) return complain("sim", o.out + " cannot be written to", failed);
  }
  const auto lost =
      std::find_if(report->requests.begin(), report->requests.end(), [](const auto& r) { return !r.finished; });
  if (lost != report->requests.end())
    tell("{} of {} requests failed; the first, request {} of {} prompt tokens: {}\n", report->summary.failed,
         report->requests.size(), lost->index, lost->input,
         lost->failure_text.empty() ? to_string(lost->failure) : lost->failure_text);
  int code = ok;
  if (!report->violation.empty()) {
    complain("sim", report->violation, failed);
    code = failed;
  }
  // Faults that are drawn may fall on what is down already; those of a plan are meant.
  for (const auto& w : report->summary.without_effect)
    code = o.faults == "swarm" ? (complain("sim", w, ok), code) : complain("sim", w, failed);
  if (code != ok) tell("seed {}; again: {}\n", seed, command_of(o, seed));
  return code;
}

// --repeat: a process per seed, `jobs` at a time. One JSON line per seed, with its exit code and hash.
int run_many(const sim_options& o, const config::settings& s, uint64_t first) {
  struct child {
    uint64_t seed = 0;
    std::string folder;
  };
  std::map<pid_t, child> running;
  uint64_t next = 0, bad = 0;
  auto reap = [&] {
    int status = 0;
    const pid_t pid = wait(&status);
    auto it = running.find(pid);
    if (it == running.end()) return;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : failed;
    if (code != ok) ++bad;
    nlohmann::ordered_json line{{"seed", it->second.seed}, {"ok", code == ok}};
    std::ifstream in(it->second.folder + "/summary.json");
    if (auto j = nlohmann::json::parse(in, nullptr, false); j.is_object() && j.contains("event_log_hash"))
      line["event_log_hash"] = j["event_log_hash"];
    if (code != ok) line["again"] = command_of(o, it->second.seed);
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
    running.erase(it);
  };
  const std::string base =
      o.out.empty() ? fmt::format("{}/troupe-sim-{}", std::filesystem::temp_directory_path().string(), getpid())
                    : o.out;
  while (next < o.repeat || !running.empty()) {
    while (next < o.repeat && running.size() < o.jobs) {
      child c{first + next++, {}};
      c.folder = fmt::format("{}/seed-{}", base, c.seed);
      std::error_code ec;
      std::filesystem::create_directories(c.folder, ec);
      std::fflush(stdout);
      const pid_t pid = fork();
      if (pid < 0) return complain("sim", "no further process can be started", failed);
      if (pid == 0) {
        sim_options one = o;
        one.out = c.folder;
        // What a run says goes beside its files.
        if (!std::freopen((c.folder + "/stdout").c_str(), "w", stdout)) _exit(failed);
        if (!std::freopen((c.folder + "/stderr").c_str(), "w", stderr)) _exit(failed);
        const int code = run_one(one, s, c.seed);
        std::fflush(stdout);
        std::fflush(stderr);
        _exit(code);
      }
      running[pid] = c;
    }
    reap();
  }
  if (o.out.empty() && bad == 0) {
    std::error_code ec;
    std::filesystem::remove_all(base, ec);
  }
  tell("{} of {} seeds failed{}\n", bad, o.repeat, bad > 0 ? "; what they said is in " + base : "");
  return bad > 0 ? failed : ok;
}

int run(const sim_options& o) {
  if (!o.check_cost.empty()) return check_cost(o.check_cost);
  if (!o.measure_cost.empty()) return measure_cost(o.measure_cost, o.threads);
  if (o.is_simple) {
    auto load = o.load;
    if (o.has_seed) load.seed = o.seed;
    return run_sim_simple(load, o.simple);
  }
  auto s = config::load(o.file, o.overrides);
  if (!s) return complain("sim", s.error().message, usage);
  log::init("sim", s->log.level == "info" ? "error" : s->log.level);
  const uint64_t seed = o.has_seed ? o.seed : s->sim.seed;
  return o.repeat > 1 ? run_many(o, *s, seed) : run_one(o, *s, seed);
}

}  // namespace

void add_sim(CLI::App& app, context& ctx) {
  auto* c = app.add_subcommand("sim", "Run the cluster of a configuration in virtual time");
  auto o = std::make_shared<sim_options>();
  o->add_to(*c);
  o->load.add_to(*c);
  o->simple.add_to(*c);
  c->add_flag("--simple", o->is_simple, "Only prefix caches, without queues and engines");
  auto* seed = c->add_option("--seed", o->seed, "Decides everything that is drawn [sim.seed]");
  c->add_option("--faults", o->faults, "Fault plan, or `swarm`: drawn from the seed [sim.faults]")->option_text("FILE");
  c->add_option("--out", o->out, "Folder for summary.json, report.html and events.msgpack")->option_text("DIR");
  seed->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  auto* repeat = c->add_option("--repeat", o->repeat, "Run so many seeds, one after the other from --seed on");
  repeat->check(CLI::Range(1, 1'000'000'000));
  c->add_option("--jobs", o->jobs, "Processes at once with --repeat")->check(CLI::Range(1, 1024))->needs(repeat);
  c->add_option("--check-cost", o->check_cost, "Only compare a cost model with what it was fitted to")
      ->option_text("FILE");
  c->add_option("--measure-cost", o->measure_cost, "Only measure a model on this machine and print its cost model")
      ->option_text("DIR");
  c->add_option("--threads", o->threads, "With --measure-cost: of the engine")->check(CLI::Range(1, 256));
  c->footer(
      "stdout is one JSON document, or one line per seed with --repeat. Exit code 1: an invariant was broken, a "
      "request\n"
      "did not end, or a fault had no effect; stderr says which, with the command that repeats it.\n\n"
      "  troupe sim -c configs/sim/small.yaml --for 2m\n"
      "  troupe sim -c configs/sim/v41-flash-128.yaml --trace conversation_trace.jsonl --seed 1");
  add_sim_compare(*c, ctx);
  c->callback([o, seed, c, &ctx] {
    if (!c->get_subcommands().empty()) return;
    o->has_seed = seed->count() > 0;
    ctx.result = run(*o);
  });
}

}  // namespace troupe::cli
