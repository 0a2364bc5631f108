#include "kernels/cpu/simd/tables.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {

#define TROUPE_TEXT_OF(x) #x
#define TROUPE_TEXT(x) TROUPE_TEXT_OF(x)

extern const kernel_table table;
const kernel_table table = {
    .name = TROUPE_TEXT(TROUPE_ISA),
    .linear_tile = linear_tile,
    .dequantise_row = dequantise_row,
    .rms_norm = rms_norm,
    .add = add_to,
    .sigmoid = sigmoid_in_place,
    .softmax_gate = softmax_gate,
    .mean_square = mean_square,
    .hc_finish = hc_finish,
    .hc_collapse = hc_collapse,
    .hc_expand = hc_expand,
    .hc_mean = hc_mean,
    .engram_gate = engram_gate,
    .router_scores = router_scores,
    .swiglu = swiglu,
    .attention = attention,
    .index_scores = index_scores,
    .gumbel = gumbel,
    .exp_sum = exp_sum,
    .log = log_one,
};

}  // namespace troupe::kernels::cpu::TROUPE_ISA
