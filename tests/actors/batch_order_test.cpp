// Whose turn it is in a scheduler's queue, and how large its prompt steps get.
#include <algorithm>

#include "actors/serving/step_costs.hpp"
#include "tests/actors/batch_bench.hpp"

namespace troupe::actors {
namespace {

// The order in which requests gave their first token.
std::vector<uint64_t> first_tokens(const bench& t) {
  std::vector<uint64_t> out;
  for (const auto& i : t.items)
    if (!i.tokens.empty() && std::find(out.begin(), out.end(), i.request.value) == out.end())
      out.push_back(i.request.value);
  return out;
}

std::vector<uint64_t> without(std::vector<uint64_t> v, std::initializer_list<uint64_t> gone) {
  for (uint64_t x : gone) std::erase(v, x);
  return v;
}

TEST(order, priority_decides_who_leaves_the_queue_first) {
  bench t(role::decode, 200, 32);
  for (uint64_t i = 1; i <= 8; ++i) t.add(i, 8, 12);  // every slot
  t.plan();
  for (uint64_t i = 9; i <= 12; ++i) t.add(i, 8, 4);
  t.add(13, 8, 4, 1, 1, {}, 9);
  t.add(14, 8, 4, 1, 1, {}, 0);
  t.add(15, 8, 4, 1, 1, {}, 7);
  t.finish();
  const auto order = without(first_tokens(t), {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(order.front(), 13u);
  EXPECT_EQ(order.back(), 14u);
  EXPECT_EQ(without(order, {13, 14, 15}), (std::vector<uint64_t>{9, 10, 11, 12})) << "equals: first come, first served";
  auto wrong = t.add(16, 8, 4, 1, 1, {}, 10);
  EXPECT_EQ(wrong.outcome.code, errc::invalid_argument);
  t.expect_empty();
}

// A long prompt in front does not keep short ones waiting: they overtake it in the queue once costs are known, and
// share the steps while it runs.
TEST(order, a_long_prompt_does_not_starve_short_ones_nor_they_it) {
  bench t(role::prefill, 400, 32);
  t.add(1, 480, 2);
  t.plan();
  for (uint64_t i = 2; i <= 5; ++i) t.add(i, 6, 2);
  size_t steps = 0;
  while (without(first_tokens(t), {1}).size() < 4 && ++steps < 100) {
    t.plan();
    t.step();
  }
  EXPECT_LE(steps, 6u);
  t.finish();
  EXPECT_EQ(first_tokens(t).back(), 1u);
  t.expect_empty();
}

TEST(step_costs, learns_from_steps_and_cuts_chunks_to_the_budget) {
  const policies::prefill_cost truth{20, 3, 50'000};
  step_costs c;
  EXPECT_EQ(c.rows_within(1'000'000, 0, false, 16, 512), 512u) << "nothing is known yet";
  rng random(3);
  for (int i = 0; i < 40; ++i) {
    step_costs::prompt_rows p[2] = {{uint32_t(1 + random.below(256)), uint32_t(random.below(4000))},
                                    {uint32_t(1 + random.below(256)), uint32_t(random.below(4000))}};
    const double t = truth(p[0].rows, p[0].before) + truth(p[1].rows, p[1].before);
    c.observe(p, false, static_cast<int64_t>(t));
    step_costs::prompt_rows nonsense[1] = {{100, 0}};
    c.observe(nonsense, true, 1);  // decodes beside it: says nothing of the prompt
  }
  ASSERT_TRUE(c.prefill());
  EXPECT_NEAR(c.prefill()->d, truth.d, truth.d / 20);
  const int64_t budget = 10'000'000;
  const uint32_t rows = c.rows_within(budget, 1000, false, 16, 512);
  EXPECT_LE(truth(rows, 1000), 1.05 * double(budget));
  EXPECT_GE(truth(rows + 5, 1000), 0.9 * double(budget));
  EXPECT_LT(c.rows_within(budget, 4000, false, 16, 512), rows) << "behind more tokens a row costs more";
  EXPECT_EQ(c.rows_within(1, 0, false, 16, 512), 16u) << "a prompt goes on whatever it costs";
  EXPECT_EQ(c.rows_within(0, 0, false, 16, 512), 512u) << "no budget";
  for (int i = 0; i < 50; ++i) c.observe({}, true, 6'000'000);
  EXPECT_LT(c.rows_within(budget, 1000, true, 16, 512), rows) << "decoding takes its part";
}

// The stand-in's steps cost time by rows: a batch with a budget settles at chunks that fit it.
TEST(step_costs, a_batch_with_a_budget_runs_smaller_chunks) {
  bench t(role::prefill, 400, 64, 0, 1, std::chrono::microseconds(600));
  t.options.limits.max_chunk = 24;
  uint32_t largest = 0, late = 0;
  for (uint64_t i = 1; i <= 60; ++i) {
    t.add(i, static_cast<uint32_t>(8 + 7 * (i % 13)), 2);
    while (t.b.unfinished() > 0) {
      t.plan();
      scheduler_report before, after;
      t.b.describe(before);
      if (!t.step()) break;
      t.b.describe(after);
      const auto rows = static_cast<uint32_t>(after.prompt_rows - before.prompt_rows);
      (i < 5 ? largest : late) = std::max(i < 5 ? largest : (i > 40 ? late : 0), rows);
    }
  }
  t.finish();
  EXPECT_EQ(largest, 24u);
  EXPECT_LT(late, 24u);
  EXPECT_GE(late, 16u) << "a window at least";
  rank_load load = t.b.load();
  EXPECT_GT(load.cost_a + load.cost_b + load.cost_d, 0) << "told to the balancer";
}

}  // namespace
}  // namespace troupe::actors
