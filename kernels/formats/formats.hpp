// The number formats of the checkpoint and of the KV cache: scalar codes. All conversions round to nearest even and are
// pure functions of their arguments. Sources: OCP 8-bit floating point and microscaling (MX) formats.
#pragma once

#include <cstdint>

namespace troupe::kernels::formats {

/// E4M3 (no infinities; 0x7f and 0xff are NaN), largest magnitude 448. Value of a code; exact.
float decode_e4m3(uint8_t code);
/// Nearest E4M3 code, ties to even; magnitudes above 448 and infinities saturate to 448; NaN gives 0x7f or 0xff by
/// sign.
uint8_t encode_e4m3(float x);

/// UE8M0 scale: 2^(code - 127), code 255 is NaN. Exact (code 0 is the subnormal 2^-127).
float decode_ue8m0(uint8_t code);
/// Code of 2^ceil(log2(x)) read from the bits of x. x must be a positive normal number; infinity, NaN and anything that
/// is not positive give 255.
uint8_t ceil_ue8m0(float x);

/// E2M1: the low four bits of `code` are a sign (bit 3) and a magnitude out of {0, .5, 1, 1.5, 2, 3, 4, 6}. Exact.
float decode_e2m1(uint8_t code);
/// Nearest E2M1 code, ties to the even code (.25, 1.25, 2.5 and 5 go down, .75, 1.75 and 3.5 go up); magnitudes above 6
/// saturate. There is no NaN code: NaN gives the code of zero, and block quantisers mark the block's scale instead.
uint8_t encode_e2m1(float x);

/// bfloat16: the upper half of a float. Exact.
float decode_bf16(uint16_t code);
/// Nearest bfloat16, ties to even; overflow gives infinity; NaN stays NaN (quiet).
uint16_t encode_bf16(float x);

}  // namespace troupe::kernels::formats
