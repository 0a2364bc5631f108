#include "runtime/base/run_queue.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "runtime/base/clock.hpp"

namespace troupe {
namespace {

// Two threads on one core: each waits while the other runs.
TEST(run_queue_meter, counts_the_wait_for_a_core) {
  if (!std::filesystem::exists("/proc/thread-self/schedstat")) GTEST_SKIP() << "this kernel does not say";
  std::atomic<bool> stop = false;
  int64_t waited = 0, before = 0;
  std::jthread pair([&] {
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int core = 0;
    while (!CPU_ISSET(core, &allowed)) ++core;
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    std::jthread other([&] {  // inherits the core
      while (!stop) {
      }
    });
    const run_queue_meter meter;
    before = meter.waited();
    const auto deadline = steady_clock().now() + std::chrono::seconds(20);
    while (meter.waited() - before < 2'000'000 && steady_clock().now() < deadline) {
    }
    waited = meter.waited() - before;
    stop = true;
  });
  pair.join();
  EXPECT_GE(before, 0);
  EXPECT_GE(waited, 2'000'000);
  EXPECT_LT(waited, 20'000'000'000);
}

}  // namespace
}  // namespace troupe
