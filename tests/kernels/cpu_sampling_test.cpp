// Sampling: against the definition in double precision, its distribution, and the same tokens on every path.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/kernels/cpu_test_util.hpp"

namespace troupe::kernels::cpu {
namespace {

/// The definition, by full sorts.
int32_t sample_by_definition(const float* logits, uint32_t n, const sample_row& row) {
  std::vector<double> l(n);
  std::vector<uint32_t> set;
  for (uint32_t t = 0; t < n; ++t) {
    l[t] = row.temperature > 0 ? double(logits[t]) / row.temperature : logits[t];
    if (std::find(row.banned, row.banned + row.banned_count, int32_t(t)) == row.banned + row.banned_count)
      set.push_back(t);
  }
  std::stable_sort(set.begin(), set.end(), [&](uint32_t a, uint32_t b) { return l[a] > l[b]; });
  if (!(row.temperature > 0)) return int32_t(set[0]);
  if (row.top_k > 0 && set.size() > row.top_k) set.resize(row.top_k);
  double total = 0, sum = 0;
  for (uint32_t t : set) total += std::exp(l[t] - l[set[0]]);
  size_t kept = 0;
  while (kept < set.size() && (kept == 0 || sum < row.top_p * total)) sum += std::exp(l[set[kept++]] - l[set[0]]);
  if (row.top_p < 1) set.resize(kept);
  std::sort(set.begin(), set.end());
  double best = -1e300;
  uint32_t token = 0;
  for (uint32_t t : set) {
    const auto w = philox({t / 4, row.position, 0, 0}, {uint32_t(row.seed), uint32_t(row.seed >> 32)});
    const double u = (double(w[t % 4] >> 8) + 0.5) / 16777216.0, value = l[t] - std::log(-std::log(u));
    if (value > best) {
      best = value;
      token = t;
    }
  }
  return int32_t(token);
}

TEST(sampling, follows_the_definition_on_every_path) {
  const uint32_t n = 48, vocabulary = 1003;
  rng r(41);
  SCOPED_TRACE("seed 41");
  const auto logits = random_floats(r, n * vocabulary, 6);
  const int32_t banned[] = {3, 500, 1002, -1, 5000};
  std::vector<sample_row> rows(n);
  for (uint32_t i = 0; i < n; ++i) {
    rows[i].temperature = i % 4 == 0 ? 0.0f : 0.3f * float(i % 4);
    rows[i].top_k = i % 3 == 0 ? 0 : i % 3 == 1 ? 40 : 5;
    rows[i].top_p = i % 5 == 0 ? 1.0f : 0.2f * float(i % 5);
    rows[i].seed = r.next();
    rows[i].position = uint32_t(r.below(100000));
    rows[i].banned = banned;
    rows[i].banned_count = i % 2 ? 5 : 0;
    rows[i].logprobs = int32_t(i % 7) - 1;
  }
  std::vector<float> logprobs(n), top_logprobs(n * operators::max_top);
  std::vector<int32_t> tokens(n), top_tokens(n * operators::max_top);
  auto compute = [&](operators& ops, uint32_t batch) {
    in_batches(n, batch, [&](uint32_t i, uint32_t m) {
      ops.sample({}, &logits[i * vocabulary], m, vocabulary, &rows[i], &tokens[i], &logprobs[i],
                 &top_tokens[i * operators::max_top], &top_logprobs[i * operators::max_top]);
    });
    std::vector<float> all(tokens.begin(), tokens.end());
    all.insert(all.end(), logprobs.begin(), logprobs.end());
    all.insert(all.end(), top_tokens.begin(), top_tokens.end());
    all.insert(all.end(), top_logprobs.begin(), top_logprobs.end());
    return all;
  };
  compute(*make_operators(1), n);
  for (uint32_t i = 0; i < n; ++i) {
    const float* l = &logits[i * vocabulary];
    EXPECT_EQ(tokens[i], sample_by_definition(l, vocabulary, rows[i])) << i;
    if (rows[i].logprobs < 0) continue;
    double total = 0;
    for (uint32_t t = 0; t < vocabulary; ++t) total += std::exp(double(l[t]));
    EXPECT_NEAR(logprobs[i], l[tokens[i]] - std::log(total), 2e-6 * 12);
    std::vector<int32_t> order(vocabulary);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    for (int32_t j = 0; j < rows[i].logprobs; ++j) {
      EXPECT_EQ(top_tokens[i * operators::max_top + uint32_t(j)], order[size_t(j)]);
      EXPECT_NEAR(top_logprobs[i * operators::max_top + uint32_t(j)], l[order[size_t(j)]] - std::log(total), 2e-6 * 12);
    }
  }
  expect_same_on_every_path(n, compute);
}

TEST(sampling, ties_go_to_the_lowest_id) {
  std::vector<float> logits(100, 1.0f);
  logits[0] = 0.5f;
  sample_row row;
  int32_t token = -1;
  make_operators(1)->sample({}, logits.data(), 1, 100, &row, &token, nullptr, nullptr, nullptr);
  EXPECT_EQ(token, 1);
  row.temperature = 1;
  row.top_k = 1;
  make_operators(1)->sample({}, logits.data(), 1, 100, &row, &token, nullptr, nullptr, nullptr);
  EXPECT_EQ(token, 1);
}

// 20,000 draws at consecutive positions: each frequency within 5 standard deviations of its probability.
TEST(sampling, has_the_distribution_of_the_softmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  const uint32_t n = 20000;
  std::vector<float> all;
  std::vector<sample_row> rows(n);
  for (uint32_t i = 0; i < n; ++i) {
    all.insert(all.end(), logits.begin(), logits.end());
    rows[i].temperature = 0.8f;
    rows[i].seed = 12345;
    rows[i].position = i;
  }
  std::vector<int32_t> tokens(n);
  make_operators(2)->sample({}, all.data(), n, 5, rows.data(), tokens.data(), nullptr, nullptr, nullptr);
  std::map<int32_t, uint32_t> seen;
  for (int32_t t : tokens) ++seen[t];
  double total = 0;
  for (float l : logits) total += std::exp(l / 0.8);
  for (int32_t t = 0; t < 5; ++t) {
    const double p = std::exp(logits[size_t(t)] / 0.8) / total;
    EXPECT_NEAR(seen[t], n * p, 5 * std::sqrt(n * p * (1 - p))) << t;
  }
}

// One bad value anywhere in a row, even at an id that is banned or outside top_k, leaves nothing to sample from: the
// token is -1, and the other rows of the call are what they are without it.
TEST(sampling, a_row_that_is_not_finite_has_no_token) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const uint32_t n = 3, vocabulary = 333;
  std::vector<float> good(n * vocabulary);
  for (uint32_t i = 0; i < good.size(); ++i) good[i] = std::sin(float(i));
  const int32_t banned = 331;
  for (float bad : {inf, -inf, nan, -nan})
    for (uint32_t at : {0u, 17u, 331u, 332u})
      for (float temperature : {0.0f, 0.7f}) {
        std::vector<sample_row> rows(n, {.temperature = temperature, .top_p = 0.9f, .top_k = 5, .logprobs = 0});
        for (sample_row& r : rows) r.banned = &banned, r.banned_count = 1;
        auto compute = [&](const std::vector<float>& logits) {
          std::vector<int32_t> tokens(n, -7);
          std::vector<float> logprobs(n), top_logprobs(n * operators::max_top);
          std::vector<int32_t> top(n * operators::max_top);
          make_operators(1)->sample({}, logits.data(), n, vocabulary, rows.data(), tokens.data(), logprobs.data(),
                                    top.data(), top_logprobs.data());
          return tokens;
        };
        std::vector<float> damaged = good;
        damaged[vocabulary + at] = bad;
        std::vector<int32_t> expected = compute(good);
        EXPECT_GE(*std::min_element(expected.begin(), expected.end()), 0);
        expected[1] = -1;
        EXPECT_EQ(compute(damaged), expected) << bad << " at " << at << " temperature " << temperature;
      }
}

TEST(sampling, survives_logits_that_are_not_finite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {inf, -inf, nan}) {
    std::vector<float> logits(300, bad);
    sample_row row{.temperature = 1, .top_p = 0.5f, .top_k = 10, .logprobs = 3};
    int32_t token = 0;
    std::vector<float> logprobs(1), top_logprobs(operators::max_top);
    std::vector<int32_t> top(operators::max_top);
    make_operators(1)->sample({}, logits.data(), 1, 300, &row, &token, logprobs.data(), top.data(),
                              top_logprobs.data());
    EXPECT_EQ(token, -1);
  }
}

}  // namespace
}  // namespace troupe::kernels::cpu
