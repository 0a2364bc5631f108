// Deterministic choice of the k largest values: ties go to the lower index.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

namespace troupe::kernels::cpu {

/// An integer that orders like x: total (a NaN cannot break a sort), with -0 equal to 0.
inline int32_t order_key(float x) {
  const int32_t b = std::bit_cast<int32_t>(x + 0.0f);
  return b ^ ((b >> 31) & 0x7fffffff);
}

/// Calls emit(i), i rising, for the k largest of keys[0, n); ties at the cut go to the lowest i. work: n values.
template <class Emit>
void top_k(const int32_t* keys, uint32_t n, uint32_t k, int32_t* work, Emit&& emit) {
  if (k >= n) {
    for (uint32_t i = 0; i < n; ++i) emit(i);
    return;
  }
  if (k == 0) return;
  std::copy(keys, keys + n, work);
  std::nth_element(work, work + (k - 1), work + n, std::greater<>());
  const int32_t cut = work[k - 1];
  uint32_t equal = k;  // how many of the values at the cut are wanted
  for (uint32_t i = 0; i < k; ++i) equal -= work[i] > cut;
  for (uint32_t i = 0; i < n; ++i) {
    if (keys[i] > cut) {
      emit(i);
    } else if (keys[i] == cut && equal > 0) {
      --equal;
      emit(i);
    }
  }
}

}  // namespace troupe::kernels::cpu
