// The class behind make_operators. Its functions are spread over files by subject: operators.cpp (memory), dense.cpp,
// streams.cpp, records.cpp, selection.cpp, attention.cpp, experts.cpp, sampling.cpp.
#pragma once

#include <string>

#include "kernels/cpu/context.hpp"
#include "kernels/cpu/operators.hpp"

namespace troupe::kernels::cpu {

/// kernels/ops.hpp documents every function.
class cpu_operators final : public operators {
 public:
  cpu_operators(uint32_t threads, isa which);
  const char* name() const override;

  // memory
  std::byte* allocate(place where, size_t bytes) override;
  void release(place where, std::byte* data, size_t bytes) override;
  void copy(place where, void* to, const void* from, size_t bytes) override;
  void synchronise(place where) override;

  // dense
  void linear(place where, const float* x, uint32_t n, const weight& w, float* y) override;
  void grouped_linear(place where, const float* x, uint32_t n, const weight& w, uint32_t groups, float* y) override;
  void rms_norm(place where, const float* x, uint32_t n, const weight& w, float eps, float* y) override;
  void embed(place where, const int32_t* tokens, uint32_t n, const weight& w, float* y) override;
  void add(place where, const float* x, size_t count, float* y) override;
  void concat(place where, const float* a, uint32_t a_width, const float* b, uint32_t b_width, uint32_t n,
              float* y) override;
  void sigmoid(place where, float* x, size_t count) override;
  void gather_rows(place where, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) override;
  void scatter_rows(place where, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) override;

  // rope
  void rope_angles(place where, const uint32_t* positions, uint32_t n, const float* freqs, uint32_t pairs,
                   float* angles) override;
  void rope(place where, float* x, uint32_t n, uint32_t heads, uint32_t dim, const float* angles, uint32_t pairs,
            bool inverse) override;

  // key/value records
  void window_records(place where, const float* kv, uint32_t n, uint32_t dim, const float* angles, uint32_t pairs,
                      std::byte* records) override;
  void store_records(place where, const std::byte* records, const record_copy* copies, uint32_t n,
                     const ring_view& ring) override;
  void compress(place where, const group_ref* groups, uint32_t count, const row_ref* rows, const float* kv,
                const float* gate, const float* open, uint32_t ratio, const weight& norm, float eps,
                float* latent) override;
  void store_open(place where, const float* kv, const float* gate, uint32_t dim, const record_copy* copies, uint32_t n,
                  uint32_t ratio, float* open) override;
  void store_main(place where, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                  const float* angles, uint32_t pairs, const paged_view& entries) override;
  void store_index_key(place where, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                       const float* angles, uint32_t pairs, const paged_view& keys) override;
  void index_query(place where, float* q, uint32_t n, uint32_t heads, uint32_t dim, const float* angles,
                   uint32_t pairs) override;

  // selection and attention
  void index_select(place where, const float* q, const float* w, const row_ref* rows, uint32_t n, uint32_t heads,
                    uint32_t dim, uint32_t ratio, const paged_view& keys, uint32_t topk, uint32_t* selected,
                    uint32_t* counts, const candidate_blocks* publish, const candidate_blocks* within, float* scores,
                    size_t scores_stride) override;
  void attention(place where, const float* q, const row_ref* rows, uint32_t n, uint32_t heads, uint32_t dim,
                 uint32_t window, float scale, const float* sink, const ring_view& ring, const std::byte* records,
                 const uint32_t* selected, const uint32_t* counts, uint32_t topk, const paged_view& entries,
                 float* out) override;
  void draft_attention(place where, const float* q, const draft_ref* sequences, uint32_t n, uint32_t block,
                       uint32_t heads, uint32_t dim, uint32_t window, float scale, const float* sink,
                       const ring_view& ring, const std::byte* context, const std::byte* slots, float* out) override;

  // residual streams
  void embed_streams(place where, const int32_t* tokens, uint32_t n, const weight& w, uint32_t hc, float* x) override;
  void hc_mix(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const hc_weights& w, float eps,
              float hc_eps, uint32_t iterations, float* pre, float* post, float* comb) override;
  void hc_collapse(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* pre,
                   float* u) override;
  void hc_expand(place where, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* y, const float* post,
                 const float* comb) override;
  void hc_mean(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, float* y,
               size_t y_stride) override;

  // engram
  void engram_gather(place where, const weight& table, const uint32_t* rows, uint32_t n, uint32_t columns,
                     float* y) override;
  void engram_gate(place where, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* kv,
                   const weight& q_weight, const weight& k_weight, float eps, const uint8_t* masked,
                   float* gates) override;

  // experts
  void route(place where, const float* logits, uint32_t n, uint32_t experts, const float* bias, float temperature,
             uint32_t k, float scale, uint32_t* ids, float* weights) override;
  void fetch_expert(place where, const expert_weights& w) override;
  void expert_mlp(place where, const float* x, const expert_item* items, uint32_t count, const expert_weights* experts,
                  uint32_t expert_count, float limit, float* y) override;
  void combine_add(place where, const float* parts, uint32_t n, uint32_t k, uint32_t hidden, const float* shared,
                   float* y) override;

  // sampling
  void sample(place where, const float* logits, uint32_t n, uint32_t vocabulary, const sample_row* rows,
              int32_t* tokens, float* logprobs, int32_t* top_tokens, float* top_logprobs) override;

 private:
  context c_;
  std::string name_;
};

}  // namespace troupe::kernels::cpu
