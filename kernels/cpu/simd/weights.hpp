// Reading weight rows of every storage format as vec16, exactly.
#pragma once

#include "kernels/cpu/simd/vec16.hpp"
#include "kernels/ops.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {

/// 2^(byte - 127 + Shift) as a float; 255 gives NaN, exponents past 127 give 2^127.
template <int Shift>
struct scale_table {
  uint32_t bits[256];
  constexpr scale_table() : bits{} {
    for (int b = 0; b < 256; ++b) {
      const int e = b + Shift;
      bits[b] = b == 255 ? 0x7fc00000u : e >= 255 ? 254u << 23 : e == 0 ? 0x00400000u : uint32_t(e) << 23;
    }
  }
  float operator[](uint8_t b) const {
    float f;
    __builtin_memcpy(&f, &bits[b], 4);
    return f;
  }
};
inline constexpr scale_table<0> scales_plain;
inline constexpr scale_table<8> scales_e4m3;  // undoes the 2^-8 of load_e4m3; scales above 2^119 count as 2^119

/// A cursor over one row of a matrix, 32 columns at a time: next(k) readies columns [k, k + 32), get(k) and get(k + 16)
/// are its two vectors. Rows of fp8 and float formats may end in the middle of 32.
template <weight_format F>
struct row_reader;

template <>
struct row_reader<weight_format::f32> {
  const float* p;
  row_reader() = default;
  row_reader(const weight& w, uint32_t row) : p(static_cast<const float*>(w.data) + size_t(row) * w.cols) {}
  void next(uint32_t) {}
  vec get(uint32_t k) const { return load(p + k); }
};

template <>
struct row_reader<weight_format::bf16> {
  const uint16_t* p;
  row_reader() = default;
  row_reader(const weight& w, uint32_t row) : p(static_cast<const uint16_t*>(w.data) + size_t(row) * w.cols) {}
  void next(uint32_t) {}
  vec get(uint32_t k) const { return load_bf16(p + k); }
};

template <>
struct row_reader<weight_format::fp8_block> {
  const uint8_t* p;
  const uint8_t* s;
  vec scale;
  row_reader() = default;
  row_reader(const weight& w, uint32_t row)
      : p(static_cast<const uint8_t*>(w.data) + size_t(row) * w.cols),
        s(w.scale + size_t(row / 32) * ((w.cols + 31) / 32)) {}
  void next(uint32_t k) { scale = set1(scales_e4m3[s[k / 32]]); }
  vec get(uint32_t k) const { return mul(load_e4m3(p + k), scale); }
};

template <>
struct row_reader<weight_format::fp8_row> : row_reader<weight_format::fp8_block> {
  row_reader() = default;
  row_reader(const weight& w, uint32_t row) : row_reader<weight_format::fp8_block>(w, row) {
    s = w.scale + size_t(row) * (w.cols / 32);
  }
};

template <>
struct row_reader<weight_format::mxfp4> {
  const uint8_t* p;
  const uint8_t* s;
  vec table;
  row_reader() = default;
  row_reader(const weight& w, uint32_t row)
      : p(static_cast<const uint8_t*>(w.data) + size_t(row) * (w.cols / 2)), s(w.scale + size_t(row) * (w.cols / 32)) {}
  void next(uint32_t k) { table = e2m1_table(scales_plain[s[k / 32]]); }
  vec get(uint32_t k) const { return load_e2m1(p + k / 2, table); }
};

}  // namespace troupe::kernels::cpu::TROUPE_ISA
