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
void rms_norm(const float* x, const weight& w, float eps, float* y);
void add_to(const float* x, size_t count, float* y);
void sigmoid_in_place(float* x, size_t count);
void softmax_gate(const float* const* kv, const float* const* gate, uint32_t ratio, uint32_t dim, float* out);
float mean_square(const float* x, size_t count);
void hc_finish(const float* m, float r, uint32_t hc, const float* base, const float* scale, float hc_eps,
               uint32_t iterations, float* pre, float* post, float* comb);
void hc_collapse(const float* x, uint32_t hc, uint32_t hidden, const float* weights, float* y);
void hc_expand(float* x, uint32_t hc, uint32_t hidden, const float* y, const float* post, const float* comb);
void hc_mean(const float* x, uint32_t hc, uint32_t hidden, float* y);
void engram_gate(float* x, uint32_t hc, uint32_t hidden, const float* kv, const weight& q_weight,
                 const weight& k_weight, float eps, bool masked, float* gates);
void router_scores(const float* logits, uint32_t count, float temperature, float* s);
void swiglu(const float* gate, const float* up, uint32_t count, float limit, float route_weight, float* h);
void attention(const float* q, uint32_t heads, uint32_t dim, const key_list& keys, float scale, const float* sink,
               float* out, float* scratch);
void index_scores(const float* q, const float* w, uint32_t heads, uint32_t dim, const std::byte* const* keys,
                  uint32_t count, float* scores, float* scratch);
void gumbel(const uint32_t* words, size_t count, float* out);
float exp_sum(const float* x, size_t count, float shift, float* out);
float log_one(float x);

}  // namespace troupe::kernels::cpu::TROUPE_ISA
