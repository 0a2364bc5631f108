// Every code of the small formats against a rule in double precision, and the block quantisers at their edges.
#include "kernels/formats/formats.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/formats/records.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::formats {
namespace {

/// The value of a small float with `e` exponent bits, `m` mantissa bits and bias `bias`, from the definition.
double small_float(unsigned code, int e, int m, int bias) {
  const int sign = (code >> (e + m)) & 1, exponent = (code >> m) & ((1 << e) - 1), mantissa = code & ((1 << m) - 1);
  const double v =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - m) : std::ldexp((1 << m) + mantissa, exponent - bias - m);
  return sign ? -v : v;
}

/// Nearest of `codes` non-negative codes to |x|, ties to the even code, saturating: by search.
unsigned nearest(double x, unsigned codes, double (*value)(unsigned)) {
  unsigned best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (unsigned c = 0; c < codes; ++c) {
    const double d = std::fabs(std::fabs(x) - value(c));
    if (d < distance || (d == distance && c % 2 == 0)) {
      best = c;
      distance = d;
    }
  }
  return best;
}

double e4m3_value(unsigned c) { return small_float(c, 4, 3, 7); }
double e2m1_value(unsigned c) { return small_float(c, 2, 1, 1); }

TEST(formats, every_e4m3_code_decodes_by_the_definition_and_encodes_to_itself) {
  for (unsigned c = 0; c < 256; ++c) {
    const float v = decode_e4m3(uint8_t(c));
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(v)) << c;
      EXPECT_EQ(encode_e4m3(v), c);
      continue;
    }
    EXPECT_EQ(double(v), e4m3_value(c)) << c;
    EXPECT_EQ(std::signbit(v), c >= 128) << c;
    EXPECT_EQ(encode_e4m3(v), c);
  }
}

// Every code, every midpoint of neighbours, and both floats beside each.
TEST(formats, e4m3_rounds_to_nearest_even_and_saturates) {
  std::vector<float> xs;
  for (unsigned c = 0; c < 0x7e; ++c) {
    const float a = float(e4m3_value(c)), b = float(e4m3_value(c + 1)), mid = (a + b) / 2;
    for (float x : {a, mid, b})
      for (float y : {std::nextafter(x, -1.0f), x, std::nextafter(x, 1e9f)}) xs.push_back(std::fabs(y));
  }
  for (float x : {448.0f, 463.9f, 464.0f, 465.0f, 480.0f, 1e9f, std::numeric_limits<float>::infinity(), 1e-45f, 0.0f})
    xs.push_back(x);
  for (float x : xs) {
    const unsigned want = std::isinf(x) ? 0x7e : nearest(x, 0x7f, e4m3_value);
    EXPECT_EQ(encode_e4m3(x), want) << x;
    EXPECT_EQ(encode_e4m3(-x), want | 0x80) << x;
  }
}

TEST(formats, every_e2m1_code_and_tie) {
  for (unsigned c = 0; c < 16; ++c) {
    EXPECT_EQ(double(decode_e2m1(uint8_t(c))), e2m1_value(c)) << c;
    EXPECT_EQ(encode_e2m1(decode_e2m1(uint8_t(c))), c);
    EXPECT_EQ(decode_e2m1(uint8_t(c | 0xf0)), decode_e2m1(uint8_t(c))) << "upper bits are ignored";
  }
  for (int i = 0; i < 8 * 64; ++i) {
    const float at = float(i) / 64;
    for (float x : {std::nextafter(at, 0.0f), at, std::nextafter(at, 9.0f)}) {
      EXPECT_EQ(encode_e2m1(x), nearest(x, 8, e2m1_value)) << x;
      EXPECT_EQ(encode_e2m1(-x), nearest(x, 8, e2m1_value) | 8) << x;
    }
  }
  EXPECT_EQ(encode_e2m1(1e30f), 7);
  EXPECT_EQ(encode_e2m1(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(encode_e2m1(std::numeric_limits<float>::quiet_NaN()) & 7, 0);
}

TEST(formats, every_ue8m0_code) {
  for (unsigned c = 0; c < 255; ++c) {
    const float v = decode_ue8m0(uint8_t(c));
    EXPECT_EQ(double(v), std::ldexp(1.0, int(c) - 127)) << c;
    if (c == 0) continue;  // subnormal: not an input of ceil_ue8m0
    EXPECT_EQ(ceil_ue8m0(v), c);
    if (c < 254) {
      EXPECT_EQ(ceil_ue8m0(std::nextafter(v, 3e38f)), c + 1);
    }
    if (c > 1) {
      EXPECT_EQ(ceil_ue8m0(std::nextafter(v, 0.0f)), c);
    }
  }
  EXPECT_TRUE(std::isnan(decode_ue8m0(255)));
  for (float x : {0.0f, -0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(ceil_ue8m0(x), 255) << x;
}

TEST(formats, bf16) {
  for (unsigned c = 0; c < 65536; ++c) {
    const float v = decode_bf16(uint16_t(c));
    if (std::isnan(v)) {
      EXPECT_TRUE(std::isnan(decode_bf16(encode_bf16(v)))) << c;
      continue;
    }
    ASSERT_EQ(encode_bf16(v), c);
    if (std::isinf(v)) continue;
    const uint32_t u = uint32_t(c) << 16;
    EXPECT_EQ(encode_bf16(std::bit_cast<float>(u | 0x7fff)), c);              // below the tie
    EXPECT_EQ(encode_bf16(std::bit_cast<float>(u | 0x8000)), (c + 1) & ~1u);  // the tie
    EXPECT_EQ(encode_bf16(std::bit_cast<float>(u | 0x8001)), c + 1);          // above it
  }
}

struct record_kind {
  const char* name;
  size_t block;
  size_t (*bytes)(size_t);
  void (*encode)(const float*, size_t, uint8_t*);
  void (*decode)(const uint8_t*, size_t, float*);
  double (*scale)(
      double amax);           // the rule, in double precision; amax * fp32(1/k) is rounded to float as the model does
  double (*round)(double x);  // to the nearest value of the element format
};

double power_of_two_at_least(double x) {
  int e;
  const double f = std::frexp(x, &e);
  return std::ldexp(1.0, f == 0.5 ? e - 1 : e);
}
double round_e4m3(double x) { return std::copysign(e4m3_value(nearest(x, 0x7f, e4m3_value)), x); }
double round_e2m1(double x) { return std::copysign(e2m1_value(nearest(x, 8, e2m1_value)), x); }

const record_kind kinds[] = {
    {"window", 32, [](size_t n) { return window_record_bytes(n); }, encode_window_record, decode_window_record,
     [](double a) { return power_of_two_at_least(float(std::max(float(a), 1e-4f) * (1.0f / 448.0f))); }, round_e4m3},
    {"main", 16, [](size_t n) { return main_entry_bytes(n); }, encode_main_entry, decode_main_entry,
     [](double a) { return round_e4m3(float(std::max(float(a), 6 * 0x1p-9f) / 6.0f)); }, round_e2m1},
    {"index", 32, [](size_t n) { return index_key_bytes(n); }, encode_index_key, decode_index_key,
     [](double a) { return power_of_two_at_least(float(std::max(float(a), 6 * 0x1p-126f) * (1.0f / 6.0f))); },
     round_e2m1},
};

TEST(records, match_the_rule_in_double_precision) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE("seed 20261129");
  rng r(seed);
  for (const record_kind& k : kinds) {
    SCOPED_TRACE(k.name);
    for (size_t n : {32u, 64u, 128u, 512u}) {
      for (int trial = 0; trial < 50; ++trial) {
        std::vector<float> x(n), y(n);
        for (size_t i = 0; i < n; ++i) {
          const double magnitude = std::ldexp(1.0, int((i / k.block + size_t(trial)) % 40) - 25);
          x[i] = float((r.uniform() * 2 - 1) * magnitude);
        }
        std::vector<uint8_t> record(k.bytes(n) + 1, 0xAA);
        k.encode(x.data(), n, record.data());
        EXPECT_EQ(record.back(), 0xAA) << "wrote past the record";
        k.decode(record.data(), n, y.data());
        for (size_t b = 0; b < n; b += k.block) {
          double amax = 0;
          for (size_t i = b; i < b + k.block; ++i) amax = std::max(amax, std::fabs(double(x[i])));
          const double s = k.scale(amax);
          for (size_t i = b; i < b + k.block; ++i)
            ASSERT_EQ(double(y[i]), k.round(float(double(x[i]) / s)) * s) << "channel " << i << " x " << x[i];
        }
        // What was decoded encodes to the same record: rounding is idempotent where the scale survives.
        std::vector<uint8_t> again(k.bytes(n));
        std::vector<float> z(n);
        k.encode(y.data(), n, again.data());
        k.decode(again.data(), n, z.data());
        if (&k == &kinds[0]) {
          EXPECT_EQ(y, z);
        }
      }
    }
  }
}

TEST(records, edges) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const record_kind& k : kinds) {
    SCOPED_TRACE(k.name);
    const size_t n = 64;
    std::vector<float> y(n);
    std::vector<uint8_t> record(k.bytes(n));
    auto round_trip = [&](std::vector<float> x) {
      k.encode(x.data(), n, record.data());
      k.decode(record.data(), n, y.data());
    };
    round_trip(std::vector<float>(n, 0.0f));
    for (float v : y) EXPECT_EQ(v, 0.0f);
    round_trip(std::vector<float>(n, 1e-45f));  // subnormal
    for (float v : y) EXPECT_EQ(v, 0.0f);
    round_trip(std::vector<float>(n, 2e38f));  // huge, short of the last binade, where rounding up can overflow
    for (float v : y) EXPECT_TRUE(std::isfinite(v) && v > 0);
    std::vector<float> x(n, 1.0f);
    round_trip(x);
    const float clean = y[0];
    for (float bad : {nan, inf, -inf}) {
      x[3] = bad;
      round_trip(x);
      for (size_t i = 0; i < k.block; ++i) EXPECT_TRUE(std::isnan(y[i])) << "the marked block, channel " << i;
      for (size_t i = k.block; i < n; ++i) EXPECT_EQ(y[i], clean) << "other blocks are untouched, channel " << i;
    }
  }
}

TEST(records, low_nibble_is_the_even_channel) {
  std::vector<float> x(32, 0.0f);
  x[0] = 6.0f;
  x[1] = -1.0f;
  uint8_t record[index_key_bytes(32)];
  encode_index_key(x.data(), 32, record);
  EXPECT_EQ(record[0], 0xA7);  // 6 -> 0x7, -1 -> 0xA, scale 2^0
  EXPECT_EQ(record[16], 127);
}

}  // namespace
}  // namespace troupe::kernels::formats
