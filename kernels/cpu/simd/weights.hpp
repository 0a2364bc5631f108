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

/// One storage format: where a row lies, and how 32 columns of it (or the 16 that may be left) become float vectors.
template <weight_format F>
struct storage;

template <>
struct storage<weight_format::f32> {
  static constexpr uint32_t block_bytes = 128;  // of 32 columns
  static size_t row_bytes(uint32_t cols) { return size_t(cols) * 4; }
  static constexpr bool scaled = false;
  static void read(const uint8_t* p, const uint8_t*, vec& a, vec& b) {
    a = read_half(p, nullptr);
    b = read_half(p + 64, nullptr);
  }
  static vec read_half(const uint8_t* p, const uint8_t*) { return load(reinterpret_cast<const float*>(p)); }
};

template <>
struct storage<weight_format::bf16> {
  static constexpr uint32_t block_bytes = 64;
  static size_t row_bytes(uint32_t cols) { return size_t(cols) * 2; }
  static constexpr bool scaled = false;
  static void read(const uint8_t* p, const uint8_t*, vec& a, vec& b) {
    a = load_bf16(p);
    b = load_bf16(p + 32);
  }
  static vec read_half(const uint8_t* p, const uint8_t*) { return load_bf16(p); }
};

template <>
struct storage<weight_format::fp8_block> {
  static constexpr uint32_t block_bytes = 32;
  static size_t row_bytes(uint32_t cols) { return cols; }
  static constexpr bool scaled = true;
  static constexpr uint32_t rows_per_scale = 32;
  static size_t scale_bytes(uint32_t cols) { return (cols + 31) / 32; }  // of a row of scales
  static void read(const uint8_t* p, const uint8_t* s, vec& a, vec& b) {
    load_e4m3_pair(p, a, b);
    const vec scale = set1(scales_e4m3[*s]);
    a = mul(a, scale);
    b = mul(b, scale);
  }
  static vec read_half(const uint8_t* p, const uint8_t* s) { return mul(load_e4m3(p), set1(scales_e4m3[*s])); }
};

template <>
struct storage<weight_format::fp8_row> : storage<weight_format::fp8_block> {
  static constexpr uint32_t rows_per_scale = 1;
};

template <>
struct storage<weight_format::mxfp4> {
  static constexpr uint32_t block_bytes = 16;
  static size_t row_bytes(uint32_t cols) { return cols / 2; }
  static constexpr bool scaled = true;
  static constexpr uint32_t rows_per_scale = 1;
  static size_t scale_bytes(uint32_t cols) { return cols / 32; }
  static void read(const uint8_t* p, const uint8_t* s, vec& a, vec& b) {
    const vec table = e2m1_table(scales_plain[*s]);
    a = load_e2m1(p, table);
    b = load_e2m1(p + 8, table);
  }
  static vec read_half(const uint8_t* p, const uint8_t* s) { return load_e2m1(p, e2m1_table(scales_plain[*s])); }
};

/// First byte of a row, and of its scales.
template <weight_format F>
const uint8_t* row_data(const weight& w, uint32_t row) {
  return static_cast<const uint8_t*>(w.data) + row * storage<F>::row_bytes(w.cols);
}
template <weight_format F>
const uint8_t* row_scale(const weight& w, uint32_t row) {
  if constexpr (!storage<F>::scaled) {
    return nullptr;
  } else {
    return w.scale + row / storage<F>::rows_per_scale * storage<F>::scale_bytes(w.cols);
  }
}

/// 16 columns from `k` (a multiple of 16) of one row, for kernels where the row is not the hot part.
template <weight_format F>
struct row_reader {
  const uint8_t *p, *s;
  row_reader(const weight& w, uint32_t row) : p(row_data<F>(w, row)), s(row_scale<F>(w, row)) {}
  vec get(uint32_t k) const {
    return storage<F>::read_half(p + k / 16 * (storage<F>::block_bytes / 2), storage<F>::scaled ? s + k / 32 : nullptr);
  }
};

}  // namespace troupe::kernels::cpu::TROUPE_ISA
