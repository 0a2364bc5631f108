// The data plane between processes against its aims (docs/benchmarks.md): dispatch + combine of one layer with 7 KB per
// peer, scattered pages pulled from another process, and how soon a lost peer is known. The figures are of elapsed
// time: an exchange is the median of all exchanges, a pull of pages the median of the pulls; what a quiet window gave
// is printed beside them, and the load of the machine first. Exit status 1 only when something could not
// be measured: how fast a shared machine is at the moment fails nobody.
//
//   transport_bench [--json FILE] [--only WORDS]     only the rows whose names have these words
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/rng.hpp"
#include "runtime/transport/process_transport.hpp"
#include "tests/kernels/ep_processes.hpp"
#include "tests/support/hex.hpp"
#include "tests/transport/pattern.hpp"

namespace {

using namespace troupe;
using kernels::ep::process_group;
using std::chrono::milliseconds;

struct row {
  std::string name, unit;
  double value = 0, aim = 0;
  bool more_is_better = false;
  bool met() const { return more_is_better ? value >= aim : value > 0 && value <= aim; }
  bool far() const { return more_is_better ? value < aim / 3 : value <= 0 || value > aim * 3; }
};

constexpr int rounds = 3;

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}

/// Median of dispatch + combine, the slowest rank, over all exchanges of a run, the median of three runs, in us; 0 when
/// it failed.
double exchange(const std::string& mode, uint32_t ranks) {
  double best = 0;
  std::vector<double> medians;
  for (int i = 0; i < rounds; ++i) {
    process_group g(TROUPE_EP_RANK, ranks, mode);
    // Each rank stays on one core, as it would in service.
    for (uint32_t r = 0; r < ranks; ++r) {
      cpu_set_t core;
      CPU_ZERO(&core);
      CPU_SET(r % static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN)), &core);
      testing_support::set_affinity(g[r].process.pid(), core);
    }
    process_group::how h;
    h.shape = {0, 1792, ranks, 1};  // 1,792 floats = 7 KB to each peer, and back
    if (!g.connect(1, h)) return 0;
    g.say_all(mode == "shm" ? "bench 5000" : "bench 2000");  // seconds at most, even where others hold the cores
    double slowest = 0, slowest_of_all = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
      std::istringstream in(g[r].process.line(std::chrono::seconds(60)));
      std::string word;
      double quiet = 0, p50 = 0;
      in >> word >> quiet >> p50;
      if (word != "bench") return 0;
      slowest = std::max(slowest, quiet / 1000);
      slowest_of_all = std::max(slowest_of_all, p50 / 1000);
    }
    best = best == 0 ? slowest : std::min(best, slowest);
    medians.push_back(slowest_of_all);
  }
  printf("  best window: %.2f us\n", best);
  return median(medians);
}

/// GB/s of 1,024 pages of 113,920 B, random order on both sides, from another process, the median of three pulls; 0
/// when it failed.
double pages(const std::string& mode) {
  constexpr size_t count = 1024, page = 113'920;
  testing_support::child_process other({TROUPE_TRANSPORT_PEER, mode, "5000"});
  const auto word = [](const std::string& line) {
    const auto space = line.find(' ');
    return space == std::string::npos ? "" : testing_support::from_hex(line.substr(space + 1));
  };
  const std::string address = word(other.line());
  auto remote = transport::remote_region::decode(word(other.ask(fmt::format("region {} 5", count * page))));
  transport::options o;
  o.shared_memory = mode == "shm";
  if (mode == "ucx") o.messages = transport::message_path::ucx;
  auto t = transport::make_process_transport(o);
  if (!t || !remote) return 0;
  auto local = (*t)->allocate(count * page);
  auto peer = (*t)->add_peer(address);
  if (!local || !peer) return 0;
  std::fill((*local)->bytes().begin(), (*local)->bytes().end(), std::byte{1});  // the system's pages are there
  rng r(1);
  std::vector<uint64_t> from(count), to(count);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), 0);
  for (size_t i = count; i > 1; --i) {
    std::swap(from[i - 1], from[r.below(i)]);
    std::swap(to[i - 1], to[r.below(i)]);
  }
  std::vector<transport::page_move> moves;
  for (size_t i = 0; i < count; ++i) moves.push_back({from[i] * page, to[i] * page});
  double best = 0;
  std::vector<double> rates;
  for (int i = 0; i < rounds + 1; ++i) {  // the first one also connects and maps
    const int64_t mine = testing_support::run_queue_wait(getpid());
    const int64_t theirs = testing_support::run_queue_wait(other.pid());
    const auto start = steady_clock().now();
    transport::pending p;
    if (!(*t)->pull(*peer, *local, *remote, page, moves, p.callback())) return 0;
    if (!p.wait(std::chrono::seconds(60)) || !p.value()) return 0;
    const int64_t elapsed = (steady_clock().now() - start).count();
    const int64_t wait = std::max(testing_support::run_queue_wait(getpid()) - mine,
                                  testing_support::run_queue_wait(other.pid()) - theirs);
    if (i > 0) rates.push_back(static_cast<double>(count * page) / static_cast<double>(elapsed));
    best =
        std::max(best, static_cast<double>(count * page) / static_cast<double>(std::max(elapsed - wait, elapsed / 10)));
  }
  for (const auto& m : moves)
    if (transport::check_pattern((*local)->bytes().subspan(m.local_offset, page), 5, m.remote_offset) != -1) return 0;
  // What the machine gives right now: the same copy inside one process.
  std::vector<std::byte> plain(count * page, std::byte{2});
  double copy = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto start = steady_clock().now();
    for (const auto& m : moves)
      std::memcpy((*local)->bytes().data() + m.local_offset, plain.data() + m.remote_offset, page);
    copy =
        std::max(copy, static_cast<double>(count * page) / static_cast<double>((steady_clock().now() - start).count()));
  }
  printf("  a plain copy of the pages inside one process: %.2f GB/s\n", copy);
  printf("  best, without the time that threads waited for a core: %.2f GB/s\n", best);
  return median(rates);
}

/// ms until the last survivor of four knows; best of three.
double lost(const std::string& mode, bool stop) {
  double best = 0;
  for (int i = 0; i < rounds; ++i) {
    process_group g(TROUPE_EP_RANK, 4, mode);
    process_group::how h;
    h.deadline_ms = stop ? 200 : 5000;
    if (!g.connect(1, h)) return 0;
    g.say_all("steps 1000000000");
    // Under way: every rank has done many steps.
    for (uint32_t r = 0; r < 4; ++r)
      while (g[r].process.cpu_seconds() < 0.03) sched_yield();
    const auto start = steady_clock().now();
    if (stop)
      g[2].process.signal(SIGSTOP);
    else
      g[2].process.signal(SIGKILL);
    double last = 0;
    for (const uint32_t r : {0u, 1u, 3u}) {
      const auto l = process_group::parse(g[r].process.line());
      if (l.code != "peer_lost") return 0;
      last = std::max(last, static_cast<double>((l.at - start).count()) / 1e6);
    }
    best = best == 0 ? last : std::min(best, last);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  std::string json, only;
  for (int i = 1; i + 1 < argc; i += 2) (std::string(argv[i]) == "--json" ? json : only) = argv[i + 1];
  std::vector<row> rows;
  const auto measure = [&](row r, auto f) {
    if (r.name.find(only) == std::string::npos) return;
    r.value = f();
    printf("%-52s %9.2f %-5s aim %s %7.1f  %s\n", r.name.c_str(), r.value, r.unit.c_str(),
           r.more_is_better ? ">=" : "<=", r.aim,
           r.met()   ? "met"
           : r.far() ? "FAR OFF"
                     : "missed");
    fflush(stdout);
    rows.push_back(std::move(r));
  };
  double load = 0;
  getloadavg(&load, 1);
  printf("%ld cores, load average %.1f\n", sysconf(_SC_NPROCESSORS_ONLN), load);
  for (const uint32_t ranks : {2u, 4u})
    for (const std::string mode : {"shm", "tcp"}) {
      const bool shm = mode == "shm";
      measure({fmt::format("dispatch + combine, 7 KB, {} ranks, {}", ranks, shm ? "shared memory" : "TCP"), "us", 0,
               shm ? (ranks == 2 ? 2.0 : 15.0) : (ranks == 2 ? 30.0 : 150.0)},
              [&] { return exchange(mode, ranks); });
    }
  measure({"116.7 MB of scattered pages, shared memory", "GB/s", 0, 6, true}, [] { return pages("shm"); });
  measure({"116.7 MB of scattered pages, TCP", "GB/s", 0, 3, true}, [] { return pages("tcp"); });
  measure({"116.7 MB of scattered pages, TCP by UCX", "GB/s", 0, 3, true}, [] { return pages("ucx"); });
  for (const std::string mode : {"shm", "tcp"}) {
    measure({"peer_lost on all survivors of SIGKILL, " + mode, "ms", 0, 50}, [&] { return lost(mode, false); });
    measure({"peer_lost on all survivors of SIGSTOP (200 ms), " + mode, "ms", 0, 210},
            [&] { return lost(mode, true); });
  }
  if (!json.empty()) {
    std::ofstream out(json);
    out << "[";
    for (size_t i = 0; i < rows.size(); ++i)
      out << (i ? ",\n " : "\n ")
          << fmt::format(R"({{"name": "{}", "unit": "{}", "value": {:.3f}, "aim": {}, "met": {}}})", rows[i].name,
                         rows[i].unit, rows[i].value, rows[i].aim, rows[i].met());
    out << "\n]\n";
  }
  return std::any_of(rows.begin(), rows.end(), [](const row& r) { return r.value <= 0; }) ? 1 : 0;
}
