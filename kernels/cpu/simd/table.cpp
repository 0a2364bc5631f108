#include "kernels/cpu/simd/tables.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {

#define TROUPE_TEXT_OF(x) #x
#define TROUPE_TEXT(x) TROUPE_TEXT_OF(x)

extern const kernel_table table;
const kernel_table table = {
    .name = TROUPE_TEXT(TROUPE_ISA),
    .linear_tile = linear_tile,
    .dequantise_row = dequantise_row,
};

}  // namespace troupe::kernels::cpu::TROUPE_ISA
