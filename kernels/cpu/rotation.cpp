#include "kernels/cpu/rotation.hpp"

#include "kernels/cpu/operators_impl.hpp"

namespace troupe::kernels::cpu {

void cos_sin(float x, float* cosine, float* sine) {
  // x = n pi/2 + r, |r| <= pi/4. The first part of pi/2 has 33 bits, so that n times it is exact for n < 2^20.
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
  const double n = (double(x) * 0.63661977236758134308 + magic) - magic;
  const double r = (double(x) - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  const double z = r * r;
  // Taylor: the next terms are below 2^-47.
  const double s =
      r * (1 + z * (-1.0 / 6 +
                    z * (1.0 / 120 +
                         z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z * (1.0 / 6227020800.0)))))));
  const double c =
      1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 +
                                                             z * (-1.0 / 3628800 + z * (1.0 / 479001600.0 -
                                                                                        z * (1.0 / 87178291200.0)))))));
  switch (int64_t(n) & 3) {
    case 0:
      *cosine = float(c), *sine = float(s);
      break;
    case 1:
      *cosine = float(-s), *sine = float(c);
      break;
    case 2:
      *cosine = float(-c), *sine = float(-s);
      break;
    default:
      *cosine = float(s), *sine = float(-c);
      break;
  }
}

void cpu_operators::rope_angles(place, const uint32_t* positions, uint32_t n, const float* freqs, uint32_t pairs,
                                float* angles) {
  each_row(c_, n, [&](uint32_t i) {
    for (uint32_t j = 0; j < pairs; ++j) {
      float* a = angles + (size_t(i) * pairs + j) * 2;
      cos_sin(float(positions[i]) * freqs[j], a, a + 1);
    }
  });
}

void cpu_operators::rope(place, float* x, uint32_t n, uint32_t heads, uint32_t dim, const float* angles, uint32_t pairs,
                         bool inverse) {
  each_row(c_, n, [&](uint32_t i) {
    for (uint32_t h = 0; h < heads; ++h)
      rotate(x + (size_t(i) * heads + h + 1) * dim - 2 * pairs, angles + size_t(i) * pairs * 2, pairs,
             inverse ? -1.0f : 1.0f);
  });
}

}  // namespace troupe::kernels::cpu
