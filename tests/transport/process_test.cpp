// The transport against other processes: death, stop, restart, late writes, leftovers.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "runtime/transport/process_transport.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/hex.hpp"
#include "tests/transport/pattern.hpp"

namespace troupe::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::child_process;

/// A transport_peer process.
struct peer_process {
  peer_process(const std::string& mode, int deadline_ms)
      : process({TROUPE_TRANSPORT_PEER, mode, std::to_string(deadline_ms)}), address(word(process.line())) {}
  /// Second word of an answer, out of hex.
  static std::string word(const std::string& line) {
    std::istringstream in(line);
    std::string first, second;
    in >> first >> second;
    return testing_support::from_hex(second);
  }
  remote_region region(size_t bytes, uint64_t seed) {
    return *remote_region::decode(word(process.ask(fmt::format("region {} {}", bytes, seed))));
  }
  child_process process;
  std::string address;
};

class processes : public testing::TestWithParam<const char*> {
 protected:
  static constexpr milliseconds deadline{200};

  void SetUp() override { start(deadline); }
  /// Starts anew; with a long deadline for tests that are not about it, since the machine may be busy.
  void start(nanoseconds deadline) {
    t.reset();
    options o;
    o.shared_memory = std::string(GetParam()) == "shm";
    if (std::string(GetParam()) == "ucx") o.messages = message_path::ucx;
    o.deadline = deadline;
    auto made = make_process_transport(o);
    ASSERT_TRUE(made) << made.error().message;
    t = std::move(*made);
    t->on_peer_lost([this](peer_id, const std::string& why) {
      {
        std::lock_guard lock(mutex);
        ++notices;
        reason = why;
        noticed = steady_clock().now();
      }
      changed.notify_all();
    });
  }
  bool wait_notices(int n, nanoseconds limit = seconds(20)) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, limit, [&] { return notices >= n; });
  }
  static result<void> wait(const pending& p) {
    if (!p.wait(seconds(20))) return fail(errc::timeout, "the operation did not complete");
    return p.value();
  }
  result<void> message(peer_id peer) {
    pending p;
    if (auto ok = t->send(peer, channel_id{3}, std::vector<std::byte>(64), p.callback()); !ok) return ok;
    return wait(p);
  }
  result<void> get(peer_id peer, const region_ptr& local, const remote_region& remote) {
    pending p;
    if (auto ok = t->get(peer, local, 0, remote, 0, remote.length, p.callback()); !ok) return ok;
    return wait(p);
  }
  bool shm() const { return std::string(GetParam()) == "shm"; }

  std::mutex mutex;
  std::condition_variable changed;
  int notices = 0;
  std::string reason;
  nanoseconds noticed{};
  std::unique_ptr<transport> t;  // last: its handler uses what is above until it has gone
};
INSTANTIATE_TEST_SUITE_P(over, processes, testing::Values("shm", "tcp", "ucx"),
                         [](const auto& i) { return std::string(i.param); });

TEST_P(processes, bytes_and_messages_cross) {
  start(seconds(5));
  peer_process other(GetParam(), 5000);
  const auto remote = other.region(3'000'000, 17);
  EXPECT_EQ(remote.key.empty(), !shm());
  auto local = *t->allocate(3'000'000);
  const peer_id peer = *t->add_peer(other.address);
  auto r = get(peer, local, remote);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(check_pattern(local->bytes(), 17), -1);
  bool back = false;
  t->on_message(channel_id{2}, [&](peer_id from, std::span<const std::byte> m) {
    EXPECT_EQ(from, peer);
    EXPECT_EQ(m.size(), 100'000u);
    {
      std::lock_guard lock(mutex);
      back = true;
    }
    changed.notify_all();
  });
  pending p;
  ASSERT_TRUE(t->send(peer, channel_id{1}, std::vector<std::byte>(100'000), p.callback()));
  EXPECT_TRUE(wait(p));
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, seconds(20), [&] { return back; }));
  lock.unlock();
  other.process.ask("free");
  EXPECT_EQ(get(peer, local, remote).error().code, errc::stale);
}

TEST_P(processes, sigkill_gives_notice_and_ends_all_operations) {
  start(seconds(5));
  peer_process other(GetParam(), 5000);
  const auto remote = other.region(1 << 20, 17);
  auto local = *t->allocate(1 << 20);
  const peer_id peer = *t->add_peer(other.address);
  ASSERT_TRUE(get(peer, local, remote));
  ASSERT_TRUE(message(peer));
  other.process.stop();  // so that the operations are outstanding when it dies
  std::vector<pending> all(20);
  for (auto& p : all) ASSERT_TRUE(t->send(peer, channel_id{3}, std::vector<std::byte>(1000), p.callback()));
  const nanoseconds killed = steady_clock().now();
  other.process.kill();
  for (auto& p : all) EXPECT_EQ(wait(p).error().code, errc::peer_lost);
  ASSERT_TRUE(wait_notices(1));
  printf("%s: notice %.2f ms after SIGKILL: %s\n", GetParam(), static_cast<double>((noticed - killed).count()) / 1e6,
         reason.c_str());
  EXPECT_EQ(message(peer).error().code, errc::peer_lost);
}

TEST_P(processes, sigkill_of_an_idle_peer_gives_notice) {
  start(seconds(5));
  peer_process other(GetParam(), 5000);
  const peer_id peer = *t->add_peer(other.address);
  ASSERT_TRUE(message(peer));
  other.process.kill();
  EXPECT_TRUE(wait_notices(1));
}

TEST_P(processes, sigstop_ends_the_connection_at_the_deadline_and_the_next_use_reconnects) {
  peer_process other(GetParam(), 5000);
  const auto remote = other.region(1 << 20, 17);
  auto local = *t->allocate(1 << 20);
  const peer_id peer = *t->add_peer(other.address);
  // The deadline is short, and a busy machine may not let the other process run in it.
  const nanoseconds patience = steady_clock().now() + seconds(20);
  auto met = message(peer);
  while (!met && steady_clock().now() < patience) met = message(peer);
  ASSERT_TRUE(met) << met.error().message;
  other.process.stop();
  const nanoseconds stopped = steady_clock().now();
  std::vector<pending> gets(64);
  if (!shm()) {
    for (auto& p : gets) {
      ASSERT_TRUE(t->get(peer, local, 0, remote, 0, 1 << 20, p.callback()));
    }
  }
  const auto lost = message(peer);
  const nanoseconds took = steady_clock().now() - stopped;
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, errc::peer_lost) << lost.error().message;
  EXPECT_GE(took, deadline - deadline / 4 - milliseconds(20)) << "a sign of life is at most a quarter old";
  EXPECT_LT(took, deadline + milliseconds(1000));
  printf("%s: peer_lost %.2f ms after SIGSTOP\n", GetParam(), static_cast<double>(took.count()) / 1e6);
  if (!shm()) {
    for (auto& p : gets) EXPECT_EQ(wait(p).error().code, errc::peer_lost);
  } else {
    EXPECT_TRUE(get(peer, local, remote)) << "a stopped process's shared memory can be read";
    EXPECT_EQ(check_pattern(local->bytes(), 17), -1);
  }
  // What it still sends for the old connection does not land: the local buffer is ours again.
  fill_pattern(local->bytes(), 99);
  other.process.signal(SIGCONT);
  const nanoseconds until = steady_clock().now() + seconds(20);
  while (!message(peer)) ASSERT_LT(steady_clock().now(), until);
  EXPECT_EQ(check_pattern(local->bytes(), 99), -1) << "a late reply landed";
  EXPECT_TRUE(get(peer, local, remote));
  EXPECT_EQ(check_pattern(local->bytes(), 17), -1);
}

TEST_P(processes, an_idle_stopped_peer_is_noticed_by_its_silence) {
  peer_process other(GetParam(), 5000);
  const peer_id peer = *t->add_peer(other.address);
  ASSERT_TRUE(message(peer));
  other.process.stop();
  EXPECT_TRUE(wait_notices(1));
  EXPECT_NE(reason.find("no sign of life"), std::string::npos) << reason;
}

TEST_P(processes, a_peer_stopped_before_it_answered_is_lost_too) {
  peer_process other(GetParam(), 5000);
  other.process.stop();
  const peer_id peer = *t->add_peer(other.address);
  EXPECT_EQ(message(peer).error().code, errc::peer_lost);
  other.process.signal(SIGCONT);
  const nanoseconds until = steady_clock().now() + seconds(20);
  while (!message(peer)) ASSERT_LT(steady_clock().now(), until);
}

TEST_P(processes, a_restarted_peer_is_another_peer) {
  auto local = *t->allocate(1 << 20);
  peer_id before{};
  for (int i = 0; i < 3; ++i) {
    peer_process other(GetParam(), 5000);
    const auto remote = other.region(1 << 20, 100 + i);
    const peer_id peer = *t->add_peer(other.address);
    EXPECT_NE(peer, before);
    before = peer;
    auto r = get(peer, local, remote);
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(check_pattern(local->bytes(), 100 + i), -1);
    other.process.kill();
    EXPECT_TRUE(wait_notices(i + 1));
  }
}

TEST_P(processes, a_peer_that_dies_while_it_is_served_harms_nobody) {
  auto region = *t->allocate(1 << 20);
  fill_pattern(region->bytes(), 3);
  peer_process healthy(GetParam(), 5000);
  for (int i = 0; i < 3; ++i) {
    peer_process other(GetParam(), 5000);
    const uint64_t connections = t->stats().connections;
    EXPECT_EQ(other.process.ask(fmt::format("flood {} {} 2000", testing_support::to_hex(t->address()),
                                            testing_support::to_hex(region->descriptor().encode()))),
              "flooding");
    const nanoseconds until = steady_clock().now() + seconds(20);
    while (t->stats().connections == connections) ASSERT_LT(steady_clock().now(), until);
    EXPECT_TRUE(message(*t->add_peer(healthy.address)));
    other.process.kill();
    EXPECT_TRUE(wait_notices(i + 1));
  }
  EXPECT_TRUE(message(*t->add_peer(healthy.address)));
  EXPECT_EQ(check_pattern(region->bytes(), 3), -1);
}

TEST_P(processes, nothing_is_left_behind) {
  start(seconds(5));
  const auto shm = [] {
    return std::distance(std::filesystem::directory_iterator("/dev/shm"), std::filesystem::directory_iterator{});
  };
  const auto fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  auto local = *t->allocate(1 << 20);
  const auto shm_before = shm();
  long fds_before = 0;
  for (int i = 0; i < 10; ++i) {
    peer_process other(GetParam(), 5000);
    const auto remote = other.region(1 << 20, 1);
    const peer_id peer = *t->add_peer(other.address);
    ASSERT_TRUE(get(peer, local, remote));
    ASSERT_TRUE(message(peer));
    other.process.kill();
    ASSERT_TRUE(wait_notices(i + 1));
    t->remove_peer(peer);
    if (i == 2) fds_before = fds();
  }
  EXPECT_LE(fds(), fds_before + 2) << "descriptors leak with every peer that dies";
  EXPECT_LE(shm(), shm_before);
}

TEST_P(processes, an_idle_transport_sleeps) {
  peer_process other(GetParam(), 5000);
  const peer_id peer = *t->add_peer(other.address);
  ASSERT_TRUE(message(peer));
  std::unique_lock lock(mutex);
  changed.wait_for(lock, milliseconds(100), [] { return false; });
  const double before = other.process.cpu_seconds();
  changed.wait_for(lock, milliseconds(500), [] { return false; });
  EXPECT_LE(other.process.cpu_seconds() - before, 0.02) << "of 0.5 s";
}

}  // namespace
}  // namespace troupe::transport
