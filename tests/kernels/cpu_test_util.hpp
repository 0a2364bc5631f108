// Shared by the tests of kernels/cpu: random inputs, a double-precision reading of every weight format, and the list of
// configurations (instruction set x threads) that must agree to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/operators.hpp"
#include "kernels/formats/formats.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::cpu {

inline constexpr isa all_isas[] = {isa::portable, isa::avx2, isa::avx512};

/// Instruction sets of this CPU; says once which ones are skipped.
inline std::vector<isa> usable_isas() {
  std::vector<isa> r;
  for (isa i : all_isas) {
    if (supported(i)) {
      r.push_back(i);
    } else {
      printf("skipped: this CPU does not run %s\n", to_string(i));
    }
  }
  return r;
}

inline std::vector<float> random_floats(rng& r, size_t n, double magnitude = 1.0) {
  std::vector<float> x(n);
  for (float& v : x) v = float((r.uniform() * 2 - 1) * magnitude);
  return x;
}

/// A matrix that owns its bytes, one byte off alignment as a checkpoint's may be.
struct test_matrix {
  std::vector<uint8_t> data, scale;
  weight w;

  test_matrix() = default;
  test_matrix(rng& r, weight_format format, uint32_t rows, uint32_t cols) {
    const size_t n = size_t(rows) * cols;
    auto push = [&](const void* p, size_t bytes) {
      data.insert(data.end(), static_cast<const uint8_t*>(p), static_cast<const uint8_t*>(p) + bytes);
    };
    data.push_back(0);
    switch (format) {
      case weight_format::f32:
        for (float v : random_floats(r, n)) push(&v, 4);
        break;
      case weight_format::bf16:
        for (float v : random_floats(r, n)) {
          const uint16_t h = formats::encode_bf16(v);
          push(&h, 2);
        }
        break;
      case weight_format::fp8_block:
      case weight_format::fp8_row:
        for (size_t i = 0; i < n; ++i) {
          uint8_t code = uint8_t(r.next());
          if ((code & 0x7f) == 0x7f) code ^= 1;
          data.push_back(code);
        }
        scale.resize(format == weight_format::fp8_row ? size_t(rows) * (cols / 32)
                                                      : size_t((rows + 31) / 32) * ((cols + 31) / 32));
        for (uint8_t& s : scale) s = uint8_t(115 + r.below(8));
        break;
      case weight_format::mxfp4:
        for (size_t i = 0; i < n / 2; ++i) data.push_back(uint8_t(r.next()));
        scale.resize(n / 32);
        for (uint8_t& s : scale) s = uint8_t(121 + r.below(8));
        break;
    }
    w = {data.data() + 1, scale.data(), format, rows, cols};
  }
  test_matrix(test_matrix&&) = default;
  test_matrix& operator=(test_matrix&&) = default;

  double at(uint32_t row, uint32_t col) const {
    const size_t i = size_t(row) * w.cols + col;
    const uint8_t* p = data.data() + 1;
    switch (w.format) {
      case weight_format::f32: {
        float v;
        memcpy(&v, p + i * 4, 4);
        return v;
      }
      case weight_format::bf16: {
        uint16_t h;
        memcpy(&h, p + i * 2, 2);
        return formats::decode_bf16(h);
      }
      case weight_format::fp8_block:
        return double(formats::decode_e4m3(p[i])) *
               std::ldexp(1.0, int(scale[size_t(row / 32) * ((w.cols + 31) / 32) + col / 32]) - 127);
      case weight_format::fp8_row:
        return double(formats::decode_e4m3(p[i])) *
               std::ldexp(1.0, int(scale[size_t(row) * (w.cols / 32) + col / 32]) - 127);
      case weight_format::mxfp4:
        return double(formats::decode_e2m1(uint8_t(i % 2 ? p[i / 2] >> 4 : p[i / 2] & 15))) *
               std::ldexp(1.0, int(scale[size_t(row) * (w.cols / 32) + col / 32]) - 127);
    }
    return 0;
  }
};

/// Same bits, element by element; says where the first difference is.
template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << ": " << +a[i] << " and " << +b[i];
  return ::testing::AssertionSuccess();
}

/// Calls compute(operators, batch) -> vector on every instruction set, with 1 to 3 threads, in calls of 1, 2, 5 and
/// `rows` rows, and expects the same bits as the portable path gives one row at a time.
template <class F>
void expect_same_on_every_path(uint32_t rows, F&& compute) {
  const auto reference = make_operators(1, isa::portable);
  const auto want = compute(*reference, 1u);
  for (isa which : usable_isas())
    for (uint32_t threads : {1u, 2u, 3u}) {
      const auto ops = make_operators(threads, which);
      for (uint32_t batch : {1u, 2u, 5u, rows})
        ASSERT_TRUE(same_bits(compute(*ops, batch), want)) << ops->name() << ", batch " << batch;
    }
}

/// Calls f(first, count) for runs of `batch` rows out of `rows`.
template <class F>
void in_batches(uint32_t rows, uint32_t batch, F&& f) {
  for (uint32_t i = 0; i < rows; i += batch) f(i, std::min(batch, rows - i));
}

}  // namespace troupe::kernels::cpu
