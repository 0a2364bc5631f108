#include "kernels/cpu/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

namespace troupe::kernels::cpu {
namespace {

TEST(thread_pool, runs_every_task_exactly_once) {
  for (uint32_t threads : {0u, 1u, 2u, 3u, 5u}) {
    thread_pool pool(threads);
    EXPECT_EQ(pool.size(), std::max(threads, 1u));
    for (uint32_t tasks : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<uint32_t>> count(tasks);
      std::atomic<bool> in_range{true};
      pool.run(tasks, [&](uint32_t task, uint32_t thread) {
        count[task].fetch_add(1);
        if (thread >= pool.size()) in_range = false;
      });
      for (auto& n : count) EXPECT_EQ(n.load(), 1u);
      EXPECT_TRUE(in_range);
    }
  }
}

// Plain memory written by tasks is visible after run, and back-to-back jobs never mix.
TEST(thread_pool, jobs_in_a_row_see_each_others_writes) {
  thread_pool pool(3);
  std::vector<uint64_t> a(64, 1);
  for (int round = 0; round < 2000; ++round)
    pool.run(uint32_t(a.size()), [&](uint32_t i, uint32_t) { a[i] = a[i] * 3 + i; });
  std::vector<uint64_t> want(64, 1);
  for (int round = 0; round < 2000; ++round)
    for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] * 3 + i;
  EXPECT_EQ(a, want);
}

TEST(thread_pool, ends_while_idle_and_right_after_a_job) {
  for (int i = 0; i < 50; ++i) {
    auto pool = std::make_unique<thread_pool>(3);
    if (i % 2) pool->run(4, [](uint32_t, uint32_t) {});
  }
}

// A worker that comes late to a job of few tasks must not take one of the larger job that is being set up: that took
// some hundred thousand rounds to happen, and ended in a wait without end.
TEST(thread_pool, a_late_worker_takes_nothing_of_the_next_job) {
  thread_pool pool(3);
  std::vector<std::atomic<uint32_t>> count(12);
  uint32_t want = 0;
  for (int round = 0, rounds = std::getenv("TROUPE_LONG") ? 5'000'000 : 500'000; round < rounds; ++round) {
    pool.run(2, [](uint32_t, uint32_t) {});
    std::atomic<uint32_t> ran{0};
    pool.run(12, [&](uint32_t task, uint32_t) {
      count[task].fetch_add(1, std::memory_order_relaxed);
      ran.fetch_add(1, std::memory_order_relaxed);
    });
    ++want;
    ASSERT_EQ(ran.load(), 12u) << "round " << round;
  }
  for (auto& n : count) EXPECT_EQ(n.load(), want);
}

}  // namespace
}  // namespace troupe::kernels::cpu
