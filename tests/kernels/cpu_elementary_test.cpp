// Our elementary functions against the C library in double precision, and the same bits on every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "kernels/cpu/rotation.hpp"
#include "tests/kernels/cpu_test_util.hpp"

namespace troupe::kernels::cpu {
namespace {

/// |got - want| in units of the last place of want as a float (at least the smallest subnormal).
double ulps(float got, double want) {
  const float f = float(std::fabs(want));
  const double unit = double(std::nextafter(f, std::numeric_limits<float>::infinity())) - double(f);
  return std::fabs(double(got) - want) / unit;
}

/// Every 9,973rd float between a and b (by their bits; same sign).
std::vector<float> between(float a, float b) {
  std::vector<float> x;
  for (uint32_t u = std::bit_cast<uint32_t>(a); u < std::bit_cast<uint32_t>(b); u += 9973)
    x.push_back(std::bit_cast<float>(u));
  return x;
}

TEST(elementary, exp) {
  std::vector<float> x = between(1e-8f, 88.7f);
  const size_t positive = x.size();
  for (float v : between(1e-8f, 103.9f)) x.push_back(-v);
  std::vector<float> want(x.size());
  double worst = 0;
  for (isa which : usable_isas()) {
    std::vector<float> y(x.size());
    kernels_of(which).exp_sum(x.data(), x.size(), 0.0f, y.data());
    if (which == isa::portable) {
      want = y;
      for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(double(x[i]))));
    }
    EXPECT_TRUE(same_bits(y, want)) << to_string(which);
    const float inf = std::numeric_limits<float>::infinity();
    const float ends[] = {0.0f, -0.0f, -inf, -200.0f, 89.0f, inf};
    float e[6];
    kernels_of(which).exp_sum(ends, 6, 0.0f, e);
    EXPECT_EQ(e[0], 1.0f);
    EXPECT_EQ(e[1], 1.0f);
    EXPECT_EQ(e[2], 0.0f);
    EXPECT_EQ(e[3], 0.0f);
    EXPECT_EQ(e[4], inf);
    EXPECT_EQ(e[5], inf);
  }
  EXPECT_GT(positive, 1000u);
  printf("exp: worst error %.2f units in the last place\n", worst);
  EXPECT_LT(worst, 2.0);
}

TEST(elementary, log) {
  double worst = 0;
  for (float v : between(std::numeric_limits<float>::min(), 3e38f)) {
    const float y = kernels_of(isa::portable).log(v);
    worst = std::max(worst, ulps(y, std::log(double(v))));
    for (isa which : all_isas) {
      if (!supported(which)) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(kernels_of(which).log(v)), std::bit_cast<uint32_t>(y)) << v;
    }
  }
  printf("log: worst error %.2f units in the last place\n", worst);
  EXPECT_LT(worst, 2.0);
}

TEST(elementary, sigmoid_and_router_score) {
  std::vector<float> x = {0.0f, -0.0f};
  for (float v : between(1e-6f, 80.0f)) {
    x.push_back(v);
    x.push_back(-v);
  }
  std::vector<float> sigmoids, scores;
  for (isa which : usable_isas()) {
    std::vector<float> s = x, r(x.size());
    kernels_of(which).sigmoid(s.data(), s.size());
    kernels_of(which).router_scores(x.data(), uint32_t(x.size()), 1.0f, r.data());
    if (which == isa::portable) {
      sigmoids = s;
      scores = r;
    }
    EXPECT_TRUE(same_bits(s, sigmoids)) << to_string(which);
    EXPECT_TRUE(same_bits(r, scores)) << to_string(which);
  }
  double worst_sigmoid = 0, worst_score = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst_sigmoid = std::max(worst_sigmoid, ulps(sigmoids[i], 1 / (1 + std::exp(-double(x[i])))));
    const double softplus = std::max(double(x[i]), 0.0) + std::log1p(std::exp(-std::fabs(double(x[i]))));
    worst_score = std::max(worst_score, ulps(scores[i], std::sqrt(softplus)));
  }
  printf("sigmoid %.2f, sqrt(softplus) %.2f units in the last place\n", worst_sigmoid, worst_score);
  EXPECT_LT(worst_sigmoid, 4.0);  // exp, an addition and a division
  EXPECT_LT(worst_score, 4.0);
}

TEST(elementary, gumbel) {
  rng r(5);
  SCOPED_TRACE("seed 5");
  std::vector<uint32_t> words = {0, 0xff, 0x100, 0xffffffff, 0xfffffeff, 0x80000000, 0x7fffffff, 0xb5c28f5c};
  for (int i = 0; i < 200000; ++i) words.push_back(uint32_t(r.next()));
  std::vector<float> want;
  for (isa which : usable_isas()) {
    std::vector<float> y(words.size());
    kernels_of(which).gumbel(words.data(), words.size(), y.data());
    if (want.empty()) want = y;
    EXPECT_TRUE(same_bits(y, want)) << to_string(which);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const double u = (double(words[i] >> 8) + 0.5) / 16777216.0;
    const double g = -std::log(-std::log(u));
    // -log(u) is off by a few units in its last place, which the outer log turns into an absolute error.
    ASSERT_NEAR(want[i], g, 4e-7 + 2e-7 * std::fabs(g)) << words[i];
  }
}

TEST(elementary, cosine_and_sine) {
  rng r(6);
  SCOPED_TRACE("seed 6");
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const float x = i < 1000 ? float(i) * 0.785398163f : float(r.uniform() * (i % 2 ? 1.05e6 : 10.0));
    float c, s;
    cos_sin(x, &c, &s);
    worst = std::max({worst, std::fabs(c - std::cos(double(x))), std::fabs(s - std::sin(double(x)))});
  }
  printf("cos, sin: worst absolute error %.3g\n", worst);
  EXPECT_LT(worst, 0x1p-24 * 1.01);
}

}  // namespace
}  // namespace troupe::kernels::cpu
