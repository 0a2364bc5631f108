// The elementary functions of the forward pass over vec16: ours, because a library's differ between CPUs and versions.
// Errors (checked in tests/kernels/cpu_elementary_test.cpp): exp, log, log1p_exp below 2 units in the last place.
#pragma once

#include "kernels/cpu/simd/vec16.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {

/// x rounded to a whole number, ties to even; |x| < 2^22.
inline vec round_even(vec x) {
  const vec magic = set1(12582912.0f);  // 1.5 * 2^23: its unit in the last place is 1
  return sub(add(x, magic), magic);
}

/// 2^n for whole n in [-126, 127].
inline vec power_of_two(vec n) { return from_bits(shift_left<23>(iadd(to_int(n), iset1(127)))); }

inline vec negate(vec x) { return sub(zero(), x); }
inline vec absolute(vec x) { return from_bits(iand(bits(x), iset1(0x7fffffff))); }

/// e^x. 0 below -104 (-inf too), infinity above 89. x = n ln2 + r, |r| <= ln2 / 2; a Taylor polynomial of degree 7 in r
/// (the next term is below 2^-27); 2^n in two factors so that subnormal results come out rounded once.
inline vec exp(vec x) {
  x = min(max(x, set1(-104.0f)), set1(89.0f));
  const vec n = round_even(mul(x, set1(1.44269504088896341f)));
  vec r = fma(n, set1(-0.693359375f), x);        // 9 bits of ln2: n times it is exact
  r = fma(n, set1(2.12194440054690583e-4f), r);  // the rest of ln2, negated
  vec p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const vec half = round_even(mul(n, set1(0.5f)));
  return mul(mul(p, power_of_two(half)), power_of_two(sub(n, half)));
}

/// 1 / (1 + e^-x)
inline vec sigmoid(vec x) { return div(set1(1.0f), add(set1(1.0f), exp(negate(x)))); }

/// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]: log(1 + f) = 2 atanh(s), s = f / (2 + f), as its series to s^9
/// (|s| < 0.172: the next term is below 2^-29 of the result), arranged as f - s (f - z p) to keep f's exactness.
inline vec log1p_rest(vec f) {
  const vec s = div(f, add(f, set1(2.0f)));
  const vec z = mul(s, s);
  vec p = set1(2.0f / 9);
  p = fma(p, z, set1(2.0f / 7));
  p = fma(p, z, set1(2.0f / 5));
  p = fma(p, z, set1(2.0f / 3));
  return negate(mul(s, sub(f, mul(z, p))));
}

/// log(1 + f) for the f of log1p_rest.
inline vec log1p_small(vec f) { return add(f, log1p_rest(f)); }

/// log(x) for positive normal finite x: x = (1 + f) 2^e with 1 + f in [sqrt(1/2), sqrt(2)).
inline vec log(vec x) {
  // Subtracting the bits of sqrt(1/2) makes the exponent field the floor of log2(x / sqrt(1/2)).
  const ivec above = iadd(bits(x), iset1(-0x3f3504f3));
  const vec e = to_float(shift_right<23>(above));
  const vec f = sub(from_bits(iadd(iand(above, iset1(0x007fffff)), iset1(0x3f3504f3))), set1(1.0f));  // exact
  const vec low = add(mul(e, set1(-2.12194440054690583e-4f)), log1p_rest(f));
  return fma(e, set1(0.693359375f), add(f, low));
}

/// log(1 + e^x), softplus: max(x, 0) + log1p(e^-|x|). log1p(t) = log(u) + (t - (u - 1)) / u with u = 1 + t rounded.
inline vec softplus(vec x) {
  const vec t = exp(negate(absolute(x)));
  const vec u = add(set1(1.0f), t);
  const vec rest = sub(t, sub(u, set1(1.0f)));
  return add(max(x, zero()), add(log(u), div(rest, u)));
}

}  // namespace troupe::kernels::cpu::TROUPE_ISA
