#include "kv/store/executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

namespace troupe::kv {
namespace {

using namespace std::chrono_literals;

TEST(manual_executor, tasks_run_in_order_and_timers_by_time) {
  manual_executor e;
  std::vector<int> order;
  e.post_after(20ms, [&] { order.push_back(4); });
  e.post_after(10ms, [&] { order.push_back(3); });
  e.post_after(0ms, [&] { order.push_back(1); });
  e.post([&] {
    order.push_back(2);
    e.post_after(10ms, [&] { order.push_back(33); });  // the same moment as 3, posted later
  });
  e.run_ready();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(e.now(), 0ns);
  EXPECT_TRUE(e.run_until([&] { return order.size() == 5; }));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 33, 4}));
  EXPECT_EQ(e.now(), 20ms);
  EXPECT_FALSE(e.run_until([] { return false; }));
}

TEST(thread_executor, tasks_of_many_threads_run_one_at_a_time_and_in_order_per_thread) {
  constexpr int threads = 4, tasks = 2000;
  std::vector<std::vector<int>> seen(threads);
  {
    thread_executor e(8);  // small: posting threads have to wait for room
    std::vector<std::thread> posters;
    for (int t = 0; t < threads; ++t) {
      posters.emplace_back([&, t] {
        for (int i = 0; i < tasks; ++i) e.post([&, t, i] { seen[t].push_back(i); });
      });
    }
    for (auto& p : posters) p.join();
  }
  for (const auto& s : seen) {
    ASSERT_EQ(s.size(), static_cast<size_t>(tasks));
    for (int i = 0; i < tasks; ++i) ASSERT_EQ(s[i], i);
  }
}

TEST(thread_executor, its_own_tasks_may_post_beyond_the_capacity) {
  std::promise<int> done;
  thread_executor e(1);
  int ran = 0;
  e.post([&] {
    for (int i = 0; i < 100; ++i) e.post([&] { ++ran; });
    e.post([&] { done.set_value(ran); });
  });
  EXPECT_EQ(done.get_future().get(), 100);
}

TEST(thread_executor, a_timer_runs_after_its_delay_though_tasks_keep_coming) {
  std::promise<nanoseconds> done;
  thread_executor e;
  const auto start = e.now();
  std::atomic<bool> stop{false};
  std::function<void()> busy = [&] {
    if (!stop) e.post(busy);
  };
  e.post(busy);
  e.post_after(5ms, [&] {
    stop = true;
    done.set_value(e.now());
  });
  EXPECT_GE(done.get_future().get() - start, 5ms);
}

TEST(thread_executor, an_end_drops_timers_and_runs_tasks) {
  int ran = 0;
  {
    thread_executor e;
    e.post_after(1h, [&] { ran += 100; });
    for (int i = 0; i < 50; ++i) e.post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(io_pool, refuses_what_does_not_fit_and_runs_all_it_took) {
  std::atomic<int> ran{0};
  int taken = 0, refused = 0;
  {
    std::promise<void> go;
    auto gate = go.get_future().share();
    io_pool pool(2, 4);
    std::promise<void> first, second;
    ASSERT_TRUE(pool.submit([&, gate] { first.set_value(), gate.wait(), ++ran; }));
    ASSERT_TRUE(pool.submit([&, gate] { second.set_value(), gate.wait(), ++ran; }));
    first.get_future().wait();
    second.get_future().wait();  // both threads are busy, so the queue fills
    for (int i = 0; i < 10; ++i) (pool.submit([&] { ++ran; }) ? taken : refused)++;
    go.set_value();
  }
  EXPECT_EQ(taken, 4);
  EXPECT_EQ(refused, 6);
  EXPECT_EQ(ran, 6);
}

}  // namespace
}  // namespace troupe::kv
