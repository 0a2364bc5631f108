#include "kernels/formats/records.hpp"

#include <bit>
#include <cmath>

#include "kernels/formats/formats.hpp"

namespace troupe::kernels::formats {
namespace {

/// Largest magnitude of n values; NaN if one of them is NaN or infinite.
float largest(const float* x, size_t n) {
  uint32_t m = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    m = u > m ? u : m;  // magnitudes order like their bits
  }
  return m >= 0x7f800000u ? std::bit_cast<float>(0x7fc00000u) : std::bit_cast<float>(m);
}

/// max(a, floor) that keeps a NaN.
float at_least(float a, float floor) { return a < floor ? floor : a; }

/// Packs n values divided by `scale` into n/2 bytes.
void pack_e2m1(const float* x, size_t n, float scale, uint8_t* out) {
  for (size_t i = 0; i < n; i += 2)
    out[i / 2] = uint8_t(encode_e2m1(x[i] / scale) | (encode_e2m1(x[i + 1] / scale) << 4));
}

void unpack_e2m1(const uint8_t* in, size_t n, float scale, float* x) {
  for (size_t i = 0; i < n; i += 2) {
    x[i] = decode_e2m1(in[i / 2] & 15) * scale;
    x[i + 1] = decode_e2m1(in[i / 2] >> 4) * scale;
  }
}

}  // namespace

void encode_window_record(const float* x, size_t n, uint8_t* record) {
  for (size_t b = 0; b < n / 32; ++b) {
    const float* block = x + b * 32;
    const uint8_t code = ceil_ue8m0(at_least(largest(block, 32), 1e-4f) * (1.0f / 448.0f));
    const float scale = decode_ue8m0(code);
    for (size_t i = 0; i < 32; ++i) record[b * 32 + i] = encode_e4m3(block[i] / scale);
    record[n + b] = code;
  }
}

void decode_window_record(const uint8_t* record, size_t n, float* x) {
  for (size_t b = 0; b < n / 32; ++b) {
    const float scale = decode_ue8m0(record[n + b]);
    for (size_t i = 0; i < 32; ++i) x[b * 32 + i] = decode_e4m3(record[b * 32 + i]) * scale;
  }
}

void encode_main_entry(const float* x, size_t n, uint8_t* record) {
  for (size_t b = 0; b < n / 16; ++b) {
    const float* block = x + b * 16;
    const uint8_t code = encode_e4m3(at_least(largest(block, 16), 6.0f * 0x1p-9f) / 6.0f);
    pack_e2m1(block, 16, decode_e4m3(code), record + b * 8);
    record[n / 2 + b] = code;
  }
}

void decode_main_entry(const uint8_t* record, size_t n, float* x) {
  for (size_t b = 0; b < n / 16; ++b) unpack_e2m1(record + b * 8, 16, decode_e4m3(record[n / 2 + b]), x + b * 16);
}

void encode_index_key(const float* x, size_t n, uint8_t* record) {
  for (size_t b = 0; b < n / 32; ++b) {
    const float* block = x + b * 32;
    const uint8_t code = ceil_ue8m0(at_least(largest(block, 32), 6.0f * 0x1p-126f) * (1.0f / 6.0f));
    pack_e2m1(block, 32, decode_ue8m0(code), record + b * 16);
    record[n / 2 + b] = code;
  }
}

void decode_index_key(const uint8_t* record, size_t n, float* x) {
  for (size_t b = 0; b < n / 32; ++b) unpack_e2m1(record + b * 16, 32, decode_ue8m0(record[n / 2 + b]), x + b * 32);
}

}  // namespace troupe::kernels::formats
