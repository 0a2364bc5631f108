// Which vector instructions the kernels use. Chosen at run time; every choice gives the same bits.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/cpu/kernels.hpp"

namespace troupe::kernels::cpu {

/// Instruction sets of the kernels, narrowest first.
enum class isa { portable, avx2, avx512 };

/// "portable", "avx2", "avx512".
const char* to_string(isa i);
/// The inverse of to_string; nothing for another text.
std::optional<isa> isa_from_string(std::string_view text);

/// Whether this CPU and operating system run it. portable: always.
bool supported(isa i);
/// The widest supported one.
isa best_isa();

/// The kernels of a supported instruction set (checked).
const kernel_table& kernels_of(isa i);

}  // namespace troupe::kernels::cpu
