// The attention site of the forward pass: window records, compression, selection, attention, output projection.
#include "kernels/model/forward.hpp"

namespace troupe::kernels {

// Window KV of the rows from the site's normalised input. Every layer rotates by its own table: layers that see only
// the window without YaRN, the others with it.
void forward_pass::window_kv(const layer_weights& w, const float* x, const row_set& set, bool plain,
                             std::byte* records) {
  ops_.linear(where_, x, set.count(), w.wkv, kv_);
  ops_.rms_norm(where_, kv_, set.count(), w.kv_norm, eps_, kv_);
  ops_.window_records(where_, kv_, set.count(), c_.head_dim, plain ? set.plain_angles : set.compress_angles, pairs_,
                      records);
}

// Writes the entries and index keys of the groups that this step completes. Index keys come from the latent before
// rotation.
void forward_pass::compress_kv(uint32_t layer, const layer_weights& w) {
  const uint32_t s = static_cast<uint32_t>(plan_.layers[layer].source);
  source_scratch& scratch = sources_[s];
  const uint32_t n = all_.count(), groups = static_cast<uint32_t>(scratch.groups.size());
  const uint32_t ratio = plan_.sources[s].ratio;
  ops_.linear(where_, u_, n, w.compressor_wkv, scratch.kv);
  if (ratio > 1) ops_.linear(where_, u_, n, w.compressor_wgate, scratch.gate);
  ops_.compress(where_, scratch.groups.data(), groups, rows_.data(), scratch.kv, scratch.gate, state_.open(s), ratio,
                w.compressor_norm, eps_, latent_);
  ops_.linear(where_, latent_, groups, w.index_wk, index_k_);
  ops_.rms_norm(where_, index_k_, groups, w.index_k_norm, eps_, index_k_);
  ops_.store_index_key(where_, index_k_, scratch.groups.data(), groups, c_.index_head_dim, scratch.angles, pairs_,
                       state_.keys(s));
  ops_.store_main(where_, latent_, scratch.groups.data(), groups, c_.head_dim, scratch.angles, pairs_,
                  state_.entries(s));
}

// Which compressed entries the rows see; kept for the layers that reuse it.
void forward_pass::select(uint32_t layer, const layer_weights& w, const row_set& set,
                          const std::vector<row_ref>& refs) {
  const layer_plan& plan = plan_.layers[layer];
  const uint32_t n = set.count();
  ops_.linear(where_, qr_, n, w.index_wq_b, index_q_);
  ops_.index_query(where_, index_q_, n, c_.index_n_heads, c_.index_head_dim, set.compress_angles, pairs_);
  ops_.linear(where_, u_, n, w.index_weights, index_w_);
  candidate_blocks candidates{c_.candidate_block_size, c_.candidate_topk_blocks, candidate_blocks_, candidate_counts_};
  size_t stride = 0;
  float* scores = probe_ ? probe_->index_scores(layer, n, stride) : nullptr;
  ops_.index_select(where_, index_q_, index_w_, refs.data(), n, c_.index_n_heads, c_.index_head_dim, plan.ratio,
                    state_.keys(static_cast<uint32_t>(plan.source)), c_.index_topk, selected_, counts_,
                    plan.publishes_candidates ? &candidates : nullptr, plan.within_candidates ? &candidates : nullptr,
                    scores, stride);
  if (!probe_) return;
  probe_->see(probe_point::selected_counts, layer, counts_, n, 1);
  probe_->see(probe_point::selected, layer, selected_, n, c_.index_topk);
  if (!plan.publishes_candidates) return;
  probe_->see(probe_point::candidate_counts, layer, candidate_counts_, n, 1);
  probe_->see(probe_point::candidate_blocks, layer, candidate_blocks_, n, c_.candidate_topk_blocks);
}

// From the site's normalised input u_ of `set` to the sublayer's output y_.
void forward_pass::attend(uint32_t layer, const layer_weights& w, const row_set& set,
                          const std::vector<row_ref>& refs) {
  const layer_plan& plan = plan_.layers[layer];
  const uint32_t n = set.count(), heads = c_.num_attention_heads, dim = c_.head_dim;
  const bool compressed = plan.ratio > 0;
  const float* angles = compressed ? set.compress_angles : set.plain_angles;
  attention_inputs(w, n);
  ops_.rope(where_, q_, n, heads, dim, angles, pairs_, false);
  if (plan.role == layer_role::full || plan.role == layer_role::reindex) select(layer, w, set, refs);
  ops_.attention(where_, q_, refs.data(), n, heads, dim, plan_.window, attention_scale_, w.sink, state_.window(layer),
                 records(layer), compressed ? selected_ : nullptr, compressed ? counts_ : nullptr, c_.index_topk,
                 compressed ? state_.entries(static_cast<uint32_t>(plan.source)) : paged_view{}, attended_);
  project_output(w, n, angles);
}

void forward_pass::attention_inputs(const layer_weights& w, uint32_t n) {
  ops_.linear(where_, u_, n, w.wq_a, qr_);
  ops_.rms_norm(where_, qr_, n, w.q_norm, eps_, qr_);
  ops_.linear(where_, qr_, n, w.wq_b, q_);
}

// Values carry the keys' rotation, so it is undone at the query's position.
void forward_pass::project_output(const layer_weights& w, uint32_t n, const float* angles) {
  ops_.rope(where_, attended_, n, c_.num_attention_heads, c_.head_dim, angles, pairs_, true);
  ops_.grouped_linear(where_, attended_, n, w.wo_a, c_.o_groups, out_a_);
  ops_.linear(where_, out_a_, n, w.wo_b, y_);
}

}  // namespace troupe::kernels
