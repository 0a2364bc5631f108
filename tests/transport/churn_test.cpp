// Connections of the transport that end while they are being made, and are made while they end: both sides at once,
// peers that die, stop or go on at any moment. Every operation completes once, and both sides can talk in the end.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "runtime/base/rng.hpp"
#include "runtime/transport/process_transport.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/hex.hpp"
#include "tests/transport/pattern.hpp"

namespace troupe::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::child_process;
using testing_support::from_hex;
using testing_support::to_hex;

int rounds(int normal, int longer) { return std::getenv("TROUPE_LONG") ? longer : normal; }

/// Waits until `f` holds; false after 30 s.
template <class F>
bool eventually(F f) {
  const nanoseconds until = steady_clock().now() + seconds(30);
  while (!f()) {
    if (steady_clock().now() > until) return false;
    sched_yield();
  }
  return true;
}

/// Lets `time` pass, whatever happens.
void pass(nanoseconds time) {
  const nanoseconds until = steady_clock().now() + time;
  eventually([&] { return steady_clock().now() >= until; });
}

/// Counts completions: each operation has one.
struct tally {
  std::atomic<int> posted{0}, completed{0}, good{0};
  std::atomic<bool> twice{false};
  completion one() {
    ++posted;
    auto called = std::make_shared<std::atomic<bool>>(false);
    return [this, called](result<void> r) {
      if (called->exchange(true)) twice = true;
      ++completed;
      good += r.has_value();
    };
  }
  bool all() const { return completed >= posted; }
};

class churn : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<transport> make(nanoseconds deadline) {
    options o;
    o.shared_memory = std::string(GetParam()) == "shm";
    if (std::string(GetParam()) == "ucx") o.messages = message_path::ucx;
    o.deadline = deadline;
    auto made = make_process_transport(o);
    EXPECT_TRUE(made) << made.error().message;
    (*made)->on_message(channel_id{3}, [](peer_id, std::span<const std::byte>) {});
    return std::move(*made);
  }
  child_process process(int deadline_ms) {
    return child_process({TROUPE_TRANSPORT_PEER, GetParam(), std::to_string(deadline_ms)});
  }
  static std::string word(const std::string& line) { return from_hex(line.substr(line.find(' ') + 1)); }
  /// Posts some of every kind; a refused call is no completion.
  void burst(transport& t, peer_id peer, const region_ptr& local, const remote_region& remote, rng& random) {
    const auto post = [&](result<void> r) {
      if (!r) --tally_.posted;
    };
    for (uint64_t n = 1 + random.below(6); n > 0; --n) {
      post(t.send(peer, channel_id{3}, std::vector<std::byte>(random.below(300'000)), tally_.one()));
      post(t.get(peer, local, 0, remote, 0, remote.length, tally_.one()));
      post(t.put(peer, local, 0, remote, 0, 1 + random.below(remote.length), tally_.one()));
    }
  }
  /// A message gets through, after as many attempts as it takes. A removal that is still under way may take the peer
  /// away again.
  bool reaches(transport& t, const std::string& address) {
    const nanoseconds until = steady_clock().now() + seconds(30);
    while (steady_clock().now() < until) {
      pending p;
      const auto peer = t.add_peer(address);
      if (peer && t.send(*peer, channel_id{3}, std::vector<std::byte>(64), p.callback()) && p.wait(seconds(30)) &&
          p.value())
        return true;
    }
    return false;
  }
  tally tally_;
};
// Messages by UCX in the long run only: it is not the way that is used, and more of UCX may come to light.
INSTANTIATE_TEST_SUITE_P(over, churn,
                         testing::ValuesIn(std::getenv("TROUPE_LONG") ? std::vector<const char*>{"shm", "tcp", "ucx"}
                                                                      : std::vector<const char*>{"shm", "tcp"}),
                         [](const auto& i) { return std::string(i.param); });

TEST_P(churn, both_sides_end_the_connection_at_any_moment) {
  const uint64_t seed = 1;
  printf("seed %lu\n", seed);
  rng random(seed);
  auto a = make(milliseconds(500)), b = make(milliseconds(500));
  auto ra = *a->allocate(1 << 20), rb = *b->allocate(1 << 20);
  auto la = *a->allocate(1 << 20), lb = *b->allocate(1 << 20);
  for (int i = rounds(60, 2000); i > 0; --i) {
    const peer_id to_b = *a->add_peer(b->address()), to_a = *b->add_peer(a->address());
    const uint64_t who = random.below(4);
    if (who != 1) burst(*a, to_b, la, rb->descriptor(), random);
    if (who != 2) burst(*b, to_a, lb, ra->descriptor(), random);
    pass(microseconds(random.below(3000)));
    if (random.below(2)) a->remove_peer(to_b);
    if (random.below(2)) pass(microseconds(random.below(500)));
    if (random.below(2)) b->remove_peer(to_a);
  }
  ASSERT_TRUE(eventually([&] { return tally_.all(); })) << tally_.completed << " of " << tally_.posted;
  EXPECT_FALSE(tally_.twice);
  EXPECT_TRUE(reaches(*a, b->address()));
  EXPECT_TRUE(reaches(*b, a->address()));
}

TEST_P(churn, peers_die_at_any_moment_of_the_first_hello) {
  // A process whose peer dies while it still owes that peer an answer of UCX's own handshake is aborted by an assertion
  // (ucp_request.c, "got REP message"), about every second time. Nothing above UCX can prevent that.
  if (std::string(GetParam()) == "ucx") GTEST_SKIP() << "UCX 1.13.1 does not survive it";
  const uint64_t seed = 2;
  printf("seed %lu\n", seed);
  rng random(seed);
  auto t = make(milliseconds(300));
  auto region = *t->allocate(1 << 20), local = *t->allocate(1 << 20);
  for (int i = rounds(8, 200); i > 0; --i) {
    auto other = process(300);
    const std::string address = word(other.line());
    const auto remote = *remote_region::decode(word(other.ask("region 1048576 5")));
    const peer_id peer = *t->add_peer(address);
    const std::string flood =
        fmt::format("flood {} {} 20", to_hex(t->address()), to_hex(region->descriptor().encode()));
    if (random.below(3) == 0) other.say(flood);
    if (random.below(4) == 0) {
      other.kill();  // dead before the first byte
      burst(*t, peer, local, remote, random);
    } else {
      burst(*t, peer, local, remote, random);
      pass(microseconds(random.below(4000)));
      other.kill();
    }
    if (random.below(2)) burst(*t, peer, local, remote, random);  // a dead address
    if (random.below(2)) t->remove_peer(peer);
  }
  ASSERT_TRUE(eventually([&] { return tally_.all(); })) << tally_.completed << " of " << tally_.posted;
  EXPECT_FALSE(tally_.twice);
  auto healthy = process(300);
  EXPECT_TRUE(reaches(*t, word(healthy.line())));
}

TEST_P(churn, a_peer_that_stops_and_goes_on_restarts_the_connection_with_us) {
  const uint64_t seed = 3;
  printf("seed %lu\n", seed);
  rng random(seed);
  auto t = make(milliseconds(40));
  auto region = *t->allocate(1 << 20), local = *t->allocate(1 << 20);
  auto other = process(40);
  const std::string address = word(other.line());
  const auto remote = *remote_region::decode(word(other.ask("region 1048576 5")));
  const std::string flood = fmt::format("flood {} {} 20", to_hex(t->address()), to_hex(region->descriptor().encode()));
  for (int i = rounds(12, 400); i > 0; --i) {
    const peer_id peer = *t->add_peer(address);  // the same, or after a removal another
    burst(*t, peer, local, remote, random);
    if (random.below(2)) other.say(flood);
    pass(microseconds(random.below(2000)));
    other.stop();
    burst(*t, peer, local, remote, random);
    pass(milliseconds(random.below(90)));  // about half of the times, beyond the deadline
    other.signal(SIGCONT);
    if (random.below(3) == 0) t->remove_peer(peer);
  }
  ASSERT_TRUE(eventually([&] { return tally_.all(); })) << tally_.completed << " of " << tally_.posted;
  EXPECT_FALSE(tally_.twice);
  EXPECT_TRUE(reaches(*t, address));
}

}  // namespace
}  // namespace troupe::transport
