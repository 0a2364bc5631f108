// Dense products of the CPU operators; kernels/ops.hpp defines them.
#pragma once

#include "kernels/cpu/context.hpp"

namespace troupe::kernels::cpu {

/// operators::linear
void linear(context& c, const float* x, uint32_t n, const weight& w, float* y);
/// operators::grouped_linear
void grouped_linear(context& c, const float* x, uint32_t n, const weight& w, uint32_t groups, float* y);

}  // namespace troupe::kernels::cpu
