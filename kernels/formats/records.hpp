// KV records: how one token's (or one compressed group's) vector is stored. Each record is its codes, then its scales.
//
//   window record   n E4M3 codes, n/32 UE8M0 scales       n = head_dim, 528 bytes for 512
//   main entry      n/2 bytes of E2M1 pairs, n/16 E4M3 scales   n = head_dim, 288 bytes for 512
//   index key       n/2 bytes of E2M1 pairs, n/32 UE8M0 scales  n = index_head_dim, 68 bytes for 128
//
// In a pair the low nibble is the even channel. The rounding rules are part of the model (the released checkpoint was
// trained with them), so encode followed by decode is what attention sees, never the float vector.
// A block that holds a NaN or an infinity gets a NaN scale and decodes to NaN throughout: the fault stays visible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::kernels::formats {

/// Bytes of each record; n as above, a multiple of 32.
constexpr size_t window_record_bytes(size_t n) { return n + n / 32; }
constexpr size_t main_entry_bytes(size_t n) { return n / 2 + n / 16; }
constexpr size_t index_key_bytes(size_t n) { return n / 2 + n / 32; }
static_assert(window_record_bytes(512) == 528 && main_entry_bytes(512) == 288 && index_key_bytes(128) == 68);

/// FP8: per 32 channels scale = 2^ceil(log2(max(amax, 1e-4) * fp32(1/448))), value = e4m3(x / scale).
void encode_window_record(const float* x, size_t n, uint8_t* record);
void decode_window_record(const uint8_t* record, size_t n, float* x);

/// FP4 with E4M3 scales: per 16 channels scale = e4m3(max(amax, 6 * 2^-9) / 6), value = e2m1(x / scale).
void encode_main_entry(const float* x, size_t n, uint8_t* record);
void decode_main_entry(const uint8_t* record, size_t n, float* x);

/// MXFP4: per 32 channels scale = 2^ceil(log2(max(amax, 6 * 2^-126) * fp32(1/6))), value = e2m1(x / scale). Index keys,
/// and index queries (which are rounded the same way but not stored).
void encode_index_key(const float* x, size_t n, uint8_t* record);
void decode_index_key(const uint8_t* record, size_t n, float* x);

}  // namespace troupe::kernels::formats
