// Declarations of one instruction set's kernels; the comments are in kernels/cpu/kernels.hpp.
#pragma once

#include "kernels/cpu/kernels.hpp"

#if !defined(TROUPE_ISA)
#error "kernel sources are compiled once per instruction set with TROUPE_ISA set"
#endif

namespace troupe::kernels::cpu::TROUPE_ISA {

void linear_tile(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
                 float* scratch);
void dequantise_row(const weight& w, uint32_t row, float* y);

}  // namespace troupe::kernels::cpu::TROUPE_ISA
