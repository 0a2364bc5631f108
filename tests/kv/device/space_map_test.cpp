#include "kv/device/space_map.hpp"

#include <gtest/gtest.h>

#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

TEST(space_map, takes_rows_one_after_the_other_and_never_the_header) {
  space_map m;
  EXPECT_FALSE(m.take(1));
  EXPECT_FALSE(m.add_chunk(3, 1));
  ASSERT_TRUE(m.add_chunk(3, 100));
  EXPECT_FALSE(m.add_chunk(3, 100));
  EXPECT_EQ(m.total(), 99u);
  EXPECT_EQ(m.take(45), (run_range{3, 1, 45}));
  EXPECT_EQ(m.take(45), (run_range{3, 46, 45}));
  EXPECT_FALSE(m.take(45));
  EXPECT_EQ(m.largest_free(), 9u);
  m.free({3, 1, 45});
  EXPECT_EQ(m.take(9), (run_range{3, 91, 9}));
  EXPECT_EQ(m.take(45), (run_range{3, 1, 45}));
  EXPECT_EQ(m.largest_free(), 0u);
  EXPECT_EQ(m.taken(), 99u);
}

TEST(space_map, named_runs_are_taken_only_where_all_are_free) {
  space_map m;
  ASSERT_TRUE(m.add_chunk(0, 200));
  EXPECT_FALSE(m.take(run_range{0, 0, 1}));
  EXPECT_FALSE(m.take(run_range{0, 199, 2}));
  EXPECT_FALSE(m.take(run_range{1, 1, 1}));
  EXPECT_FALSE(m.take(run_range{0, 5, 0}));
  EXPECT_FALSE(m.take(run_range{0, 5, UINT32_MAX}));
  EXPECT_TRUE(m.take(run_range{0, 60, 70}));
  EXPECT_FALSE(m.take(run_range{0, 129, 1}));
  EXPECT_FALSE(m.take(run_range{0, 59, 2}));
  EXPECT_TRUE(m.take(run_range{0, 130, 70}));
  EXPECT_TRUE(m.take(run_range{0, 1, 59}));
  EXPECT_EQ(m.taken(), 199u);
  m.clear();
  EXPECT_EQ(m.taken(), 0u);
  EXPECT_EQ(m.total(), 199u);
}

// Against a plain vector of bools. A take that fails means that no row of that length is free.
TEST(space_map, behaves_like_a_plain_list_of_flags) {
  const uint64_t seed = 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  rng draw(seed);
  for (int round = 0; round < 20; ++round) {
    space_map m;
    std::map<uint32_t, std::vector<bool>> model;
    for (uint32_t c = 0; c < 3; ++c) {
      const auto runs = static_cast<uint32_t>(2 + draw.below(300));
      ASSERT_TRUE(m.add_chunk(c * 5, runs));
      model[c * 5].assign(runs, false);
      model[c * 5][0] = true;
    }
    const auto longest = [&] {
      uint32_t best = 0;
      for (const auto& [c, flags] : model) {
        uint32_t row = 0;
        for (const bool taken : flags) best = std::max(best, row = taken ? 0 : row + 1);
      }
      return best;
    };
    std::vector<run_range> held;
    uint64_t taken = 0;
    for (int i = 0; i < 500; ++i) {
      if (!held.empty() && draw.below(5) < 2) {
        const size_t at = draw.below(held.size());
        for (uint32_t b = 0; b < held[at].runs; ++b) model[held[at].chunk][held[at].first + b] = false;
        m.free(held[at]);
        taken -= held[at].runs;
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
      } else {
        const auto n = static_cast<uint32_t>(1 + draw.below(draw.below(2) ? 8 : 130));
        const auto got = m.take(n);
        ASSERT_EQ(got.has_value(), longest() >= n) << "seed " << seed << " round " << round << " step " << i;
        if (got) {
          ASSERT_EQ(got->runs, n);
          for (uint32_t b = 0; b < n; ++b) {
            ASSERT_FALSE(model[got->chunk].at(got->first + b)) << "seed " << seed;
            model[got->chunk][got->first + b] = true;
          }
          taken += n;
          held.push_back(*got);
        }
      }
      ASSERT_EQ(m.taken(), taken);
      ASSERT_EQ(m.largest_free(), longest());
    }
  }
}

}  // namespace
}  // namespace troupe::kv
