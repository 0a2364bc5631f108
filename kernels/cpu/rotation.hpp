// Rotary position embedding: angles and the rotation of one head.
#pragma once

#include <cstdint>

namespace troupe::kernels::cpu {

/// cos(x) and sin(x) for |x| < 1.6e6, each within a float's rounding of the true value. Plain double arithmetic without
/// a library call, so the same on every machine.
void cos_sin(float x, float* cosine, float* sine);

/// Rotates 2 * pairs channels by the angles (cos, sin); direction -1 is the inverse rotation.
inline void rotate(float* x, const float* angles, uint32_t pairs, float direction) {
  for (uint32_t j = 0; j < pairs; ++j) {
    const float c = angles[2 * j], s = angles[2 * j + 1] * direction, a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * c - b * s;
    x[2 * j + 1] = a * s + b * c;
  }
}

}  // namespace troupe::kernels::cpu
