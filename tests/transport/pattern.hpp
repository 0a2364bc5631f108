// Bytes that can be checked without keeping a copy: a function of seed and offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::transport {

inline std::byte pattern_at(uint64_t seed, uint64_t offset) {
  uint64_t z = seed + (offset / 8 + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z ^= z >> 27;
  return static_cast<std::byte>(z >> (offset % 8 * 8));
}

inline void fill_pattern(std::span<std::byte> to, uint64_t seed, uint64_t from = 0) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = pattern_at(seed, from + i);
}

/// First difference, or -1.
inline int64_t check_pattern(std::span<const std::byte> got, uint64_t seed, uint64_t from = 0) {
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i] != pattern_at(seed, from + i)) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace troupe::transport
