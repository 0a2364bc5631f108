// Splits of a batch among copies: tables, a validator that adds up rows, the linear-programming optimum by maximum
// flows, and live loads fitted to a published figure.
#include "policies/copy_split.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "policies/eplb.hpp"
#include "policies/registry.hpp"
#include "tests/policies/exact_split.hpp"
#include "tests/policies/live_loads.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe::policies {
namespace {

using copies_t = std::vector<std::vector<uint32_t>>;

std::string broken_split_rule(const copies_t& copies, const std::vector<double>& rows, const copy_table& t,
                              const copy_split_plan& p) {
  double total = std::accumulate(rows.begin(), rows.end(), 0.0), slack = 1e-9 * std::max(1.0, total), most = 0;
  std::vector<double> load(t.ranks, 0.0);
  for (size_t e = 0; e < copies.size(); ++e) {
    double sum = 0;
    for (uint32_t i = t.first[e]; i < t.first[e + 1]; ++i) {
      if (p.share[i] < 0) return "a negative share";
      if (std::find(copies[e].begin(), copies[e].end(), t.rank[i]) == copies[e].end())
        return "rows go where no copy is";
      sum += p.share[i];
      load[t.rank[i]] += p.share[i];
    }
    if (std::abs(sum - rows[e]) > slack) return "rows of an expert are lost or made up";
  }
  for (size_t r = 0; r < load.size(); ++r) {
    if (std::abs(load[r] - p.load[r]) > slack) return "loads are wrong";
    most = std::max(most, load[r]);
  }
  if (std::abs(most - p.busiest) > slack) return "the busiest rank is wrong";
  if (p.bound > p.busiest + slack) return "the bound is above what was reached";
  return p.reason.empty() ? "no reason" : "";
}

TEST(copy_split, table) {
  struct row {
    copies_t copies;
    std::vector<double> rows;
    uint32_t ranks;
    double busiest;
  };
  const row table[] = {
      {{}, {}, 1, 0},                                       // no experts
      {{{0}}, {7}, 1, 7},                                   // one of everything
      {{{0}, {1}}, {7, 3}, 2, 7},                           // nothing to split
      {{{0}, {1}, {0, 1}}, {6, 2, 4}, 2, 6},                // all of it to the idle one
      {{{0}, {1}, {0, 1}}, {6, 2, 8}, 2, 8},                // level
      {{{0}, {1}, {1, 0, 1}}, {6, 2, 8}, 2, 8},             // two copies on a rank count as one
      {{{0, 1}, {1, 2}, {2, 3}}, {12, 0, 0}, 4, 6},         // neighbours do not help where they have no copy
      {{{0, 1}, {1, 2}, {2, 3}, {0}}, {4, 4, 4, 4}, 4, 4},  // a chain passes load on
      {{{0, 1, 2, 3}}, {10}, 4, 2.5},
      {{{0, 1}, {0, 1}}, {0, 0}, 2, 0},        // no rows
      {{{0, 1}, {0}}, {1e30, 1e30}, 2, 1e30},  // huge
  };
  for (const auto& r : table) {
    auto t = make_copy_table(r.copies, r.ranks);
    ASSERT_TRUE(t);
    auto plan = plan_copy_split(*t, r.rows, {1e-6, 200});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_NEAR(plan->busiest, r.busiest, 1e-5 * std::max(1.0, r.busiest)) << plan->reason;
    EXPECT_EQ(broken_split_rule(r.copies, r.rows, *t, *plan), "");
  }
}

TEST(copy_split, impossible_input) {
  EXPECT_FALSE(make_copy_table({{0}, {}}, 1));
  EXPECT_FALSE(make_copy_table({{0}, {1}}, 1));
  EXPECT_FALSE(make_copy_table({{0}}, 0));
  auto t = *make_copy_table({{0}, {0, 1}}, 2);
  EXPECT_FALSE(plan_copy_split(t, std::vector<double>{1}));
  EXPECT_FALSE(plan_copy_split(t, std::vector<double>{1, -1}));
  EXPECT_FALSE(plan_copy_split(t, std::vector<double>{1, NAN}));
  EXPECT_FALSE(plan_copy_split(copy_table{}, std::vector<double>{}));
}

TEST(copy_split, whole_rows_add_up) {
  EXPECT_EQ(whole_rows(std::vector<double>{1.5, 1.5}, 3), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(whole_rows(std::vector<double>{0, 0}, 3), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(whole_rows(std::vector<double>{5}, 9), (std::vector<uint32_t>{9}));
  EXPECT_EQ(whole_rows(std::vector<double>{}, 9), (std::vector<uint32_t>{}));
  rng random{8};
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> share;
    for (uint64_t n = 1 + random.below(5); n > 0; --n) share.push_back(random.uniform() * 10);
    auto total = static_cast<uint32_t>(random.below(1000));
    auto out = whole_rows(share, total);
    double sum = std::accumulate(share.begin(), share.end(), 0.0);
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0u), total);
    for (size_t k = 0; k < share.size(); ++k) EXPECT_NEAR(out[k], share[k] / sum * total, 1.0 + 1e-9);
  }
}

TEST(copy_split, random_placements_against_maximum_flow) {
  const uint64_t seed = 17;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  double worst = 0;
  for (int i = 0; i < tests::cases(500, 60); ++i) {
    auto ranks = static_cast<uint32_t>(1 + random.below(12)), experts = static_cast<uint32_t>(1 + random.below(30));
    copies_t copies(experts);
    std::vector<double> rows(experts);
    for (uint32_t e = 0; e < experts; ++e) {
      for (uint64_t n = 1 + random.below(std::min(ranks, 3u)); n > 0; --n)
        copies[e].push_back(static_cast<uint32_t>(random.below(ranks)));
      std::sort(copies[e].begin(), copies[e].end());
      copies[e].erase(std::unique(copies[e].begin(), copies[e].end()), copies[e].end());
      rows[e] = static_cast<double>(random.below(4) ? random.below(100) : random.below(1000));
    }
    auto t = *make_copy_table(copies, ranks);
    auto plan = plan_copy_split(t, rows);
    ASSERT_TRUE(plan);
    ASSERT_EQ(broken_split_rule(copies, rows, t, *plan), "");
    double best = exact_split(copies, rows, ranks);
    ASSERT_LE(plan->bound, best * (1 + 1e-9) + 1e-9) << "the bound is not one, load " << i;
    if (best > 0) worst = std::max(worst, plan->busiest / best);
    ASSERT_LE(plan->busiest, best * 1.01 + 1e-9) << "load " << i << ": " << plan->reason;
  }
  std::printf("seed %lu: worst of %d splits %.3f %% above the optimum\n", seed, tests::cases(500, 60),
              100 * (worst - 1));
}

// --- live loads
// -------------------------------------------------------------------------------------------------------

struct deployment {
  const char* name;
  uint32_t gpus, slots;
  live_step step;
};
// Prefill: four ranks, each with one chunk of 32,768 tokens of one request; 4 redundant experts per GPU. Decode: 60
// sequences per rank with 1 + 3.58 rows each (the published production point); one redundant expert per GPU. 6 experts
// per row.
const deployment prefill{"EP4 prefill", 4, 400, {4, 4ull * 32768 * 6, false}};
const deployment decode{"EP64 decode", 64, 448, {64 * 60, 64ull * 60 * 458 / 100 * 6, true}};

struct live_result {
  double even = 0, split = 0, lagged = 0, smooth = 0, optimum = 0;  // lb per step, averaged
  double worst_gap = 0;                                             // of split over the optimum
  double sweeps = 0;
};

live_result serve(const live_model& m, const deployment& d, eplb_algorithm algorithm, uint64_t seed, int layers,
                  int steps, bool solve) {
  live_result out;
  for (int l = 0; l < layers; ++l) {
    // A stream per layer and step: the same noise whatever the model's parameters, so that fits are smooth.
    auto stream = [&](int step) { return rng{seed, static_cast<uint64_t>(l) << 32 | static_cast<uint32_t>(step)}; };
    rng random = stream(0);
    live_layer layer = make_live_layer(random, m);
    std::vector<double> window(m.experts, 0.0);  // 32 steps stand for the published windows of 1,000 and more
    for (int s = 0; s < 32; ++s) {
      rng fork = stream(1000 + s);
      auto mix = draw_mix(fork, m, layer.window, d.step);
      auto counts = draw_counts(fork, m, mix, d.step);
      for (uint32_t e = 0; e < m.experts; ++e) window[e] += counts[e];
    }
    auto plan = plan_eplb({algorithm, {window}, d.slots, 1, 1, d.gpus});
    EXPECT_TRUE(plan);
    copies_t copies(m.experts);
    for (uint32_t s = 0; s < d.slots; ++s)
      copies[static_cast<size_t>(plan->phy2log[0][s])].push_back(s / (d.slots / d.gpus));
    auto table = make_copy_table(copies, d.gpus);
    EXPECT_TRUE(table);
    std::vector<double> previous, average, mix;
    // The busiest rank if the rows split by the fractions of an earlier plan.
    auto by_fractions = [&](const std::vector<double>& share, const std::vector<double>& counts) {
      std::vector<double> load(d.gpus, 0.0);
      for (size_t e = 0; e < counts.size(); ++e) {
        double sum = 0;
        for (uint32_t i = table->first[e]; i < table->first[e + 1]; ++i) sum += share[i];
        for (uint32_t i = table->first[e]; i < table->first[e + 1]; ++i) {
          load[table->rank[i]] +=
              counts[e] * (sum > 0 ? share[i] / sum : 1.0 / (table->first[e + 1] - table->first[e]));
        }
      }
      return *std::max_element(load.begin(), load.end());
    };
    for (int s = 0; s <= steps; ++s) {
      rng fork = stream(2000 + s);
      if (mix.empty() || !d.step.persists) mix = draw_mix(fork, m, layer.now, d.step);
      auto counts = draw_counts(fork, m, mix, d.step);
      auto split = plan_copy_split(*table, counts);
      EXPECT_TRUE(split);
      if (s > 0) {  // the first step only provides the previous fractions
        const double mean = static_cast<double>(d.step.picks) / d.gpus, n = static_cast<double>(layers) * steps;
        out.even += eplb_lb(counts, plan->phy2log[0], d.gpus) / n;
        out.split += split->busiest / mean / n;
        out.sweeps += split->sweeps / n;
        out.lagged += by_fractions(previous, counts) / mean / n;
        out.smooth += by_fractions(plan_copy_split(*table, average)->share, counts) / mean / n;
        if (solve) {
          double best = exact_split(copies, counts, d.gpus);
          out.optimum += best / mean / n;
          out.worst_gap = std::max(out.worst_gap, split->busiest / best - 1);
        }
      }
      previous = split->share;
      average.resize(counts.size());
      for (size_t e = 0; e < counts.size(); ++e)
        average[e] = s == 0 ? counts[e] : average[e] + (counts[e] - average[e]) / std::min(s + 1, 16);
    }
  }
  return out;
}

TEST(copy_split, live_loads) {
  const bool long_run = std::getenv("TROUPE_LONG") != nullptr;
  const int layers = long_run ? 40 : 8, steps = long_run ? 40 : 10;
  const uint64_t seed = 2026;
  std::printf("seed %lu, %d layers, %d steps\n", seed, layers, steps);
  SCOPED_TRACE("seed " + std::to_string(seed));
  // Fit: the published live lb of EP4 is 1.074. Only the drift (how much requests differ) moves it; bisection.
  live_model m;
  double low = 0.1, high = 2, fitted = 0, drift = 0;
  for (int i = 0; i < 10;
       ++i) {  // the placement jumps with the loads, so lb is not quite continuous: the closest one counts
    m.drift = (low + high) / 2;
    double lb = serve(m, prefill, eplb_algorithm::global, seed, 2 * layers, 2 * steps, false).even;
    if (std::abs(lb - 1.074) < std::abs(fitted - 1.074)) fitted = lb, drift = m.drift;
    (lb < 1.074 ? low : high) = m.drift;
  }
  m.drift = drift;
  std::printf("fit: skew %.2f, wander %.2f, drift %.3f -> global at EP4 %.4f (published 1.074)\n", m.skew, m.wander,
              m.drift, fitted);
  EXPECT_NEAR(fitted, 1.074, 0.002);
  for (const auto& d : {prefill, decode}) {
    for (auto a : {eplb_algorithm::global, eplb_algorithm::balanced}) {
      auto r = serve(m, d, a, seed + 1, layers, steps, true);
      std::printf(
          "%s, %s: even %.4f, copy_split %.4f (%.1f sweeps; fractions of the previous step %.4f, of the last 16 %.4f), "
          "optimum %.4f, worst gap %.2f %%\n",
          d.name, a == eplb_algorithm::global ? "global" : "balanced", r.even, r.split, r.sweeps, r.lagged, r.smooth,
          r.optimum, 100 * r.worst_gap);
      EXPECT_LE(r.worst_gap, 0.01);
      EXPECT_LT(r.split, r.even);
      if (d.gpus == 64 && a == eplb_algorithm::global) {
        EXPECT_NEAR(r.even, 1.090, 0.03) << "the prediction is far from the published lb";
      }
    }
  }
}

TEST(copy_split, from_the_shell) {
  const auto* p = find_policy("copy_split");
  ASSERT_TRUE(p);
  auto out = p->run({{"rows", {6, 2, 8}}, {"copies", {{0}, {1}, {1, 0}}}, {"ranks", 2}, {"tolerance", 1e-9}});
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_NEAR((*out)["share"][2][0].get<double>(), 6, 1e-6);  // in the order of the question
  EXPECT_NEAR((*out)["share"][2][1].get<double>(), 2, 1e-6);
  EXPECT_FALSE(p->run({{"rows", {6}}, {"copies", {{0}, {1}}}, {"ranks", 2}}));
  EXPECT_FALSE(p->run({{"rows", {6}}, {"copies", {{0}}}, {"ranks", 0}}));
}

}  // namespace
}  // namespace troupe::policies
