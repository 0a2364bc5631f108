// vec16 as two AVX2 registers (needs AVX2, FMA and F16C).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace troupe::kernels::cpu::avx2 {

/// Register tile of linear.cpp: rows x outputs of running sums that fit this instruction set's registers.
inline constexpr uint32_t tile_m = 2, tile_n = 3;
/// Register tile of attention.cpp: heads x vectors of output channels.
inline constexpr uint32_t weigh_heads = 3, weigh_vecs = 2;
/// Outputs that advance together when only `rows` (1 to 4) rows are multiplied.
constexpr uint32_t few_columns(uint32_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

struct vec {
  __m256 lo, hi;
};
struct ivec {
  __m256i lo, hi;
};
struct mask {
  __m256 lo, hi;
};

inline vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline vec add(vec a, vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline vec sub(vec a, vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline vec mul(vec a, vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline vec div(vec a, vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline vec fma(vec a, vec b, vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline vec min(vec a, vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline vec max(vec a, vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline vec sqrt(vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline mask less(vec a, vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline vec select(mask m, vec a, vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
inline ivec bits(vec a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline vec from_bits(ivec a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline ivec iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline ivec iadd(ivec a, ivec b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline ivec iand(ivec a, ivec b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline ivec ior(ivec a, ivec b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int N>
ivec shift_left(ivec a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
ivec shift_right(ivec a) {  // arithmetic
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
inline ivec to_int(vec a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline vec to_float(ivec a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

inline __m128 sum_to_4(vec a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
}
inline float sum(vec a) {
  const __m128 s4 = sum_to_4(a);
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline void sum4(vec a, vec b, vec c, vec d, float* out) {
  __m128 r0 = sum_to_4(a), r1 = sum_to_4(b), r2 = sum_to_4(c), r3 = sum_to_4(d);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(r0, r2), _mm_add_ps(r1, r3)));
}
inline float largest(vec a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}

inline vec load_bf16(const void* p) {
  const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16))};
}
inline vec load_e4m3(const uint8_t* p) {
  // Through half precision, whose exponent has the same shape one bit wider: value * 2^-8. See vec16.hpp.
  const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i shifted = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16(int16_t(0xbfff)));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(shifted, magnitude), magnitude);
  const __m256i h = _mm256_or_si256(shifted, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
inline void load_e4m3_pair(const uint8_t* p, vec& a, vec& b) {
  a = load_e4m3(p);
  b = load_e4m3(p + 16);
}
/// The eight magnitudes times scale, twice: lookups take three bits of index, the sign is applied by hand.
inline vec e2m1_table(float scale) {
  const __m256 t = _mm256_mul_ps(_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f), _mm256_set1_ps(scale));
  return {t, t};
}
inline __m256 lookup_e2m1(uint32_t eight, __m256 table) {
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(eight)), shifts);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}
inline vec load_e2m1(const uint8_t* p, vec table) {
  uint32_t a, b;
  memcpy(&a, p, 4);
  memcpy(&b, p + 4, 4);
  return {lookup_e2m1(a, table.lo), lookup_e2m1(b, table.hi)};
}

}  // namespace troupe::kernels::cpu::avx2
