#include "runtime/sim/run.hpp"

#include <fmt/format.h>

#include <map>

#include "runtime/sim/fault_actions.hpp"

namespace troupe::sim {
namespace {

// Steps of the engines as events: one for all ranks of a group.
class step_events {
 public:
  explicit step_events(event_log& log) : log_(log) {}
  void on(nanoseconds now, const cost_host& host, const kernels::step_result& r) {
    if (r.failure != errc{} || r.rows == 0) return;
    const auto& seat = host.seat();
    auto& g = groups_[seat.group];
    // The ranks of a group end a step at one time; their own counts of steps differ when one has joined later.
    if (g.at != now) {
      flush(g);
      g.pool = seat.what == actors::role::prefill ? pool_kind::prefill : pool_kind::decode;
      g.name = seat.group;
    }
    g.at = now;
    g.took = std::max(g.took, r.times.total);
    g.most = std::max(g.most, r.rows);
    g.rows += r.rows;
    g.ranks = host.members();
    if (g.pool == pool_kind::prefill) g.tokens += r.rows;
    if (g.pool == pool_kind::decode)
      for (const auto& s : r.sequences) g.tokens += s.tokens.size();
  }
  void flush() {
    for (auto& [name, g] : groups_) flush(g);
  }

 private:
  struct group {
    std::string name;
    uint64_t rows = 0, tokens = 0;
    uint32_t most = 0, ranks = 0;
    int64_t took = 0;
    pool_kind pool = pool_kind::decode;
    nanoseconds at{0};
    actor_number actor = 0;
  };
  void flush(group& g) {
    if (g.rows == 0) return;
    if (g.actor == 0) g.actor = log_.actor(g.name);
    // Of the ranks' time in the step that part which their rows would need if they were spread evenly.
    const auto work = static_cast<int64_t>(static_cast<uint64_t>(g.took) * g.rows / std::max(1u, g.most));
    // Told when the next one is known: at the time of that.
    log_.record(happened::step(log_now_ ? log_now_() : g.at, g.actor, g.actor, g.pool, nanoseconds(work),
                               nanoseconds(g.took), g.ranks, g.tokens));
    g.rows = g.tokens = 0;
    g.most = 0;
    g.took = 0;
  }
  event_log& log_;
  std::map<std::string, group> groups_;

 public:
  std::function<nanoseconds()> log_now_;
};

// Samples of the pools, and epochs and members as the director sees them.
class sampler {
 public:
  sampler(world& w, event_log& log, const load& l) : world_(w), log_(log), load_(l) {}
  void sample() {
    uint64_t up[2] = {0, 0};
    for (const auto& n : world_.nodes()) {
      if (!n.running) continue;
      if (n.kind == node_kind::prefill) ++up[0];
      if (n.kind == node_kind::decode) ++up[1];
    }
    log_.record(happened::pool_load(world_.now(), pool_kind::prefill, up[0], 0, load_.open()));
    log_.record(happened::pool_load(world_.now(), pool_kind::decode, up[1], 0, load_.open()));
    auto s = world_.status();
    if (!s) return;
    const auto director = log_.actor("director");
    // The term is what fences an older director; the cluster epoch may be the one of the cluster that it takes over.
    log_.record(happened::epoch_seen(world_.now(), director, epoch_kind::cluster, 0, s->view.term.value, 0));
    for (const auto& g : s->view.groups)
      log_.record(happened::epoch_seen(world_.now(), director, epoch_kind::group, log_.actor("group " + g.group),
                                       g.epoch.value, s->view.epoch.value));
  }

 private:
  world& world_;
  event_log& log_;
  const load& load_;
};

}  // namespace

result<run_report> run_simulation(run_options o) {
  event_log log;
  std::unique_ptr<event_writer> writer;
  if (o.events) writer = std::make_unique<event_writer>(*o.events, log, o.seed);
  o.about.seed = o.seed;
  o.about.command = o.command;
  invariant_options strict;
  strict.seed = o.seed;
  strict.command = o.command;
  invariant_checker checker(strict);
  if (writer) log.add(*writer);
  log.add(checker);
  TROUPE_TRY(auto source, open_workload(o.workload));
  o.about.workload = source->text();
  summary_builder summing(o.about);
  log.add(summing);
  if (o.watch) log.add(*o.watch);

  step_events steps(log);
  world_options wo;
  wo.settings = o.settings;
  wo.seed = o.seed;
  wo.cost = o.cost;
  world* there = nullptr;
  wo.on_step = [&](const cost_host& h, const kernels::step_result& r) { steps.on(there->now(), h, r); };
  TROUPE_TRY(auto w, world::make(std::move(wo)));
  there = w.get();
  steps.log_now_ = [&] { return there->now(); };
  if (o.swarm) o.plan = draw_swarm(o.seed, shape_of(*w), o.length, o.settings.storage.parity, possible_rates());
  TROUPE_TRY(auto faults, fault_actions::make(*w, log, o.plan));
  load clients(*w, *source, log, o.clients);

  const auto began = w->now();
  w->start();
  if (auto up = w->wait_serving(o.ready_within); !up) return fail(up.error());
  run_report out;
  out.ready_after = w->now() - began;
  log.record(happened::run_started(w->now(), o.seed, w->nodes().size()));
  const auto start = w->now();
  sampler samples(*w, log, clients);
  clients.start();
  faults->start();

  auto broken = [&] { return checker.broken().has_value() || !clients.violation().empty(); };
  bool over = false;
  auto run = [&](const std::function<bool()>& done, nanoseconds limit) {
    const auto end = w->now() + limit;
    uint64_t seen = UINT64_MAX;
    while (w->now() < end && !done() && !broken()) {
      const auto until = std::min(end, w->now() + std::chrono::seconds(10));
      w->run_until(
          [&] {
            const uint64_t count = clients.submitted() + clients.finished();
            if (count == seen) return false;
            seen = count;
            faults->progress(clients.submitted(), clients.finished());
            return broken() || done();
          },
          until - w->now());
      if (w->now() >= until) {
        samples.sample();
        if (o.progress) o.progress(w->now() - start, clients.submitted(), clients.finished());
      }
    }
    over = done();
  };
  const auto forever = std::chrono::hours(24 * 365);
  if (o.length > nanoseconds{0}) {
    run([&] { return false; }, o.length);
    clients.close();
  } else {
    run([&] { return clients.done() && faults->driver().over(); }, forever);
  }
  if (!broken() && !o.plan.faults.empty()) {
    run([&] { return faults->driver().over(); }, o.drain_within);
    log.record(happened::faults_over(w->now(), o.plan.recover_within));
    // What broke for good is never whole again: then it is enough that requests end (invariants.hpp).
    const bool heals = std::all_of(o.plan.faults.begin(), o.plan.faults.end(), [](const fault& f) {
      return f.lasts > nanoseconds{0} || f.kind == fault_kind::disk_rot || f.kind == fault_kind::clock_jump ||
             f.kind == fault_kind::rolling_restart;
    });
    auto well = heals ? w->wait_serving(o.plan.recover_within) : result<void>{};
    if (!well && !broken())
      out.violation = fmt::format("at {:.9f} s (seed {}): after the last fault the cluster does not serve again: {}",
                                  static_cast<double>(w->now().count()) / 1e9, o.seed, well.error().message);
  }
  if (!broken()) run([&] { return clients.done(); }, o.drain_within);
  if (!clients.source_error()) return fail(clients.source_error().error());
  steps.flush();
  log.record(happened::run_ended(w->now(), true));
  if (writer)
    if (auto whole = writer->finish(); !whole) return fail(whole.error());

  summing.faults(faults->driver().outcomes(), faults->driver().without_effect());
  if (checker.broken()) out.violation = checker.report(log);
  if (!clients.violation().empty())
    out.violation = fmt::format("at {:.9f} s (seed {}): {}", static_cast<double>(w->now().count()) / 1e9, o.seed,
                                clients.violation());
  out.event_log_hash = log.hash();
  out.events = log.count();
  out.summary = summing.finish(log.hash(), log.count());
  out.summary.violation = out.violation;
  out.requests = clients.outcomes();
  out.scheduler_hash = w->hash();
  out.handled = w->handled();
  out.messages = w->net().messages();
  out.message_bytes = w->net().bytes();
  out.plane_bytes = w->wires().bytes();
  out.virtual_time = w->now() - start;
  return out;
}

}  // namespace troupe::sim
