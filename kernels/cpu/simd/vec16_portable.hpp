// vec16 on arrays: what every CPU can do. std::fma is exact with and without hardware for it, only slow without.
#pragma once

#include <cstdint>
#include <cstring>

namespace troupe::kernels::cpu::portable {

/// Register tile of linear.cpp: rows x outputs of running sums that fit this instruction set's registers.
inline constexpr uint32_t tile_m = 2, tile_n = 2;
/// Register tile of attention.cpp: heads x vectors of output channels.
inline constexpr uint32_t weigh_heads = 2, weigh_vecs = 2;
/// Outputs that advance together when only `rows` (1 to 4) rows are multiplied.
constexpr uint32_t few_columns(uint32_t) { return 2; }

struct vec {
  float v[16];
};
struct ivec {
  int32_t v[16];
};
struct mask {
  bool v[16];
};

#define TROUPE_EACH(expression) \
  for (int i = 0; i < 16; ++i) expression

inline vec set1(float x) {
  vec r;
  TROUPE_EACH(r.v[i] = x);
  return r;
}
inline vec zero() { return set1(0.0f); }
inline vec load(const float* p) {
  vec r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
inline void store(float* p, vec a) { memcpy(p, a.v, sizeof a.v); }
inline vec add(vec a, vec b) {
  TROUPE_EACH(a.v[i] += b.v[i]);
  return a;
}
inline vec sub(vec a, vec b) {
  TROUPE_EACH(a.v[i] -= b.v[i]);
  return a;
}
inline vec mul(vec a, vec b) {
  TROUPE_EACH(a.v[i] *= b.v[i]);
  return a;
}
inline vec div(vec a, vec b) {
  TROUPE_EACH(a.v[i] /= b.v[i]);
  return a;
}
inline vec fma(vec a, vec b, vec c) {
  TROUPE_EACH(c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
  return c;
}
inline vec min(vec a, vec b) {
  TROUPE_EACH(a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
  return a;
}
inline vec max(vec a, vec b) {
  TROUPE_EACH(a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
  return a;
}
inline vec sqrt(vec a) {
  TROUPE_EACH(a.v[i] = __builtin_sqrtf(a.v[i]));
  return a;
}
inline mask less(vec a, vec b) {
  mask r;
  TROUPE_EACH(r.v[i] = a.v[i] < b.v[i]);
  return r;
}
inline vec select(mask m, vec a, vec b) {
  TROUPE_EACH(a.v[i] = m.v[i] ? a.v[i] : b.v[i]);
  return a;
}
inline ivec bits(vec a) {
  ivec r;
  memcpy(r.v, a.v, sizeof r.v);
  return r;
}
inline vec from_bits(ivec a) {
  vec r;
  memcpy(r.v, a.v, sizeof r.v);
  return r;
}
inline ivec iset1(int32_t x) {
  ivec r;
  TROUPE_EACH(r.v[i] = x);
  return r;
}
inline ivec iadd(ivec a, ivec b) {
  TROUPE_EACH(a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])));
  return a;
}
inline ivec iand(ivec a, ivec b) {
  TROUPE_EACH(a.v[i] &= b.v[i]);
  return a;
}
inline ivec ior(ivec a, ivec b) {
  TROUPE_EACH(a.v[i] |= b.v[i]);
  return a;
}
template <int N>
ivec shift_left(ivec a) {
  TROUPE_EACH(a.v[i] = int32_t(uint32_t(a.v[i]) << N));
  return a;
}
template <int N>
ivec shift_right(ivec a) {  // arithmetic
  TROUPE_EACH(a.v[i] >>= N);
  return a;
}
inline ivec to_int(vec a) {  // a holds whole numbers
  ivec r;
  TROUPE_EACH(r.v[i] = int32_t(a.v[i]));
  return r;
}
inline vec to_float(ivec a) {
  vec r;
  TROUPE_EACH(r.v[i] = float(a.v[i]));
  return r;
}
#undef TROUPE_EACH

inline float sum(vec a) {
  for (int width = 8; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  return a.v[0];
}
inline void sum4(vec a, vec b, vec c, vec d, float* out) {
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}
inline float largest(vec a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

inline vec load_bf16(const void* p) {
  uint16_t h[16];
  memcpy(h, p, sizeof h);
  ivec r;
  for (int i = 0; i < 16; ++i) r.v[i] = int32_t(uint32_t(h[i]) << 16);
  return from_bits(r);
}
inline vec load_e4m3(const uint8_t* p) {
  ivec r;
  for (int i = 0; i < 16; ++i) {
    const uint32_t m = p[i] & 0x7f, sign = uint32_t(p[i] & 0x80) << 24;
    const float subnormal = float(m) * 0x1p-17f;
    uint32_t u;
    memcpy(&u, &subnormal, 4);
    if (m >= 8) u = (m << 20) + (112u << 23);
    if (m == 0x7f) u = 0x7fc00000u;
    r.v[i] = int32_t(u | sign);
  }
  return from_bits(r);
}
inline void load_e4m3_pair(const uint8_t* p, vec& a, vec& b) {
  a = load_e4m3(p);
  b = load_e4m3(p + 16);
}
inline vec e2m1_table(float scale) {
  const vec t = {
      {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f}};
  return mul(t, set1(scale));
}
inline vec load_e2m1(const uint8_t* p, vec table) {
  vec r;
  for (int i = 0; i < 16; i += 2) {
    r.v[i] = table.v[p[i / 2] & 15];
    r.v[i + 1] = table.v[p[i / 2] >> 4];
  }
  return r;
}

}  // namespace troupe::kernels::cpu::portable
