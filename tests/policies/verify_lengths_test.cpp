// Lengths to verify: tables, a validator, the paper's counterexample, calibration, the off-switch.
#include "policies/verify_lengths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "policies/confidence.hpp"
#include "policies/registry.hpp"
#include "policies/speculation.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

confidence_rows rows_of(std::vector<std::vector<float>> rows) {
  confidence_rows c;
  for (const auto& r : rows) c.width = std::max(c.width, static_cast<uint32_t>(r.size()));
  for (auto& r : rows) {
    c.drafts.push_back(static_cast<uint32_t>(r.size()));
    r.resize(c.width, 0);
    c.value.insert(c.value.end(), r.begin(), r.end());
  }
  return c;
}

step_cost_table table_of(std::vector<step_cost_point> verify, std::vector<step_cost_point> draft = {},
                         uint32_t stairs = 0) {
  return *make_step_cost_table(std::move(verify), std::move(draft), stairs);
}

TEST(verify_lengths, cost_table) {
  struct row {
    uint32_t stairs;
    double n, ns;
  };
  const auto points =
      std::vector<step_cost_point>{{8, 100}, {16, 140}, {32, 120}, {64, 300}, {16, 130}};  // unsorted noise
  const row table[] = {
      {0, 1, 100},   {0, 8, 100},                   // nothing is cheaper than the smallest profiled step
      {0, 12, 120},  {0, 16, 140},                  // linear; the larger of two times
      {0, 32, 140},  {0, 24, 140},                  // 120 at 32 was noise: never cheaper than 16
      {0, 48, 220},  {0, 80, 380},                  // beyond the last: along the last segment
      {32, 9, 140},  {32, 17, 140}, {32, 48, 220},  // captured sizes up to 32
      {64, 33, 300},
  };
  for (const auto& r : table) {
    auto t = table_of(points, {}, r.stairs);
    EXPECT_DOUBLE_EQ(step_cost(t.verify, t.stairs, r.n), r.ns) << r.stairs << " " << r.n;
  }
  EXPECT_EQ(step_cost({}, 0, 5), 0);
  EXPECT_EQ(step_cost({{4, 7}}, 0, 5), 7);
  EXPECT_FALSE(make_step_cost_table({{1, 0}}, {}));
  EXPECT_FALSE(make_step_cost_table({{1, 5}}, {{1, NAN}}));
  EXPECT_FALSE(is_profiled(table_of({{1, 5}})));
  EXPECT_FALSE(is_profiled(table_of({{1, 5}, {100, 5}})));
  EXPECT_TRUE(is_profiled(table_of({{1, 5}, {100, 6}})));
}

TEST(verify_lengths, capacity_table) {
  const auto slope = table_of({{1, 10}, {11, 20}});                            // 9 + n
  const auto cliff = table_of({{4, 10}, {5, 20}, {8, 20}, {9, 40}}, {}, 100);  // captured at 4, 5..8, 9
  struct row {
    const step_cost_table& table;
    std::vector<std::vector<float>> confidences;
    uint32_t other, cap, capacity;
  };
  const row table[] = {
      {slope, {}, 0, 100, 0},              // nobody
      {slope, {{}, {}}, 0, 100, 0},        // nobody drafts
      {slope, {{1, 1, 1}}, 0, 100, 3},     // sure ones are worth a row
      {slope, {{0, 1, 1}}, 0, 100, 0},     // nothing survives the first
      {slope, {{0.5f, 0.1f}}, 0, 100, 1},  // 1.5 / 11 > 1 / 10, but 1.55 / 12 is less
      {slope, {{0.05f, 1}}, 0, 100, 0},    // 1.05 / 11 < 1 / 10
      {slope, {{1, 1, 1}}, 0, 2, 2},       // a cap
      {slope, {{0.2f}}, 5, 100, 1},        // beside 5 prompt rows: 1.2 / 16 = 0.075, 1 / 15 = 0.067
      {slope, {{0.05f}}, 5, 100, 0},       // 1.05 / 16 = 0.0656 < 0.0667
      {cliff, {{.9f, .9f}, {.9f, .9f}, {.9f, .9f}, {.9f, .9f}}, 0, 100, 0},  // 4 / 10 beats 7.6 / 20 and 10.8 / 40
      {cliff, {{1, 1}, {1, .9f}, {1, .9f}, {1, .9f}}, 0, 100, 0},            // 8 / 20 = 4 / 10: the smaller on a tie
      {cliff, {{.9f}, {.9f}, {.5f}}, 0, 100, 1},  // 3.9 / 10; a greedy search that stops at the cliff agrees here
  };
  for (const auto& r : table) {
    auto plan = plan_verify_capacity(r.table, {rows_of(r.confidences), r.other, r.cap});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->capacity, r.capacity) << plan->reason;
    EXPECT_FALSE(plan->reason.empty());
  }
  // A greedy search stops at the first step that does not pay; the argmax looks past the cliff (4 rows: 0.1 per ns
  // each).
  auto jagged = table_of({{1, 10}, {2, 25}, {8, 26}});
  auto plan = plan_verify_capacity(jagged, {rows_of({{1, 1, 1, 1, 1, 1, 1}}), 0, 100});
  EXPECT_EQ(plan->capacity, 7u) << plan->reason;
}

TEST(verify_lengths, refuses_to_trim_without_a_profile) {
  for (const auto& t : {step_cost_table{}, table_of({{1, 5}}), table_of({{1, 5}, {500, 5}})}) {
    auto plan = plan_verify_capacity(t, {rows_of({{.1f, .1f}, {.9f, .9f}}), 0, 100});
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->capacity, 4u);
    EXPECT_NE(plan->reason.find("no profiled step cost"), std::string::npos) << plan->reason;
  }
}

TEST(verify_lengths, few_requests_are_judged_by_their_mean) {
  const auto t = table_of({{1, 10}, {9, 20}});
  const auto good = rows_of({{1, 1, 1, 1}}), bad = rows_of({{0, 0, 0, 0}});
  auto capacity = [&](survival_memory& m, const confidence_rows& rows) {
    auto plan = plan_verify_capacity(t, {rows, 0, 100}, m);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan->capacity;
  };
  survival_memory m{.request_steps = 8};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(capacity(m, bad), 4u) << "step " << i << ": too few to trim by";
  EXPECT_EQ(capacity(m, bad), 0u);  // the eighth: nothing survives
  EXPECT_EQ(capacity(m, good),
            4u);  // the newest counts an eighth or a bit more: 1 + n / 8 tokens in 10 + 1.25 n, a tie within 0.1 %
  for (int i = 0; i < 20; ++i) capacity(m, bad);
  EXPECT_EQ(capacity(m, bad), 0u);
  for (int i = 0; i < 20; ++i) capacity(m, good);
  EXPECT_EQ(capacity(m, bad), 4u);  // one bad step among good ones
  // A batch as large as the memory is judged by itself, whatever was before.
  confidence_rows many{4, std::vector<float>(32, 0), std::vector<uint32_t>(8, 4)};
  EXPECT_EQ(capacity(m, many), 0u);
  // Another number of drafts: stretched. Half of 32 survive surely; of 8 that is 4, and of none nothing.
  survival_memory half{.request_steps = 8};
  for (size_t i = 0; i < 16; ++i) many.value[i] = 1;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(capacity(half, many), 16u);
  EXPECT_EQ(capacity(half, rows_of({{1, 1, 1, 1}, {0, 0, 0, 0}})), 4u);
  EXPECT_EQ(capacity(half, rows_of({{}, {}})), 0u);
  EXPECT_EQ(half.best.size(), 8u);
  // An error leaves the memory as it was; without a profile everything is verified.
  const auto before = half.best;
  EXPECT_FALSE(plan_verify_capacity(t, {confidence_rows{1, {1.5f}, {1}}, 0, 1}, half));
  EXPECT_EQ(half.best, before);
  EXPECT_EQ(plan_verify_capacity({}, {bad, 0, 3}, m)->capacity, 3u);
}

TEST(verify_lengths, assignment_table) {
  struct row {
    std::vector<std::vector<float>> confidences;
    uint32_t capacity;
    std::vector<uint32_t> lengths;
  };
  const row table[] = {
      {{}, 5, {}},
      {{{.5f, .5f}, {.9f, .9f}}, 0, {0, 0}},
      {{{.5f, .5f}, {.9f, .9f}}, 2, {0, 2}},  // .9 .81 .5 .25
      {{{.5f, .5f}, {.9f, .9f}}, 3, {1, 2}},
      {{{.5f, .5f}, {.9f, .9f}}, 9, {2, 2}},  // more than there is
      {{{1, 1}, {1, 1}}, 2, {1, 1}},          // ties: earlier positions first
      {{{1, 1}, {1, 1}}, 3, {2, 1}},          // then the lower request
      {{{0, 0}, {0, 0}}, 3, {2, 1}},
      {{{.5f}, {.9f, .9f, .9f}, {}}, 3, {0, 3, 0}},
      {{{.5f, 1}, {.6f, 1}}, 3, {1, 2}},  // .6 .6 .5 .5
  };
  for (const auto& r : table) {
    auto plan = assign_verify_lengths(rows_of(r.confidences), r.capacity);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->lengths, r.lengths) << plan->reason;
  }
}

TEST(verify_lengths, impossible_input) {
  for (confidence_rows bad :
       {confidence_rows{2, {0.5f}, {1}}, confidence_rows{1, {0.5f}, {2}}, confidence_rows{1, {1.5f}, {1}},
        confidence_rows{1, {-0.5f}, {1}}, confidence_rows{1, {NAN}, {1}}, confidence_rows{0, {}, {1}}}) {
    EXPECT_FALSE(plan_verify_capacity(table_of({{1, 1}, {2, 2}}), {bad, 0, 1}));
    EXPECT_FALSE(assign_verify_lengths(bad, 1));
  }
}

TEST(verify_lengths, random_steps_keep_the_rules) {
  const uint64_t seed = 77;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  for (int i = 0; i < 3000; ++i) {
    confidence_rows c;
    c.width = static_cast<uint32_t>(1 + random.below(7));
    for (uint64_t n = 1 + random.below(20); n > 0; --n)
      c.drafts.push_back(static_cast<uint32_t>(random.below(c.width + 1)));
    for (size_t k = 0; k < c.drafts.size() * c.width; ++k)
      c.value.push_back(random.below(4) ? static_cast<float>(random.below(9)) / 8 : 1.0f);
    std::vector<step_cost_point> points;
    for (uint32_t n = 1; n < 200; n += static_cast<uint32_t>(1 + random.below(30)))
      points.push_back({n, 10 + n * random.uniform() + (n > 64 ? 40 : 0)});
    auto t = table_of(points, {{1, 3}, {20, 6}}, static_cast<uint32_t>(random.below(100)));
    auto other = static_cast<uint32_t>(random.below(50));
    auto plan = plan_verify_capacity(t, {c, other, UINT32_MAX});
    ASSERT_TRUE(plan);
    // The argmax, found by trying every capacity through the assignment itself.
    double requests = static_cast<double>(c.drafts.size());
    uint32_t drafts = std::accumulate(c.drafts.begin(), c.drafts.end(), 0u);
    double best = 0, ours = 0;
    for (uint32_t n = 0; n <= drafts; ++n) {
      double rate = assign_verify_lengths(c, n)->tokens /
                    (step_cost(t.draft, 0, requests) + step_cost(t.verify, t.stairs, requests + other + n));
      best = std::max(best, rate);
      if (n == plan->capacity) ours = rate;
    }
    ASSERT_GE(ours, best * (1 - 1e-5)) << plan->reason;
    // The assignment: exactly the capacity, within what exists, and nothing left out that survives better than what is
    // in.
    auto lengths = assign_verify_lengths(c, plan->capacity);
    ASSERT_EQ(std::accumulate(lengths->lengths.begin(), lengths->lengths.end(), 0u), plan->capacity);
    double worst_in = 2, best_out = -1;
    for (size_t r = 0; r < c.drafts.size(); ++r) {
      ASSERT_LE(lengths->lengths[r], c.drafts[r]);
      double s = 1;
      for (uint32_t k = 0; k < c.drafts[r]; ++k) {
        s *= c.value[r * c.width + k];
        if (k < lengths->lengths[r])
          worst_in = std::min(worst_in, s);
        else
          best_out = std::max(best_out, s);
      }
    }
    ASSERT_GE(worst_in, best_out);
  }
}

// The paper's counterexample: SPS(1, 2, 3) = 1, 0.5, 0.45; the first draft survives with 0.8, the second with 0.9 if
// the first is A and with 0 if it is B; target (0.7, 0.3), draft (0.5, 0.5). Searching with the confidences of the very
// tokens that are decided on yields (0.85, 0.15).
TEST(verify_lengths, paper_counterexample) {
  const auto t = table_of({{1, 1 / 1.0}, {2, 1 / 0.5}, {3, 1 / 0.45}});
  const double target[2] = {0.7, 0.3}, draft[2] = {0.5, 0.5};
  auto confidences = [&](int first) { return rows_of({{0.8f, first == 0 ? 0.9f : 0.0f}}); };
  // Probability that the emitted token is A, given which capacity is chosen after the first draft is known.
  auto probability_of_a = [&](auto capacity_for) {
    double p = 0;
    for (int x : {0, 1}) {
      uint32_t length = assign_verify_lengths(confidences(x), capacity_for(x))->lengths[0];
      if (length == 0) {
        p += draft[x] * target[0];  // not verified: the target samples
      } else {
        double accept = std::min(1.0, target[x] / draft[x]);
        double residual_a = std::max(0.0, target[0] - draft[0]) > 0 ? 1 : 0;  // the residual distribution is all on A
        p += draft[x] * (accept * (x == 0) + (1 - accept) * residual_a);
      }
    }
    return p;
  };
  auto retrospective = [&](int x) { return plan_verify_capacity(t, {confidences(x), 0, 2})->capacity; };
  EXPECT_EQ(retrospective(0), 2u);
  EXPECT_EQ(retrospective(1), 0u);
  EXPECT_NEAR(probability_of_a(retrospective), 0.85, 1e-9);  // the mistake, made on purpose
  // Ours: the capacity is settled by older confidences, whatever they are.
  for (float c1 : {0.0f, 0.3f, 0.8f, 1.0f}) {
    for (float c2 : {0.0f, 0.5f, 0.9f, 1.0f}) {
      uint32_t settled = plan_verify_capacity(t, {rows_of({{c1, c2}}), 0, 2})->capacity;
      EXPECT_NEAR(probability_of_a([&](int) { return settled; }), 0.7, 1e-9) << c1 << " " << c2;
    }
  }
}

// Whether draft k is verified must not depend on the request's own later confidences: change them and look.
TEST(verify_lengths, later_confidences_do_not_decide_on_earlier_drafts) {
  rng random{6};
  for (int i = 0; i < 2000; ++i) {
    confidence_rows c;
    c.width = 5;
    c.drafts.assign(4, 5);
    for (int k = 0; k < 20; ++k) c.value.push_back(static_cast<float>(random.below(5)) / 4);
    auto capacity = static_cast<uint32_t>(random.below(21));
    auto before = assign_verify_lengths(c, capacity)->lengths;
    size_t r = random.below(4), k = random.below(5);
    for (size_t j = k + 1; j < 5; ++j) c.value[r * 5 + j] = static_cast<float>(random.below(5)) / 4;
    auto after = assign_verify_lengths(c, capacity)->lengths;
    EXPECT_EQ(before[r] > k, after[r] > k) << "draft " << k << " of request " << r;
  }
}

TEST(confidence, calibration_finds_the_temperatures) {
  const uint64_t seed = 12;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  const double truth[] = {2.0, 0.5, 1.0, 1.5, 3.0};
  std::vector<confidence_sample> samples;
  for (int i = 0; i < 20'000; ++i) {
    confidence_sample s;
    bool alive = true;
    for (double t : truth) {
      double logit = 1.2 + 3 * (random.uniform() - 0.5);
      s.logits.push_back(logit * t);  // the head is t times too sure
      alive = alive && random.uniform() < 1 / (1 + std::exp(-logit));
      s.accepted += alive;
    }
    samples.push_back(s);
  }
  auto plan = calibrate_confidence(samples);
  ASSERT_TRUE(plan);
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_NEAR(std::log(plan->temperatures[k] / truth[k]), 0, 0.2) << k;
    EXPECT_LT(plan->error_after[k], 0.012) << k;
    EXPECT_LE(plan->error_after[k], plan->error_before[k] + 0.005) << k;
  }
  EXPECT_GT(*std::max_element(plan->error_before.begin(), plan->error_before.end()), 0.03);
  std::printf("%s\n", plan->reason.c_str());
  samples.resize(99);
  EXPECT_FALSE(calibrate_confidence(samples));
  samples.resize(100, {{1, 2}, 3});
  EXPECT_FALSE(calibrate_confidence(samples));
  samples.back() = {{1, 2, 3, 4, NAN}, 0};
  EXPECT_FALSE(calibrate_confidence(samples));
}

TEST(speculation, buckets) {
  EXPECT_EQ(bucket_of(0, 0), (speculation_bucket{0, 0}));
  EXPECT_EQ(bucket_of(1, 1), (speculation_bucket{0, 0}));
  EXPECT_EQ(bucket_of(64, 131072), (speculation_bucket{6, 17}));
  EXPECT_EQ(bucket_of(127, 131071), (speculation_bucket{6, 16}));
  EXPECT_EQ(bucket_of(UINT32_MAX, UINT64_MAX), (speculation_bucket{31, 63}));
}

// Good drafts, then useless ones, then good ones again: in each phase the switch ends up on the better side, and what
// it loses against the better side is bounded by its trials.
TEST(speculation, never_a_net_loss) {
  const uint64_t seed = 31;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  const auto t = table_of({{8, 8e6}, {48, 16e6}}, {{8, 1e6}});
  speculation_cell cell;
  EXPECT_TRUE(plan_speculation(cell, t, 8).draft);
  for (double acceptance : {0.8, 0.1, 0.8, 0.0}) {
    double tokens = 0, time = 0, tokens_on = 0;
    const int steps = 20'000;
    for (int i = 0; i < steps; ++i) {
      auto plan = plan_speculation(cell, t, 8);
      ASSERT_FALSE(plan.reason.empty());
      speculation_sample s{plan.draft, 8, plan.draft ? 40u : 0u, 8, 0, 0};
      uint32_t accepted = 0;
      for (int r = 0; r < 8; ++r) {
        for (int k = 0; k < 5 && random.uniform() < acceptance; ++k) ++accepted;
      }
      tokens_on += 8 + accepted;
      if (plan.draft) s.tokens += accepted;
      s.ns = (plan.draft ? 17e6 : 8e6) * (0.97 + 0.06 * random.uniform());
      ASSERT_TRUE(observe(cell, t, s));
      tokens += s.tokens, time += s.ns;
    }
    const double on = tokens_on / (steps * 17e6), off = 8 / 8e6;
    std::printf("acceptance %.1f: %.4f of the better side (on / off = %.3f)\n", acceptance,
                tokens / time / std::max(on, off), on / off);
    EXPECT_GE(tokens / time, 0.985 * std::max(on, off));
    if (is_decided(cell)) {
      EXPECT_EQ(plan_speculation(cell, t, 8).draft, on > off);
    }
  }
  for (speculation_sample bad : {speculation_sample{true, 0, 0, 0, 0, 1},
                                 {true, 4, 0, 3, 0, 1},
                                 {false, 4, 0, 5, 0, 1},
                                 {false, 4, 1, 4, 0, 1},
                                 {true, 4, 1, 4, 0, 0},
                                 {true, 4, 1, 6, 0, 1},
                                 {true, 4, 1, 4, 0, NAN}}) {
    EXPECT_FALSE(observe(cell, t, bad));
  }
}

TEST(verify_lengths, from_the_shell) {
  const auto* p = find_policy("verify_lengths");
  ASSERT_TRUE(p);
  auto ask = [&](const char* text) { return p->run(nlohmann::json::parse(text)); };
  auto out = ask(R"({"verify":[{"n":1,"ns":10},{"n":11,"ns":20}],"stale":[[0.5,0.1]],"current":[[0.2,0.9]]})");
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ((*out)["capacity"], 1);
  EXPECT_EQ((*out)["lengths"], nlohmann::json({1}));
  EXPECT_EQ((*ask(R"({"verify":[],"stale":[[0.5,0.1]],"current":[[0.2,0.9]]})"))["capacity"], 2);
  EXPECT_FALSE(ask(R"({"verify":[],"stale":[[1.5]],"current":[[0.2]]})"));
  auto off =
      find_policy("speculation")
          ->run(nlohmann::json::parse(R"({"verify":[{"n":1,"ns":10},{"n":11,"ns":20}],"requests":1,"steps":[]})"));
  ASSERT_TRUE(off) << off.error().message;
  EXPECT_EQ((*off)["draft"], true);
}

}  // namespace
}  // namespace troupe::policies
