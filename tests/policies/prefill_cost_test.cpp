// Chunk sizes against the published illustration, a validator that only evaluates the cost, and the fit on noisy
// samples.
#include "policies/prefill_cost.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "policies/registry.hpp"
#include "runtime/base/rng.hpp"

#include <nlohmann/json.hpp>

namespace troupe::policies {
namespace {

// The coefficients and the budget with which the article on DeepSeek's serving engine illustrates its scheduler.
constexpr prefill_cost article{2e-3, 2e-2, 9e3};
constexpr uint64_t article_budget = 400'000'000;

TEST(prefill_cost, published_chunk_sizes) {
  struct row {
    uint64_t cached;
    uint32_t tokens;
    double ms;
  };
  const row table[] = {
      {0, 32768, 297.1},
      {64'000, 32768, 339.0},
      {256'000, 28215, 400.0},
      {900'000, 14798, 400.0},
  };
  for (const auto& r : table) {
    auto plan = plan_chunk_size({article_budget, r.cached, article, 32768});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->tokens, r.tokens) << r.cached;
    EXPECT_NEAR(plan->cost_ns / 1e6, r.ms, 0.05) << r.cached;
  }
}

TEST(prefill_cost, edges) {
  struct row {
    uint64_t budget, cached;
    prefill_cost cost;
    uint32_t cap, tokens;
  };
  const row table[] = {
      {0, 0, article, 32768, 0},                     // no time, no tokens
      {8'999, 0, article, 32768, 0},                 // a nanosecond short of one token
      {9'001, 0, article, 32768, 1},                 // just one
      {article_budget, 0, article, 0, 0},            // nothing left to run
      {article_budget, 0, article, 1, 1},            // the cap decides
      {100, 0, {0, 0, 10}, 32768, 10},               // linear
      {100, 7, {0, 1, 0}, 32768, 14},                // prefix only: 100 / 7
      {100, 0, {1, 0, 0}, 32768, 10},                // square only
      {100, 0, {0, 1, 0}, 32768, 32768},             // free because nothing is cached
      {UINT64_MAX, UINT64_MAX, article, 32768, 49},  // huge: 1.8e19 / (0.02 * 1.8e19)
      {UINT64_MAX, 0, article, UINT32_MAX, UINT32_MAX},
  };
  for (const auto& r : table) {
    if (r.cost.a == 0 && r.cost.b * static_cast<double>(r.cached) + r.cost.d == 0) {
      EXPECT_FALSE(
          plan_chunk_size({r.budget, r.cached, r.cost, r.cap}));  // no size is too large: the model is not fitted
      continue;
    }
    auto plan = plan_chunk_size({r.budget, r.cached, r.cost, r.cap});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_NEAR(plan->tokens, r.tokens, r.budget == UINT64_MAX && r.cached ? 1 : 0)
        << r.budget << " " << r.cached << " " << plan->reason;
    EXPECT_FALSE(plan->reason.empty());
  }
  for (prefill_cost bad : {prefill_cost{-1, 0, 1}, {0, NAN, 1}, {0, 0, INFINITY}, {0, 0, 0}, {0, 0, -1}}) {
    auto plan = plan_chunk_size({100, 0, bad, 10});
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, errc::invalid_argument);
  }
}

TEST(prefill_cost, the_largest_size_that_fits) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  auto magnitude = [&](double low, double high) { return std::pow(10, low + (high - low) * random.uniform()); };
  for (int i = 0; i < 20'000; ++i) {
    prefill_cost c{random.below(4) ? magnitude(-6, 2) : 0, random.below(4) ? magnitude(-6, 2) : 0, magnitude(-3, 5)};
    uint64_t budget = static_cast<uint64_t>(magnitude(0, 10)), cached = random.below(1 << 20);
    uint32_t cap = static_cast<uint32_t>(1 + random.below(100'000));
    auto plan = plan_chunk_size({budget, cached, c, cap});
    ASSERT_TRUE(plan);
    auto cost = [&](double q) { return c.a * q * q + c.b * q * static_cast<double>(cached) + c.d * q; };
    double slack = 1e-9 * static_cast<double>(budget);
    EXPECT_LE(plan->tokens, cap);
    EXPECT_LE(cost(plan->tokens), static_cast<double>(budget) + slack);
    EXPECT_TRUE(plan->tokens == cap || cost(plan->tokens + 1.0) > static_cast<double>(budget) - slack) << plan->tokens;
  }
}

TEST(prefill_cost, group_budget) {
  struct row {
    std::vector<uint64_t> budgets;
    uint64_t budget;
    size_t rank;
  };
  const row table[] = {
      {{5}, 5, 0},
      {{7, 3, 9}, 3, 1},
      {{4, 4, 4}, 4, 0},  // equal: the lowest rank is named
      {{UINT64_MAX, 12, UINT64_MAX}, 12, 1},
      {{UINT64_MAX, UINT64_MAX}, UINT64_MAX, 0},
      {{1, 0}, 0, 1},
  };
  for (const auto& r : table) {
    auto plan = plan_group_budget(r.budgets);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->budget_ns, r.budget);
    EXPECT_EQ(plan->rank, r.rank);
  }
  EXPECT_FALSE(plan_group_budget({}));
}

std::vector<cost_sample> measured(rng& random, const prefill_cost& truth, size_t n, double noise, double nonsense) {
  std::vector<cost_sample> out;
  for (size_t i = 0; i < n; ++i) {
    double q = 128.0 * static_cast<double>(1 + random.below(256)), c = 128.0 * static_cast<double>(random.below(4096));
    double t = truth(q, c) * (1 + noise * (2 * random.uniform() - 1));
    if (random.uniform() < nonsense) t *= random.below(2) ? 3 + 20 * random.uniform() : 0.1 * random.uniform() + 1e-3;
    out.push_back({q, c, t});
  }
  return out;
}

// Steps of several prompts, as a busy rank has them, say as much as steps of one.
TEST(prefill_cost, fit_from_steps_of_several_chunks) {
  rng random{5};
  std::vector<cost_sample> samples;
  for (int i = 0; i < 64; ++i) {
    double q = 0, qq = 0, qc = 0, t = 0;
    for (uint64_t k = 0, n = 2 + random.below(6); k < n; ++k) {
      const double rows = double(64 + random.below(2000)), before = double(random.below(100'000));
      q += rows;
      qq += rows * rows;
      qc += rows * before;
      t += article(rows, before);
    }
    samples.push_back({q, qc / q, t, qq / q});
  }
  auto fit = fit_prefill_cost({samples, {}, 0.25});
  ASSERT_TRUE(fit) << fit.error().message;
  EXPECT_NEAR(fit->cost.a, article.a, 1e-6 * article.a);
  EXPECT_NEAR(fit->cost.b, article.b, 1e-6 * article.b);
  EXPECT_NEAR(fit->cost.d, article.d, 1e-6 * article.d);
  cost_window window;
  EXPECT_FALSE(observe(window, {100, 0, 1e6, 101})) << "more than all of them";
  EXPECT_TRUE(observe(window, {100, 0, 1e6, 50}));
}

TEST(prefill_cost, fit_finds_the_coefficients_again) {
  struct row {
    double noise, nonsense, tolerance;
  };
  const row table[] = {
      {0, 0, 1e-6},       // exact samples
      {0.02, 0, 0.02},    // 2 % jitter
      {0.02, 0.1, 0.02},  // and every tenth sample is nonsense
      {0.02, 0.3, 0.03},  // and every third
  };
  const uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  for (const auto& r : table) {
    for (int i = 0; i < 20; ++i) {
      auto samples = measured(random, article, 256, r.noise, r.nonsense);
      auto plan = fit_prefill_cost({samples, {}, 0.25});
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_NEAR(plan->cost.b / article.b, 1, r.tolerance);
      EXPECT_NEAR(plan->cost.d / article.d, 1, 3 * r.tolerance);
      // a alone is weakly determined (attention inside a chunk is a tenth of the work): what counts is the predicted
      // time.
      for (double q : {1024.0, 8192.0, 32768.0}) {
        for (double c : {0.0, 65536.0, 400'000.0})
          EXPECT_NEAR(plan->cost(q, c) / article(q, c), 1, 2 * r.tolerance) << q << " " << c;
      }
      EXPECT_GE(plan->outliers, r.nonsense > 0 ? 10u : 0u);
    }
  }
}

TEST(prefill_cost, fit_refuses_nonsense) {
  rng random{3};
  auto good = measured(random, article, 64, 0.01, 0);
  EXPECT_FALSE(fit_prefill_cost({std::span(good).first(7), {}, 0.25}));  // too few
  std::vector<cost_sample> same(64, cost_sample{1000, 5000, 1e7});
  EXPECT_FALSE(fit_prefill_cost({same, {}, 0.25}));  // nothing varies
  auto cold = good;
  for (auto& s : cold) s.cached = 0, s.time_ns = article(s.tokens, 0);
  auto plan = fit_prefill_cost({cold, {}, 0.25});
  ASSERT_FALSE(plan);  // b is open
  EXPECT_EQ(plan.error().code, errc::unavailable);
  plan = fit_prefill_cost({cold, prefill_cost{1, 0.5, 1}, 0.25});
  ASSERT_TRUE(plan) << plan.error().message;  // and comes from the prior
  EXPECT_NEAR(plan->cost.b, 0.5, 0.01);
  EXPECT_NEAR(plan->cost(20'000, 0) / article(20'000, 0), 1, 1e-3);
  auto wild = good;
  for (auto& s : wild) s.time_ns = 1e3 * std::pow(10, 5 * random.uniform());  // times without any relation to the work
  EXPECT_FALSE(fit_prefill_cost({wild, {}, 0.25}));
  EXPECT_FALSE(fit_prefill_cost({good, prefill_cost{-1, 0, 0}, 0.25}));
  cost_window window;
  for (cost_sample bad :
       {cost_sample{0, 0, 1}, {1, -1, 1}, {1, 0, 0}, {1, 0, -5}, {NAN, 0, 1}, {1, INFINITY, 1}, {1, 0, NAN}}) {
    EXPECT_FALSE(observe(window, bad));
  }
  EXPECT_TRUE(window.samples.empty());
}

// The machine becomes half as fast: a window of the newest 256 samples follows.
TEST(prefill_cost, fit_follows_a_change_online) {
  const uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  cost_window window;
  prefill_cost slow{2 * article.a, 2 * article.b, 2 * article.d}, now;
  for (int step = 0; step < 1000; ++step) {
    auto s = measured(random, step < 500 ? article : slow, 1, 0.02, 0.05)[0];
    ASSERT_TRUE(observe(window, s));
    EXPECT_LE(window.samples.size(), 256u);
    if (step % 50 != 49) continue;
    auto plan = fit_prefill_cost({window.samples, now.d > 0 ? std::optional(now) : std::nullopt, 0.25});
    ASSERT_TRUE(plan) << plan.error().message;
    now = plan->cost;
    if (step == 499) {
      EXPECT_NEAR(now(8192, 65536) / article(8192, 65536), 1, 0.02);
    }
  }
  EXPECT_NEAR(now(8192, 65536) / slow(8192, 65536), 1, 0.02);
}

TEST(prefill_cost, from_the_shell) {
  const auto* chunk = find_policy("chunk");
  ASSERT_TRUE(chunk);
  auto out = chunk->run(
      {{"budget_ns", 400000000}, {"cached", 256000}, {"a", 2e-3}, {"b", 2e-2}, {"d", 9e3}, {"max_tokens", 32768}});
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ((*out)["tokens"], 28215);
  for (nlohmann::json bad : {nlohmann::json::array(), nlohmann::json{{"a", 1}}, nlohmann::json(),
                             nlohmann::json{{"budget_ns", -1}, {"a", 1}, {"b", 1}, {"d", 1}},
                             nlohmann::json{{"budget_ns", 1}, {"a", "1"}, {"b", 1}, {"d", 1}},
                             nlohmann::json{{"budget_ns", 1}, {"a", 1}, {"b", 1}, {"d", 1}, {"e", 1}}}) {
    auto r = chunk->run(bad);
    ASSERT_FALSE(r) << bad;
    EXPECT_EQ(r.error().code, errc::invalid_argument);
  }
  auto budget = find_policy("group_budget")->run({{"budgets_ns", {5, 3}}});
  ASSERT_TRUE(budget);
  EXPECT_EQ((*budget)["budget_ns"], 3);
  rng random{1};
  nlohmann::json rows = nlohmann::json::array();
  for (auto& s : measured(random, article, 32, 0, 0))
    rows.push_back({{"tokens", s.tokens}, {"cached", s.cached}, {"time_ns", s.time_ns}});
  auto fit = find_policy("chunk_fit")->run({{"samples", rows}});
  ASSERT_TRUE(fit) << fit.error().message;
  EXPECT_NEAR((*fit)["b"].get<double>(), 2e-2, 1e-6);
}

}  // namespace
}  // namespace troupe::policies
