// The CPU implementation of the operators (kernels/ops.hpp), the reference of every other one.
#pragma once

#include <memory>

#include "kernels/cpu/isa.hpp"
#include "kernels/ops.hpp"

namespace troupe::kernels::cpu {

/// Operators that compute on `threads` threads (the caller's included) with the instruction set `which` (supported; the
/// choice changes speed, never a bit of a result). Memory: place.device must be -1; pointers are host pointers.
std::unique_ptr<operators> make_operators(uint32_t threads, isa which = best_isa());

}  // namespace troupe::kernels::cpu
