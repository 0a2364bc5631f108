// Calibration error, load summaries and draft counts on tables small enough to compute by hand.
#include "kernels/measure/calibration.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/measure/acceptance.hpp"
#include "kernels/measure/load.hpp"
#include "kernels/measure/loss.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::measure {
namespace {

TEST(calibration, perfect_predictions_have_no_error) {
  calibration c;
  EXPECT_EQ(c.expected_error(), 0);
  for (int i = 0; i < 4; ++i) c.add(0.25, i == 0);
  for (int i = 0; i < 10; ++i) c.add(0.9, i < 9);
  EXPECT_NEAR(c.expected_error(), 0, 1e-12);
  EXPECT_EQ(c.count(), 14u);
  EXPECT_NEAR(c.mean_happened(), 10.0 / 14, 1e-12);
  EXPECT_NEAR(c.mean_predicted(), 10.0 / 14, 1e-12);
}

TEST(calibration, the_error_weighs_bins_by_their_share) {
  calibration c;
  // Bin [0.3, 0.4): mean 0.35, half happened: 0.15 off, 4 of 10 samples. Bin [0.8, 0.9): mean 0.8, all: 0.2 off, 6
  // of 10.
  for (double p : {0.32, 0.38}) c.add(p, true);
  for (double p : {0.34, 0.36}) c.add(p, false);
  for (int i = 0; i < 6; ++i) c.add(0.8, true);
  EXPECT_NEAR(c.expected_error(), 0.4 * 0.15 + 0.6 * 0.2, 1e-12);
  // Opposite errors within a bin cancel, in different bins they do not.
  calibration d;
  d.add(0.05, true);
  d.add(0.95, false);
  EXPECT_NEAR(d.expected_error(), 0.95, 1e-12);
}

TEST(calibration, the_ends_and_nonsense_fall_into_bins) {
  calibration c;
  c.add(0, false);
  c.add(1, true);
  c.add(1.5, true);
  c.add(-3, false);
  c.add(std::numeric_limits<double>::quiet_NaN(), false);
  EXPECT_EQ(c.bins().front().count, 3u);
  EXPECT_EQ(c.bins().back().count, 2u);
  EXPECT_EQ(c.expected_error(), 0);
}

// One outcome with `n` drafts of confidence 0.5.
draft_outcome outcome(uint32_t n, uint32_t matched, bool ended = false) {
  static const std::vector<token_id> tokens(5, 7);
  static const std::vector<float> half(5, 0.5f);
  return {slot_id{0}, 0, {tokens.data(), n}, {half.data(), n}, matched, ended};
}

TEST(acceptance, whole_blocks_count_for_the_mean_and_cut_ones_for_the_slots_compared) {
  acceptance a(5);
  a.add(outcome(5, 5));
  a.add(outcome(5, 2));
  a.add(outcome(5, 0));
  EXPECT_EQ(a.blocks(), 3u);
  EXPECT_NEAR(a.mean_length(), 7.0 / 3, 1e-12);
  EXPECT_EQ(a.slots()[0].reached, 3u);
  EXPECT_EQ(a.slots()[0].accepted, 2u);
  EXPECT_EQ(a.slots()[2].reached, 2u);
  EXPECT_EQ(a.slots()[2].accepted, 1u);
  EXPECT_EQ(a.slots()[3].reached, 1u);
  EXPECT_NEAR(a.slots()[3].cumulative(), 1.0 / 3, 1e-12);
  // The sequence ended with its second draft: the third was never compared.
  a.add(outcome(5, 2, true));
  // Only two drafts fitted, both stood: nothing is known of the third.
  a.add(outcome(2, 2));
  // Only two drafts fitted, the first failed: the second is lost, later slots were never drafted.
  a.add(outcome(2, 0));
  EXPECT_EQ(a.blocks(), 3u);
  EXPECT_EQ(a.cut_blocks(), 3u);
  EXPECT_EQ(a.matched(), 11u);
  EXPECT_EQ(a.slots()[0].reached, 6u);
  EXPECT_EQ(a.slots()[1].offered, 6u);
  EXPECT_EQ(a.slots()[1].survived, 4u);
  EXPECT_EQ(a.slots()[2].offered, 3u);
  EXPECT_EQ(a.per_slot().count(), 6u + 4 + 2 + 1 + 1);
  EXPECT_EQ(a.cumulative().count(), 6u + 6 + 3 + 3 + 3);
}

// Confidences of 0.9 where 0.6 would be right, in blocks of five: scaling brings the logits down.
TEST(acceptance, scaling_repairs_what_is_too_sure) {
  EXPECT_FALSE(acceptance(5).scaled());
  acceptance a(5);
  rng random(7);
  const std::vector<token_id> tokens(5, 7);
  const std::vector<float> sure(5, 0.9f);
  for (int i = 0; i < 4000; ++i) {
    uint32_t matched = 0;
    while (matched < 5 && random.uniform() < 0.6) ++matched;
    a.add({slot_id{0}, 0, tokens, sure, matched, false});
  }
  auto s = a.scaled();
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_GT(s->before.expected_error(), 0.2);
  EXPECT_LT(s->after.expected_error(), 0.05);
  EXPECT_GT(s->temperatures[0], 2);
  EXPECT_EQ(s->after.count(), 2000u * 5);
}

TEST(acceptance, an_end_at_the_last_draft_is_a_whole_block) {
  acceptance a(5);
  a.add(outcome(5, 5, true));
  EXPECT_EQ(a.blocks(), 1u);
  EXPECT_EQ(a.mean_length(), 5);
}

TEST(load, relative_to_the_mean) {
  auto l = summarise_loads({{10, 20, 30, 0}, {5, 5, 5, 5}, {0, 0}});
  ASSERT_EQ(l.size(), 3u);
  EXPECT_NEAR(l[0].max_over_mean, 2, 1e-12);
  EXPECT_EQ(l[0].min_over_mean, 0);
  EXPECT_EQ(l[0].rows, 60u);
  EXPECT_EQ(l[1].max_over_mean, 1);
  EXPECT_EQ(l[1].min_over_mean, 1);
  EXPECT_EQ(l[2].max_over_mean, 0);
}

TEST(loss, log_probability_of_known_logits) {
  const float equal[4] = {1000, 1000, 1000, 1000};
  EXPECT_NEAR(log_probability(equal, 4, 2), -std::log(4.0), 1e-12);
  const float two[2] = {0, static_cast<float>(std::log(3.0))};
  EXPECT_NEAR(log_probability(two, 2, 1), std::log(0.75), 1e-7);
  EXPECT_EQ(likeliest(equal, 4), 0);
  EXPECT_EQ(likeliest(two, 2), 1);
}

}  // namespace
}  // namespace troupe::kernels::measure
