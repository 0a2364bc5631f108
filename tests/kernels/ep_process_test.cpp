// Ranks as processes over UCX: shared memory and TCP. Traffic against the naive model, death, stop, epochs, parking.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "runtime/base/rng.hpp"
#include "tests/kernels/ep_processes.hpp"
#include "tests/kernels/ep_scenario.hpp"

namespace troupe::kernels::ep {
namespace {

using std::chrono::milliseconds;

/// Lets other processes run for `d`; nothing to wait on is known here.
void let_run(milliseconds d) {
  std::mutex m;
  std::condition_variable never;
  std::unique_lock lock(m);
  never.wait_for(lock, d);
}

size_t shm_files() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator("/dev/shm"))
    if (f.path().filename().string().find("ucx") != std::string::npos) ++n;
  return n;
}

class ep_processes : public testing::TestWithParam<const char*> {
 protected:
  process_group make(uint32_t ranks) { return process_group(TROUPE_EP_RANK, ranks, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(ucx, ep_processes, testing::Values("shm", "tcp"),
                         [](const auto& i) { return std::string(i.param); });

TEST_P(ep_processes, traffic_matches_the_naive_model) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    auto g = make(ranks);
    uint64_t epoch = 0;
    for (const traffic kind :
         {traffic::random, traffic::empty_ranks, traffic::one_expert, traffic::redundant, traffic::zero_rows}) {
      ASSERT_TRUE(g.connect(++epoch, {}));
      g.say_all(fmt::format("scenario {} {} 3 6", seed, static_cast<int>(kind)));
      for (uint32_t r = 0; r < ranks; ++r)
        EXPECT_EQ(g[r].process.line(), "ok") << ranks << " ranks, kind " << static_cast<int>(kind) << ", seed " << seed;
    }
    for (uint32_t r = 0; r < ranks; ++r) {
      const std::string said = g[r].process.ask("counters");
      EXPECT_NE(said.find(" 0 "), std::string::npos) << said;
    }
  }
}

TEST_P(ep_processes, large_exchanges) {
  auto g = make(2);
  process_group::how h;
  h.shape = {0, 1024, 4, 300};
  ASSERT_TRUE(g.connect(1, h));
  g.say_all(fmt::format("scenario 5 {} 1 3", static_cast<int>(traffic::redundant)));
  for (uint32_t r = 0; r < 2; ++r) EXPECT_EQ(g[r].process.line(), "ok");
}

TEST_P(ep_processes, a_killed_rank_is_lost_at_once) {
  for (const bool parked : {false, true}) {
    auto g = make(4);
    ASSERT_TRUE(g.connect(1, {}));
    g.say_all(parked ? "idle" : "steps 1000000000");
    let_run(milliseconds(200));
    const nanoseconds killed = steady_clock().now();
    g[2].process.kill();
    for (const uint32_t r : {0u, 1u, 3u}) {
      const loss l = process_group::parse(g[r].process.line());
      EXPECT_EQ(l.code, "peer_lost") << l.text;
      EXPECT_EQ(l.suspects, "[2]") << l.text;
      printf("%s killed, parked %d: rank %u knew after %.2f ms\n", GetParam(), parked, r,
             static_cast<double>((l.at - killed).count()) / 1e6);
      // The aim is 50 ms, measured by the bench; here only that no deadline was waited for.
      EXPECT_LT(l.at - killed, milliseconds(1000));
    }
    // The survivors go on in a new epoch.
    ASSERT_TRUE(g.connect(2, {0, 1, 3}, {}));
    for (const uint32_t r : {0u, 1u, 3u}) g[r].process.say("scenario 9 0 2 3");
    for (const uint32_t r : {0u, 1u, 3u}) EXPECT_EQ(g[r].process.line(), "ok");
  }
}

TEST_P(ep_processes, a_stopped_rank_is_lost_at_the_deadline_and_its_late_writes_land_nowhere) {
  auto g = make(3);
  process_group::how h;
  h.deadline_ms = 200;
  ASSERT_TRUE(g.connect(1, h));
  g.say_all("steps 1000000000");
  let_run(milliseconds(150));
  const nanoseconds stopped = steady_clock().now();
  g[1].process.stop();
  for (const uint32_t r : {0u, 2u}) {
    const loss l = process_group::parse(g[r].process.line());
    EXPECT_EQ(l.code, "peer_lost") << l.text;
    EXPECT_NE(l.suspects.find('1'), std::string::npos) << l.suspects << l.text;
    printf("%s stopped: rank %u knew after %.2f ms\n", GetParam(), r,
           static_cast<double>((l.at - stopped).count()) / 1e6);
    EXPECT_LT(l.at - stopped, milliseconds(1500));
  }
  h.deadline_ms = 10000;
  ASSERT_TRUE(g.connect(2, {0, 2}, h));
  for (const uint32_t r : {0u, 2u}) g[r].process.say("scenario 77 3 300 4");
  g[1].process.signal(SIGCONT);  // writes what it has for epoch 1 while epoch 2 runs
  for (const uint32_t r : {0u, 2u}) EXPECT_EQ(g[r].process.line(), "ok");
  const loss late = process_group::parse(g[1].process.line());
  EXPECT_EQ(late.code, "peer_lost") << late.text;
  // And it can come back.
  ASSERT_TRUE(g.connect(3, h));
  g.say_all("scenario 78 0 3 3");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(g[r].process.line(), "ok");
}

TEST_P(ep_processes, a_restarted_rank_joins_the_next_epoch) {
  auto g = make(2);
  ASSERT_TRUE(g.connect(1, {}));
  g[1].process.kill();
  auto again = g.start(7);
  g.read_address(again);
  std::swap(g[1].address, again.address);
  g[1].incarnation = 7;
  // A view that still names the old incarnation is not met.
  process_group::how h;
  h.connect_ms = 300;
  auto old = h;
  g[1].incarnation = 2;
  g.say_connect(2, {0, 1}, old, 0);
  const loss l = process_group::parse(g[0].process.line());
  EXPECT_EQ(l.code, "peer_lost") << l.text;
  EXPECT_EQ(l.suspects, "[1]");
  g[1].incarnation = 7;
  h.connect_ms = 10000;
  g.say_connect(3, {0, 1}, h, 0);
  std::string line = fmt::format("connect 3 1 10000 10000 24 3 9 64 500 2 {} 1 {} 7", g[0].address, g[1].address);
  again.process.say(line);
  EXPECT_EQ(g[0].process.line(), "connected");
  EXPECT_EQ(again.process.line(), "connected");
  g[0].process.say("scenario 3 0 2 3");
  again.process.say("scenario 3 0 2 3");
  EXPECT_EQ(g[0].process.line(), "ok");
  EXPECT_EQ(again.process.line(), "ok");
}

TEST_P(ep_processes, parked_ranks_use_no_cpu_and_wake_together) {
  auto g = make(3);
  ASSERT_TRUE(g.connect(1, {}));
  g.say_all("idle");
  let_run(milliseconds(200));
  std::vector<double> before;
  for (uint32_t r = 0; r < 3; ++r) before.push_back(g[r].process.cpu_seconds());
  let_run(milliseconds(500));
  for (uint32_t r = 0; r < 3; ++r) EXPECT_LE(g[r].process.cpu_seconds() - before[r], 0.02) << "of 0.5 s";
  g[1].process.say("wake");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(g[r].process.line().substr(0, 8), "unparked");
  g.say_all("scenario 4 0 2 2");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(g[r].process.line(), "ok");
}

TEST_P(ep_processes, a_new_view_takes_a_parked_group_along) {
  auto g = make(3);
  ASSERT_TRUE(g.connect(1, {0, 1}, {}));
  for (const uint32_t r : {0u, 1u}) g[r].process.say("idle");
  let_run(milliseconds(100));
  for (const uint32_t r : {0u, 1u}) g[r].process.say("end");
  for (const uint32_t r : {0u, 1u}) {
    const loss l = process_group::parse(g[r].process.line());
    EXPECT_EQ(l.code, "cancelled") << l.text;
  }
  ASSERT_TRUE(g.connect(2, {2, 0, 1}, {}));  // also in another order
  g.say_all("scenario 6 1 2 2");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(g[r].process.line(), "ok");
}

TEST_P(ep_processes, views_that_make_no_sense_are_refused) {
  auto g = make(2);
  const auto code = [&](const std::string& line) { return process_group::parse(g[0].process.ask(line)).code; };
  const std::string two = fmt::format("2 {} 1 {} 2", g[0].address, g[1].address);
  EXPECT_EQ(code("connect 1 2 1000 1000 24 3 9 64 500 " + two), "invalid_argument") << "rank out of range";
  EXPECT_EQ(code("connect 1 1 1000 1000 24 3 9 64 500 " + two), "invalid_argument") << "another's rank";
  EXPECT_EQ(code("connect 1 0 1000 1000 0 3 9 64 500 " + two), "invalid_argument") << "no width";
  EXPECT_EQ(code("connect 1 0 0 1000 24 3 9 64 500 " + two), "invalid_argument") << "no deadline";
  const std::string cut = g[1].address.substr(0, g[1].address.size() - 10);
  EXPECT_EQ(code(fmt::format("connect 1 0 1000 1000 24 3 9 64 500 2 {} 1 {} 2", g[0].address, cut)), "invalid_argument")
      << "truncated address";
  EXPECT_EQ(code(fmt::format("connect 1 0 1000 1000 24 3 9 64 500 2 {} 1 {} 1", g[0].address, g[0].address)),
            "invalid_argument")
      << "twice the same process";
  ASSERT_TRUE(g.connect(5, {}));
  EXPECT_EQ(code("connect 5 0 1000 1000 24 3 9 64 500 " + two), "stale");
}

TEST(ep_process, nothing_is_left_in_dev_shm) {
  const size_t before = shm_files();
  for (int i = 0; i < 3; ++i) {
    process_group g(TROUPE_EP_RANK, 2, "shm");
    ASSERT_TRUE(g.connect(1, {}));
    g.say_all("steps 1000000000");
    g[0].process.kill();
    g[1].process.kill();
  }
  EXPECT_EQ(shm_files(), before);
}

}  // namespace
}  // namespace troupe::kernels::ep
