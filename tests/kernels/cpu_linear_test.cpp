// Dense products: against double precision, and the same bits on every instruction set, thread count and batch size.
#include <gtest/gtest.h>

#include "kernels/cpu/operators.hpp"
#include "tests/kernels/cpu_test_util.hpp"

namespace troupe::kernels::cpu {
namespace {

constexpr weight_format all_formats[] = {weight_format::f32, weight_format::bf16, weight_format::fp8_block,
                                         weight_format::fp8_row, weight_format::mxfp4};

struct shape {
  uint32_t out, in, groups;
};
// Ends inside a strip, inside a 32-block, beyond one panel of 1,024 columns; block diagonal.
constexpr shape shapes[] = {{24, 64, 1}, {37, 96, 1},  {100, 1056, 1}, {7, 2080, 1},
                            {1, 160, 1}, {128, 64, 2}, {60, 160, 3}};

class linear_formats : public testing::TestWithParam<weight_format> {};

TEST_P(linear_formats, matches_double_precision) {
  const uint64_t seed = 1 + uint64_t(GetParam());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  rng r(seed);
  const auto c = make_operators(1);
  for (const shape& s : shapes) {
    const test_matrix m(r, GetParam(), s.out, s.in);
    for (uint32_t n : {1u, 3u, 4u, 5u, 9u, 70u}) {
      const auto x = random_floats(r, size_t(n) * s.in * s.groups);
      std::vector<float> y(size_t(n) * s.out, -1.0f);
      c->grouped_linear({}, x.data(), n, m.w, s.groups, y.data());
      for (uint32_t i = 0; i < n; ++i)
        for (uint32_t o = 0; o < s.out; ++o) {
          double want = 0, size = 0;
          const uint32_t group = o / (s.out / s.groups);
          for (uint32_t k = 0; k < s.in; ++k) {
            const double term = m.at(o, k) * double(x[(size_t(i) * s.groups + group) * s.in + k]);
            want += term;
            size += std::fabs(term);
          }
          // in / 16 fused additions per lane and 4 levels of the tree, each off by at most half a unit of a partial
          // sum.
          const double tolerance = size * (s.in / 16 + 4) * 0x1p-24;
          ASSERT_NEAR(y[size_t(i) * s.out + o], want, tolerance)
              << s.out << "x" << s.in << " row " << i << " output " << o;
        }
    }
  }
}

TEST_P(linear_formats, same_bits_on_every_path) {
  const uint64_t seed = 11 + uint64_t(GetParam());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  rng r(seed);
  for (const shape& s : shapes) {
    const test_matrix m(r, GetParam(), s.out, s.in);
    const uint32_t n = 67;
    const size_t width = size_t(s.in) * s.groups;
    const auto x = random_floats(r, n * width);
    const auto reference = make_operators(1, isa::portable);
    std::vector<float> want(size_t(n) * s.out);
    for (uint32_t i = 0; i < n; ++i)
      reference->grouped_linear({}, x.data() + i * width, 1, m.w, s.groups, want.data() + size_t(i) * s.out);
    for (isa which : usable_isas())
      for (uint32_t threads : {1u, 2u, 3u}) {
        const auto c = make_operators(threads, which);
        for (uint32_t batch : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 33u, 67u}) {
          if (which == isa::portable && batch != 3 + threads && batch != 67)
            continue;  // slow, and one code for all batches
          std::vector<float> y(want.size());
          for (uint32_t i = 0; i < n; i += batch)
            c->grouped_linear({}, x.data() + i * width, std::min(batch, n - i), m.w, s.groups,
                              y.data() + size_t(i) * s.out);
          ASSERT_TRUE(same_bits(y, want))
              << to_string(which) << ", " << threads << " threads, batch " << batch << ", " << s.out << "x" << s.in;
        }
      }
  }
}

INSTANTIATE_TEST_SUITE_P(formats, linear_formats, testing::ValuesIn(all_formats));

// Every code under every path, and scales at the ends of their range.
TEST(dequantise_row, every_code_on_every_path) {
  for (isa which : usable_isas()) {
    SCOPED_TRACE(to_string(which));
    const kernel_table& k = kernels_of(which);
    std::vector<uint8_t> codes(256);
    for (int i = 0; i < 256; ++i) codes[size_t(i)] = uint8_t(i);
    std::vector<float> y(512);
    for (uint8_t s : {1, 100, 127, 150, 246}) {
      std::vector<uint8_t> scale(16, s);
      k.dequantise_row({codes.data(), scale.data(), weight_format::fp8_row, 1, 256}, 0, y.data());
      for (int i = 0; i < 256; ++i) {
        const float want = formats::decode_e4m3(uint8_t(i)) * formats::decode_ue8m0(s);
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(y[size_t(i)]));
        } else {
          EXPECT_EQ(y[size_t(i)], want) << "code " << i << " scale " << int(s);
        }
      }
      k.dequantise_row({codes.data(), scale.data(), weight_format::mxfp4, 1, 512}, 0, y.data());
      for (int i = 0; i < 512; ++i)
        EXPECT_EQ(y[size_t(i)],
                  formats::decode_e2m1(uint8_t(i % 2 ? codes[size_t(i) / 2] >> 4 : codes[size_t(i) / 2] & 15)) *
                      formats::decode_ue8m0(s));
    }
  }
}

TEST(isa, names) {
  for (isa i : all_isas) EXPECT_EQ(isa_from_string(to_string(i)), i);
  EXPECT_FALSE(isa_from_string("sse").has_value());
  EXPECT_STREQ(kernels_of(isa::portable).name, "portable");
}

}  // namespace
}  // namespace troupe::kernels::cpu
