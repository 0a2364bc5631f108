// vec16 as one AVX-512 register (needs F, BW, DQ and VL).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace troupe::kernels::cpu::avx512 {

/// Register tile of linear.cpp: rows x outputs of running sums that fit this instruction set's registers.
inline constexpr uint32_t tile_m = 4, tile_n = 6;
/// Register tile of attention.cpp: heads x vectors of output channels.
inline constexpr uint32_t weigh_heads = 4, weigh_vecs = 4;
/// Outputs that advance together when only `rows` (1 to 4) rows are multiplied.
constexpr uint32_t few_columns(uint32_t rows) { return rows == 1 ? 8 : 4; }

struct vec {
  __m512 v;
};
struct ivec {
  __m512i v;
};
struct mask {
  __mmask16 v;
};

inline vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline vec zero() { return {_mm512_setzero_ps()}; }
inline vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, vec a) { _mm512_storeu_ps(p, a.v); }
inline vec add(vec a, vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline vec sub(vec a, vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline vec mul(vec a, vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline vec div(vec a, vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline vec fma(vec a, vec b, vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline vec min(vec a, vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline vec max(vec a, vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline vec sqrt(vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline mask less(vec a, vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline vec select(mask m, vec a, vec b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
inline ivec bits(vec a) { return {_mm512_castps_si512(a.v)}; }
inline vec from_bits(ivec a) { return {_mm512_castsi512_ps(a.v)}; }
inline ivec iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline ivec iadd(ivec a, ivec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline ivec iand(ivec a, ivec b) { return {_mm512_and_si512(a.v, b.v)}; }
inline ivec ior(ivec a, ivec b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
ivec shift_left(ivec a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
ivec shift_right(ivec a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, N)};
}
inline ivec to_int(vec a) { return {_mm512_cvtps_epi32(a.v)}; }
inline vec to_float(ivec a) { return {_mm512_cvtepi32_ps(a.v)}; }

inline __m128 sum_to_4(vec a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
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
  const __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}

inline vec load_bf16(const void* p) {
  const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline vec load_e4m3(const uint8_t* p) {
  // Through half precision, whose exponent has the same shape one bit wider: value * 2^-8. See vec16.hpp.
  const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i shifted = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16(int16_t(0xbfff)));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(shifted, magnitude), magnitude);
  const __m256i h = _mm256_or_si256(shifted, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  return {_mm512_cvtph_ps(h)};
}
inline void load_e4m3_pair(const uint8_t* p, vec& a, vec& b) {
  const __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(c, 7), _mm512_set1_epi16(int16_t(0xbfff)));
  const __m512i magnitude = _mm512_set1_epi16(0x3f80);
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(shifted, magnitude), magnitude);
  const __m512i h = _mm512_mask_mov_epi16(shifted, nan, _mm512_set1_epi16(0x7e00));
  a = {_mm512_cvtph_ps(_mm512_castsi512_si256(h))};
  b = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))};
}
inline vec e2m1_table(float scale) {
  const __m512 t = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                  -3.0f, -4.0f, -6.0f);
  return {_mm512_mul_ps(t, _mm512_set1_ps(scale))};
}
inline vec load_e2m1(const uint8_t* p, vec table) {
  const __m512i pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m512i code = _mm512_srlv_epi32(_mm512_permutexvar_epi32(pick, _mm512_castsi128_si512(raw)), shifts);
  return {_mm512_permutexvar_ps(code, table.v)};  // uses the low four bits of each index
}

}  // namespace troupe::kernels::cpu::avx512
