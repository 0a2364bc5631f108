// How the rows for an expert are split among its copies: by what the group has counted.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/ep/expert_table.hpp"
#include "kernels/ep/local_group.hpp"
#include "kernels/ep/thread_group.hpp"
#include "tests/kernels/identity_workload.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

// The rows of all ranks, told along with combine, decide the split; every rank comes to the same one.
TEST(split, follows_what_the_group_counted) {
  const auto m = identity_model();
  const uint32_t experts = m->config.n_routed_experts;
  auto made = ep::make_thread_group({2, 4, 2, 64, experts}, {});
  ASSERT_TRUE(made);
  ep::placement p = ep::contiguous_placement(2, 1, experts);
  p.copies[0][0] = {0, 1};
  p.copies[0][experts - 1] = {0, 1};
  std::vector<std::thread> threads;
  std::vector<double> share(2), other(2);
  for (uint32_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      ep::group& g = *made->ranks[r];
      ep::expert_table t(p, 2, r, {2});
      // Two thirds of all rows go to expert 1, which only rank 0 has: expert 0 is to go to rank 1 as far as possible.
      for (uint32_t s = 0; s < 2; ++s) {
        ASSERT_TRUE(g.begin_step({.has_work = true}));
        std::vector<float> x(30 * 4, 1.0f), out(30 * 4);
        std::vector<ep::route> routes;
        for (uint32_t i = 0; i < 30; ++i) {
          const uint32_t e = i % 3 ? 1 : 0;
          routes.push_back({t.choose(0, e, i), e, 1.0f});
        }
        const auto got = g.dispatch(0, x, routes, 1);
        ASSERT_TRUE(got);
        std::vector<float> y(got->items.size() * 4);
        ASSERT_TRUE(g.combine(0, y, out, t.count(0, got->items)));
        t.learn(0, g);
        EXPECT_EQ(t.share(0, 0, 0), 0.5) << "before the window is over";
        t.end_step();
      }
      share[r] = t.share(0, 0, 1);
      other[r] = t.share(0, experts - 1, 0);
      uint32_t to_one = 0;
      for (uint32_t i = 0; i < 100; ++i) to_one += t.choose(0, 0, i) == 1;
      EXPECT_GE(to_one, 98u);
    });
  for (auto& t : threads) t.join();
  EXPECT_GT(share[0], 0.99);
  EXPECT_EQ(share[0], share[1]);
  EXPECT_EQ(other[0], 0.5) << "an expert nobody wanted is split evenly";
}

}  // namespace
}  // namespace troupe::kernels
