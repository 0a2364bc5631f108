// Tables for the decisions that the serving actors call.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "policies/admission.hpp"
#include "policies/chunk.hpp"
#include "policies/pages.hpp"
#include "policies/placement.hpp"
#include "policies/queue_order.hpp"
#include "policies/read_race.hpp"
#include "policies/resume.hpp"
#include "policies/snapshot_marks.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

TEST(resume, table) {
  struct row {
    uint32_t prompt, known, window, layers, d, limit;
  };
  const row table[] = {
      {300, 300, 128, 20, 172, 128},   // the worked example of the decided details
      {300, 309, 128, 20, 172, 128},   // after ten tokens and a crash: d stays
      {100, 100, 128, 20, 0, 0},       // shorter than a window
      {128, 128, 128, 20, 0, 0},       // exactly one
      {134, 134, 128, 20, 6, 0},       // d == backtrack
      {263, 263, 128, 20, 135, 128},   // 135 - 6 = 129
      {300, 3000, 128, 20, 440, 384},  // so long after the prompt that the decoder windows decide
      {80, 80, 16, 2, 64, 48},         // a tiny model
      {0, 0, 16, 2, 0, 0},
  };
  for (const auto& r : table) {
    auto plan = plan_resume({r.prompt, r.known, r.window, r.layers});
    EXPECT_EQ(plan.decoder_from, r.d) << r.prompt << " " << r.known;
    EXPECT_EQ(plan.hit_limit, r.limit) << r.prompt << " " << r.known;
    EXPECT_FALSE(plan.reason.empty());
  }
}

TEST(resume, fresh_prompt_follows_the_134_rule) {
  for (uint32_t n = 0; n < 2000; ++n) {
    auto plan = plan_resume({n, n, 128, 20});
    EXPECT_EQ(plan.hit_limit, n < 134 ? 0 : (n - 134) / 128 * 128) << n;
  }
}

TEST(chunk, table) {
  struct row {
    uint32_t budget;
    std::vector<uint32_t> remaining, rows;
  };
  const row table[] = {
      {64, {}, {}},
      {0, {5}, {0}},
      {64, {10}, {10}},
      {64, {100}, {64}},
      {64, {100, 3}, {61, 3}},     // the short one goes along
      {64, {100, 100}, {48, 16}},  // half shared, the rest to the oldest
      {1, {5, 5}, {1, 0}},         // chunks of one
      {3, {1, 1, 1, 1}, {1, 1, 1, 0}},
      {64, {8, 8, 8}, {8, 8, 8}},
  };
  for (const auto& r : table) EXPECT_EQ(plan_chunks({r.budget, r.remaining}).rows, r.rows) << r.budget;
}

TEST(chunk, uses_the_budget_or_all_that_remains) {
  rng random{11};
  for (int i = 0; i < 2000; ++i) {
    chunk_input in{static_cast<uint32_t>(random.below(100)), {}};
    for (uint64_t n = random.below(8); n > 0; --n) in.remaining.push_back(static_cast<uint32_t>(1 + random.below(80)));
    auto plan = plan_chunks(in);
    uint32_t all = std::accumulate(in.remaining.begin(), in.remaining.end(), 0u);
    EXPECT_EQ(std::accumulate(plan.rows.begin(), plan.rows.end(), 0u), std::min(all, in.budget));
    for (size_t k = 0; k < plan.rows.size(); ++k) EXPECT_LE(plan.rows[k], in.remaining[k]);
  }
}

TEST(pages, needed) {
  EXPECT_EQ(pages_needed(0, 16), 0u);
  EXPECT_EQ(pages_needed(1, 16), 1u);
  EXPECT_EQ(pages_needed(16, 16), 1u);
  EXPECT_EQ(pages_needed(17, 16), 2u);
  EXPECT_EQ(pages_needed(UINT32_MAX, 16), 1u << 28);
}

TEST(pages, table) {
  struct row {
    uint32_t free, returning;
    std::vector<page_holder> running;
    std::vector<uint32_t> grow;
    std::vector<size_t> preempt;
  };
  const row table[] = {
      {0, 0, {}, {}, {}},
      {0, 0, {{2, 2}, {1, 1}}, {0, 0}, {}},
      {2, 0, {{2, 3}, {1, 2}}, {1, 1}, {}},
      {1, 0, {{2, 3}, {1, 2}}, {1, 0}, {}},   // the second waits: nobody younger holds a page
      {0, 0, {{2, 3}, {1, 1}}, {0, 0}, {1}},  // the youngest pays for the oldest
      {0, 0, {{2, 3}, {4, 4}, {1, 1}}, {0, 0, 0}, {2}},
      {0, 0, {{2, 5}, {4, 4}, {1, 1}}, {0, 0, 0}, {2, 1}},
      {3, 0, {{0, 4}, {0, 1}}, {0, 0}, {}},  // not started ones wait in order
      {0, 1, {{2, 3}, {1, 1}}, {0, 0}, {}},  // one comes back anyway
      {0, 0, {{2, 3}}, {0}, {}},             // alone: waits for pages under way
  };
  for (size_t i = 0; i < std::size(table); ++i) {
    auto plan = plan_pages({table[i].free, table[i].returning, table[i].running});
    EXPECT_EQ(plan.grow, table[i].grow) << "row " << i;
    EXPECT_EQ(plan.preempt, table[i].preempt) << "row " << i;
  }
}

TEST(pages, never_gives_more_than_there_is_and_never_starves_the_oldest) {
  rng random{13};
  for (int i = 0; i < 5000; ++i) {
    page_input in{static_cast<uint32_t>(random.below(10)), 0, {}};
    for (uint64_t n = random.below(6); n > 0; --n) {
      auto held = static_cast<uint32_t>(random.below(5));
      in.running.push_back({held, held + static_cast<uint32_t>(random.below(4))});
    }
    auto plan = plan_pages(in);
    uint32_t given = 0;
    for (size_t k = 0; k < in.running.size(); ++k) {
      given += plan.grow[k];
      if (plan.runs[k]) {
        EXPECT_GE(in.running[k].held + plan.grow[k], in.running[k].needed);
      } else {
        EXPECT_EQ(plan.grow[k], 0u);
      }
    }
    EXPECT_LE(given, in.free);
    for (size_t p : plan.preempt) {
      EXPECT_GT(p, 0u);
      EXPECT_FALSE(plan.runs[p]);
    }
  }
}

TEST(admission, table) {
  EXPECT_TRUE(plan_admission({0, 1, true}).admit);
  EXPECT_FALSE(plan_admission({1, 1, true}).admit);
  EXPECT_FALSE(plan_admission({0, 0, true}).admit);
  EXPECT_FALSE(plan_admission({0, 8, false}).admit);
  EXPECT_EQ(plan_admission({0, 8, false}).retry_after_ms, 0u);
  EXPECT_EQ(plan_admission({8, 8, true, 100}).retry_after_ms, 200u);
  EXPECT_EQ(plan_admission({1, 1, true, 1}).retry_after_ms, 50u);
  EXPECT_EQ(plan_admission({4000, 4000, true, 1000}).retry_after_ms, 10'000u);
}

TEST(read_race, is_what_computing_takes_within_bounds) {
  const auto deadline = [](uint32_t tokens, int64_t row, int64_t least, int64_t most) {
    return plan_read_race({tokens, row, least, most}).deadline_ns;
  };
  EXPECT_EQ(deadline(640, 1000, 0, 10'000'000), 640'000);
  EXPECT_EQ(deadline(640, 1000, 1'000'000, 10'000'000), 1'000'000);
  EXPECT_EQ(deadline(64000, 1000, 0, 10'000'000), 10'000'000);
  EXPECT_EQ(deadline(640, 0, 5, 10'000'000), 10'000'000) << "not known yet";
  EXPECT_EQ(deadline(UINT32_MAX, INT64_MAX, 0, 7), 7);
  EXPECT_EQ(deadline(0, 1000, 0, 7), 0);
  EXPECT_EQ(deadline(10, 10, 50, 20), 20) << "bounds the wrong way round: the upper one holds";
}

TEST(snapshot_marks, table) {
  const struct {
    const char* rule;
    uint32_t prompt, position, rows, write_from;
    snapshot_marks marks;
  } chunks[] = {
      {"the last three of a prompt that runs at once", 1000, 0, 1000, 0, {5, 7}},
      {"an early chunk takes none", 1000, 0, 512, 0, {5, 4}},
      {"a middle one its part", 1000, 512, 200, 0, {5, 5}},
      {"a short prompt has fewer", 300, 0, 300, 0, {1, 2}},
      {"less than a block has none", 100, 0, 100, 0, {1, 0}},
      {"a boundary where the chunk begins was taken before", 1000, 640, 360, 0, {6, 7}},
      {"nothing within the replay, but where it ends", 1000, 512, 488, 768, {6, 7}},
  };
  for (const auto& c : chunks)
    EXPECT_EQ(marks_of_chunk(128, c.prompt, c.position, c.rows, c.write_from), c.marks) << c.rule;
  const auto none = [](snapshot_marks m) { return m.first > m.last; };
  EXPECT_EQ(marks_of_decode(128, 127, 128), (snapshot_marks{1, 1}));
  EXPECT_TRUE(none(marks_of_decode(128, 120, 127)));
  EXPECT_TRUE(none(marks_of_decode(128, 128, 133))) << "it was crossed before";
  EXPECT_EQ(marks_of_decode(128, 253, 259), (snapshot_marks{2, 2}));
}

TEST(queue_order, table) {
  struct row {
    int64_t arrived;
    double work;
    uint32_t priority;
    int64_t key;
  };
  const row table[] = {
      {0, 0, 0, 0},
      {100, 0, 5, 100 - 5'000'000'000},
      {100, 7e6, 0, 7'000'100},       // back by its own length
      {100, 1e12, 0, 5'000'000'100},  // and no further than the longest
      {100, 1e12, 9, 100 - 4'000'000'000},
  };
  for (const auto& r : table) {
    auto plan = plan_queue_order({r.arrived, r.work, r.priority});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->key_ns, r.key);
    EXPECT_FALSE(plan->reason.empty());
  }
  EXPECT_FALSE(plan_queue_order({0, 0, 10}));
  EXPECT_FALSE(plan_queue_order({0, -1, 0}));
  EXPECT_FALSE(plan_queue_order({0, std::numeric_limits<double>::quiet_NaN(), 0}));
}

// Whatever comes, nobody is overtaken by what comes later than the longest prompt and the highest priority are worth.
TEST(queue_order, nobody_starves) {
  rng r(77);
  const auto key = [](int64_t arrived, double work, uint32_t priority) {
    return plan_queue_order({arrived, work, priority})->key_ns;
  };
  for (int i = 0; i < 2000; ++i) {
    const int64_t waits = key(0, double(r.below(100'000'000'000)), uint32_t(r.below(10)));
    EXPECT_LT(waits, key(14'000'000'001, double(r.below(100'000'000'000)), uint32_t(r.below(10))));
  }
}

TEST(placement, goes_round_and_skips) {
  placement_input in{{true, false, true}, SIZE_MAX};
  std::vector<size_t> got;
  for (int i = 0; i < 4; ++i) got.push_back(in.last = plan_placement(in).choice);
  EXPECT_EQ(got, (std::vector<size_t>{0, 2, 0, 2}));
  EXPECT_EQ(plan_placement({{false, false}, 0}).choice, SIZE_MAX);
  EXPECT_EQ(plan_placement({{}, 0}).choice, SIZE_MAX);
}

}  // namespace
}  // namespace troupe::policies
