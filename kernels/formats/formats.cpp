#include "kernels/formats/formats.hpp"

#include <bit>

namespace troupe::kernels::formats {
namespace {

constexpr uint32_t magnitude_mask = 0x7fffffffu;
constexpr uint32_t infinity_bits = 0x7f800000u;

}  // namespace

float decode_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80) << 24;
  const uint32_t m = code & 0x7f;
  if (m == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (m < 8) {  // subnormal: m * 2^-9
    const float v = float(m) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
  }
  return std::bit_cast<float>(sign | ((m << 20) + (120u << 23)));
}

uint8_t encode_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = uint8_t((bits >> 24) & 0x80);
  uint32_t u = bits & magnitude_mask;
  if (u > infinity_bits) return sign | 0x7f;
  if (u >= std::bit_cast<uint32_t>(464.0f)) return sign | 0x7e;  // 464 is the tie of 448 and the absent 480
  if (u < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Adding 2^14, whose unit in the last place is 2^-9, rounds to a multiple of the subnormal step.
    const float t = std::bit_cast<float>(u) + 16384.0f;
    return sign | uint8_t(std::bit_cast<uint32_t>(t) - std::bit_cast<uint32_t>(16384.0f));
  }
  u += 0x7ffffu + ((u >> 20) & 1);
  return sign | uint8_t((u - (120u << 23)) >> 20);
}

float decode_ue8m0(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : uint32_t(code) << 23);
}

uint8_t ceil_ue8m0(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (u == 0 || u >= infinity_bits) return 255;  // zero, NaN, infinity, and everything with the sign bit
  const uint32_t e = (u >> 23) + ((u & 0x7fffffu) != 0);
  return uint8_t(e);
}

float decode_e2m1(uint8_t code) {
  static constexpr float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return values[code & 15];
}

uint8_t encode_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float a = std::bit_cast<float>(bits & magnitude_mask);
  const int m = int(a > 0.25f) + int(a >= 0.75f) + int(a > 1.25f) + int(a >= 1.75f) + int(a > 2.5f) + int(a >= 3.5f) +
                int(a > 5.0f);
  return uint8_t(((bits >> 28) & 8) | uint32_t(m));
}

float decode_bf16(uint16_t code) { return std::bit_cast<float>(uint32_t(code) << 16); }

uint16_t encode_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & magnitude_mask) > infinity_bits) return uint16_t((u >> 16) | 0x40);
  u += 0x7fffu + ((u >> 16) & 1);
  return uint16_t(u >> 16);
}

}  // namespace troupe::kernels::formats
