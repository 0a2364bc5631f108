// A rank process for tests and benches: takes commands by lines, answers each with one line. `wake` and `end` act at
// once, everything else runs in order on the engine thread.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include "kernels/ep/transport_group.hpp"
#include "runtime/base/log.hpp"
#include "tests/kernels/ep_scenario.hpp"
#include "tests/support/hex.hpp"

namespace {

using namespace troupe;
using namespace troupe::kernels::ep;

std::mutex group_mutex;
std::shared_ptr<group> current;  // set by the engine thread

std::shared_ptr<group> get() {
  std::lock_guard lock(group_mutex);
  return current;
}

std::string failure(const error& e, const std::vector<uint32_t>& suspects) {
  return fmt::format("lost {} {} [{}] {}", to_string(e.code), steady_clock().now().count(), fmt::join(suspects, ","),
                     e.message);
}

std::string connect(ep_endpoint& endpoint, std::istream& in) {
  group_view view;
  uint64_t epoch, deadline_ms, connect_ms, yield_us;
  size_t n;
  in >> epoch >> view.rank >> deadline_ms >> connect_ms >> view.shape.hidden >> view.shape.top_k >>
      view.shape.max_rows >> view.wait.spins >> yield_us >> n;
  view.epoch = group_epoch{epoch};
  view.deadline = std::chrono::milliseconds(deadline_ms);
  view.connect_timeout = std::chrono::milliseconds(connect_ms);
  view.wait.yields = std::chrono::microseconds(yield_us);
  for (size_t i = 0; i < n; ++i) {
    std::string address;
    uint64_t incarnation;
    in >> address >> incarnation;
    view.members.push_back({incarnation, testing_support::from_hex(address)});
  }
  view.shape.ranks = static_cast<uint32_t>(n);
  view.shape.micro_batches = 2;
  {
    std::lock_guard lock(group_mutex);
    current.reset();
  }
  auto g = endpoint.connect(view);
  if (!g) return failure(g.error(), endpoint.suspects());
  std::lock_guard lock(group_mutex);
  current = std::move(*g);
  return "connected";
}

/// One row to every rank, again and again; the time of each dispatch + combine.
std::string bench(group& g, uint32_t rounds) {
  const uint32_t ranks = g.shape().ranks, hidden = g.shape().hidden;
  std::vector<float> x(hidden, 1.0f), y(size_t{hidden} * ranks), out(size_t{hidden} * ranks);
  std::vector<route> routes;
  for (uint32_t r = 0; r < ranks; ++r) routes.push_back({r, r, 1.0f});
  std::vector<int64_t> times;
  times.reserve(rounds);
  step_header h;
  h.has_work = true;
  if (auto ok = g.begin_step(h); !ok) return failure(ok.error(), g.suspects());
  for (uint32_t i = 0; i < rounds; ++i) {
    const auto start = steady_clock().now();
    auto got = g.dispatch(i, x, routes, ranks);
    if (!got) return failure(got.error(), g.suspects());
    if (auto ok = g.combine(i, std::span(y).first(got->items.size() * hidden), out); !ok)
      return failure(ok.error(), g.suspects());
    times.push_back((steady_clock().now() - start).count());
  }
  // The best stretch of 256 exchanges: what they take while no other process has this one's core.
  int64_t quiet = INT64_MAX;
  for (size_t at = 0; at + 256 <= times.size(); at += 256) {
    std::vector<int64_t> part(times.begin() + static_cast<ptrdiff_t>(at),
                              times.begin() + static_cast<ptrdiff_t>(at) + 256);
    std::nth_element(part.begin(), part.begin() + 128, part.end());
    quiet = std::min(quiet, part[128]);
  }
  std::sort(times.begin(), times.end());
  return fmt::format("bench {} {} {} {}", quiet, times[times.size() / 2], times[times.size() * 99 / 100], times.back());
}

std::string run(ep_endpoint& endpoint, const std::string& line) {
  std::istringstream in(line);
  std::string command;
  in >> command;
  if (command == "connect") return connect(endpoint, in);
  if (command == "counters") {
    const auto c = endpoint.counters();
    return fmt::format("counters {} {} {} {} {}", c.exchanges, c.stale_headers, c.sleeps, c.nudges, c.peers_lost);
  }
  auto g = get();
  if (!g) return "no group";
  if (command == "scenario") {
    ep_scenario s;
    int kind;
    in >> s.seed >> kind >> s.steps >> s.layers;
    s.kind = static_cast<traffic>(kind);
    const std::string wrong = run_scenario(*g, s);
    return wrong.empty() ? "ok" : "wrong " + wrong;
  }
  if (command == "steps") {  // until something fails
    uint64_t most;
    in >> most;
    step_header h;
    h.has_work = true;
    for (uint64_t i = 0; i < most; ++i)
      if (auto ok = g->begin_step(h); !ok) return failure(ok.error(), g->suspects());
    return "done";
  }
  if (command == "idle") {
    auto ok = g->begin_step({});
    if (!ok) return failure(ok.error(), g->suspects());
    return fmt::format("unparked {}", steady_clock().now().count());
  }
  if (command == "bench") {
    uint32_t rounds;
    in >> rounds;
    return bench(*g, rounds);
  }
  return "unknown command " + command;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(300);
  log::init("ep_rank", getenv("TROUPE_TEST_LOG") ? getenv("TROUPE_TEST_LOG") : "warning");
  ep_endpoint_options options;
  options.incarnation = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  options.shared_memory = argc < 3 || std::string(argv[2]) != "tcp";
  auto endpoint = make_ep_endpoint(options);
  if (!endpoint) {
    std::cout << "error " << endpoint.error().message << std::endl;
    return 1;
  }
  std::cout << "address " << testing_support::to_hex((*endpoint)->address()) << std::endl;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> queue;
  bool stop = false;
  std::thread engine([&] {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      const std::string line = queue.front();
      queue.pop_front();
      lock.unlock();
      std::cout << run(**endpoint, line) << std::endl;
    }
  });
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "wake" || line == "end") {
      if (auto g = get()) line == "wake" ? g->wake() : g->end();
      continue;
    }
    {
      std::lock_guard lock(mutex);
      queue.push_back(line);
    }
    changed.notify_all();
  }
  if (auto g = get()) g->end();
  {
    std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  engine.join();
  current.reset();
  return 0;
}
