// A hand-over against the plain pull of the same pages in the same run: what the state and the checksums of every block
// cost. Pages of the released model (113,920 B), scattered on both sides, from another process, over shared memory and
// TCP; medians of elapsed time.
//
//   handoff_bench [--pages N]     pages per hand-over, 256 (32,768 tokens) without it
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/engine/handoff_pull.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/transport/process_transport.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/hex.hpp"

namespace {

using namespace troupe;

constexpr size_t page_bytes = 113'920, state_bytes = 4u << 20;
constexpr int rounds = 9;

/// A page of the released model's size: one cache of ratio 2 and two of ratio 1.
kernels::model_plan released() {
  kernels::model_plan p;
  p.window = 128;
  for (const uint32_t ratio : {2u, 1u, 1u}) {
    kernels::source_plan s;
    s.ratio = ratio;
    s.per_page = p.window / ratio;
    s.main_bytes = 288;
    s.key_bytes = 68;
    s.main_offset = p.page_bytes;
    s.key_offset = s.main_offset + s.per_page * s.main_bytes;
    p.page_bytes = s.key_offset + s.per_page * s.key_bytes;
    p.sources.push_back(s);
  }
  return p;
}

/// Runs tasks one after the other on a thread of its own.
class worker {
 public:
  worker() : thread_([this] { run(); }) {}
  ~worker() {
    post(nullptr);
    thread_.join();
  }
  void post(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) return;
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}

int measure(const std::string& mode, size_t count) {
  const auto plan = released();
  if (plan.page_bytes != page_bytes) return 1;
  testing_support::child_process other({TROUPE_TRANSPORT_PEER, mode, "5000"});
  const auto word = [](const std::string& line) {
    const auto space = line.find(' ');
    return space == std::string::npos ? "" : testing_support::from_hex(line.substr(space + 1));
  };
  const std::string address = word(other.line());
  auto remote =
      transport::remote_region::decode(word(other.ask(fmt::format("region {} 5", count * page_bytes + state_bytes))));
  transport::options o;
  o.shared_memory = mode == "shm";
  auto t = transport::make_process_transport(o);
  if (!t || !remote) return 1;
  auto pages = (*t)->allocate(count * page_bytes), state = (*t)->allocate(state_bytes);
  auto peer = (*t)->add_peer(address);
  if (!pages || !state || !peer) return 1;
  std::fill((*pages)->bytes().begin(), (*pages)->bytes().end(), std::byte{1});  // the system's pages are there
  rng r(1);
  std::vector<uint32_t> from(count), to(count);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), 0);
  for (size_t i = count; i > 1; --i) {
    std::swap(from[i - 1], from[r.below(i)]);
    std::swap(to[i - 1], to[r.below(i)]);
  }
  std::vector<transport::page_move> moves;
  std::vector<kernels::page_id> table;
  for (size_t i = 0; i < count; ++i) {
    moves.push_back({from[i] * page_bytes, to[i] * page_bytes});
    table.push_back(kernels::page_id{to[i]});
  }
  const auto pull = [&] {
    transport::pending p;
    return (*t)->pull(*peer, *pages, *remote, page_bytes, moves, p.callback()) && p.wait(std::chrono::seconds(60)) &&
           p.value();
  };
  // As a rank's host does it: one thread compares what the transport's thread brings.
  worker host;
  kernels::handoff_route route;
  route.peer = *peer;
  route.from_pages = route.from_states = *remote;
  route.from_state = count * page_bytes;
  route.to_pages = *pages;
  route.to_states = *state;
  for (size_t i = 0; i < count; ++i) route.from.push_back(kernels::page_id{from[i]});
  route.to = table;
  const auto get = [&] {
    transport::pending p;
    return (*t)->get(*peer, *state, 0, *remote, count * page_bytes, state_bytes, p.callback()) &&
           p.wait(std::chrono::seconds(60)) && p.value();
  };
  if (!pull() || !get()) return 1;  // connects and maps
  kernels::sequence_export want;
  want.rows = static_cast<uint32_t>(count * plan.window);
  want.state_bytes = state_bytes;
  want.state_checksum = kernels::checksum((*state)->bytes());
  for (const auto p : table)
    want.page_checksums.push_back(
        kernels::page_checksum(plan, (*pages)->bytes().subspan(p.value * page_bytes, page_bytes), plan.window));
  std::vector<double> plain, whole;
  for (int i = 0; i < rounds; ++i) {  // in turn, so that both see the same machine
    auto start = steady_clock().now();
    if (!pull()) return 1;
    plain.push_back(static_cast<double>((steady_clock().now() - start).count()));
    start = steady_clock().now();
    transport::pending p;
    kernels::pull_handoff(
        **t, plan, route, want, [&](std::function<void()> task) { host.post(std::move(task)); },
        [arrived = p.callback()](result<uint64_t> r) { arrived(r ? result<void>{} : fail(r.error())); });
    if (!p.wait(std::chrono::seconds(60)) || !p.value()) return 1;
    whole.push_back(static_cast<double>((steady_clock().now() - start).count()));
  }
  const auto start = steady_clock().now();
  if (!kernels::check_handoff(plan, want, (*pages)->bytes(), table, (*state)->bytes())) return 1;
  const double check = static_cast<double>((steady_clock().now() - start).count());
  const double bytes = static_cast<double>(count * page_bytes);
  printf("%-4s %zu pages: plain pull %.2f GB/s, hand-over %.2f GB/s (%.2f of it); checksums alone %.2f GB/s\n",
         mode.c_str(), count, bytes / median(plain), bytes / median(whole), median(plain) / median(whole),
         (bytes + state_bytes) / check);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  size_t count = 256;
  for (int i = 1; i + 1 < argc; i += 2)
    if (std::string(argv[i]) == "--pages") count = std::strtoul(argv[i + 1], nullptr, 10);
  double load = 0;
  getloadavg(&load, 1);
  printf("%ld cores, load average %.1f\n", sysconf(_SC_NPROCESSORS_ONLN), load);
  return measure("shm", count) + measure("tcp", count);
}
