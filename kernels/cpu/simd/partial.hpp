// The last, incomplete vector of an array.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd/vec16.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {

/// The first n (1 to 16) floats at p; the other lanes hold `fill`.
inline vec load_part(const float* p, size_t n, float fill) {
  if (n >= 16) return load(p);
  float buffer[16];
  for (size_t i = 0; i < 16; ++i) buffer[i] = i < n ? p[i] : fill;
  return load(buffer);
}

/// Stores the first n (1 to 16) lanes.
inline void store_part(float* p, size_t n, vec v) {
  if (n >= 16) return store(p, v);
  float buffer[16];
  store(buffer, v);
  for (size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace troupe::kernels::cpu::TROUPE_ISA
