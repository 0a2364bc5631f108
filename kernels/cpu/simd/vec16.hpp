// Sixteen float lanes, the unit in which every kernel is written once and compiled three times (TROUPE_ISA = portable,
// avx2, avx512; the build sets it with the matching compiler flags). All three give the same bits: each operation below
// is either exact, or rounded once as IEEE 754 says, and `sum` has one fixed tree.
//
// Kernel sources include only this folder and plain C headers: an inline function of a shared header, compiled here for
// AVX-512, could otherwise be the copy that the linker picks for a CPU that lacks it.
//
//   load, store         16 floats, any alignment
//   add sub mul div sqrt fma(a, b, c) = a * b + c    each rounded once
//   min(a, b) = a < b ? a : b;  max(a, b) = a > b ? a : b
//   less, select(m, a, b) = m ? a : b
//   sum                 s8[i] = v[i] + v[i+8], s4[i] = s8[i] + s8[i+4], s2[i] = s4[i] + s4[i+2], s2[0] + s2[1]
//   sum4                four sums, stored
//   largest             the maximum lane (no NaN expected)
//   load_bf16           16 bf16
//   load_e4m3           16 e4m3 codes, each times 2^-8 (exact; so that the path through half precision needs no fix-up)
//   load_e4m3_pair      32 of them
//   load_e2m1(p, t)     16 e2m1 codes from 8 bytes, low nibble first, times the scale of t = e2m1_table(scale)
#pragma once

#if !defined(TROUPE_ISA)
#error "kernel sources are compiled once per instruction set with TROUPE_ISA set"
#endif
#include TROUPE_ISA_HEADER
