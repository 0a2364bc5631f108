// The attention site of the forward pass: window records, compression, selection, attention, output projection.
#include <algorithm>

#include "kernels/model/forward.hpp"

namespace troupe::kernels {

// Window KV of the rows from the site's normalised input. Every layer rotates by its own table: layers that see only
// the window without YaRN, the others with it.
void forward_pass::window_kv(const layer_weights& w, const float* x, const row_range& rows, bool plain,
                             std::byte* records) {
  ops_.linear(where_, x, rows.count, w.wkv, kv_);
  ops_.rms_norm(where_, kv_, rows.count, w.kv_norm, eps_, kv_);
  ops_.window_records(where_, kv_, rows.count, c_.head_dim, plain ? rows.plain_angles : rows.compress_angles, pairs_,
                      records);
}

// Writes the entries and index keys of the groups that these rows complete; earlier rows of a group may be of the
// micro-batch before. Index keys come from the latent before rotation.
void forward_pass::compress_kv(const micro_batch& b, uint32_t layer, const layer_weights& w) {
  const uint32_t s = static_cast<uint32_t>(plan_.layers[layer].source);
  source_scratch& scratch = sources_[s];
  const uint32_t ratio = plan_.sources[s].ratio;
  const size_t at = size_t{b.first} * c_.head_dim;
  ops_.linear(where_, b.u, b.count, w.compressor_wkv, scratch.kv + at);
  if (ratio > 1) ops_.linear(where_, b.u, b.count, w.compressor_wgate, scratch.gate + at);
  auto completed_by = [&](uint32_t row) {
    return std::lower_bound(scratch.groups.begin(), scratch.groups.end(), row,
                            [](const group_ref& g, uint32_t r) { return g.row < r; }) -
           scratch.groups.begin();
  };
  const auto first = completed_by(b.first), end = completed_by(b.first + b.count);
  const group_ref* refs = scratch.groups.data() + first;
  const auto groups = static_cast<uint32_t>(end - first);
  const float* angles = scratch.angles + first * pairs_ * 2;
  ops_.compress(where_, refs, groups, rows_.data(), scratch.kv, scratch.gate, state_.open(s), ratio, w.compressor_norm,
                eps_, latent_);
  ops_.linear(where_, latent_, groups, w.index_wk, index_k_);
  ops_.rms_norm(where_, index_k_, groups, w.index_k_norm, eps_, index_k_);
  ops_.store_index_key(where_, index_k_, refs, groups, c_.index_head_dim, angles, pairs_, state_.keys(s));
  ops_.store_main(where_, latent_, refs, groups, c_.head_dim, angles, pairs_, state_.entries(s));
}

// Which compressed entries the rows see; kept for the layers that reuse it.
void forward_pass::select(const micro_batch& b, uint32_t layer, const layer_weights& w, const row_range& rows,
                          const row_ref* refs) {
  const layer_plan& plan = plan_.layers[layer];
  const uint32_t n = rows.count;
  ops_.linear(where_, qr_, n, w.index_wq_b, index_q_);
  ops_.index_query(where_, index_q_, n, c_.index_n_heads, c_.index_head_dim, rows.compress_angles, pairs_);
  ops_.linear(where_, b.u, n, w.index_weights, index_w_);
  candidate_blocks candidates{c_.candidate_block_size, c_.candidate_topk_blocks, b.candidate_blocks,
                              b.candidate_counts};
  size_t stride = 0;
  float* scores = probe_ ? probe_->index_scores(layer, n, stride) : nullptr;
  ops_.index_select(where_, index_q_, index_w_, refs, n, c_.index_n_heads, c_.index_head_dim, plan.ratio,
                    state_.keys(static_cast<uint32_t>(plan.source)), c_.index_topk, b.selected, b.counts,
                    plan.publishes_candidates ? &candidates : nullptr, plan.within_candidates ? &candidates : nullptr,
                    scores, stride);
  if (!probe_) return;
  probe_->see(probe_point::selected_counts, layer, b.counts, n, 1);
  probe_->see(probe_point::selected, layer, b.selected, n, c_.index_topk);
  if (!plan.publishes_candidates) return;
  probe_->see(probe_point::candidate_counts, layer, b.candidate_counts, n, 1);
  probe_->see(probe_point::candidate_blocks, layer, b.candidate_blocks, n, c_.candidate_topk_blocks);
}

// From the site's normalised input u to the sublayer's output y_.
void forward_pass::attend(const micro_batch& b, uint32_t layer, const layer_weights& w, const row_range& rows,
                          const row_ref* refs) {
  const layer_plan& plan = plan_.layers[layer];
  const uint32_t n = rows.count, heads = c_.num_attention_heads, dim = c_.head_dim;
  const bool compressed = plan.ratio > 0;
  const float* angles = compressed ? rows.compress_angles : rows.plain_angles;
  attention_inputs(w, b.u, n);
  ops_.rope(where_, q_, n, heads, dim, angles, pairs_, false);
  if (plan.role == layer_role::full || plan.role == layer_role::reindex) select(b, layer, w, rows, refs);
  ops_.attention(where_, q_, refs, n, heads, dim, plan_.window, attention_scale_, w.sink, state_.window(layer),
                 records(layer), compressed ? b.selected : nullptr, compressed ? b.counts : nullptr, c_.index_topk,
                 compressed ? state_.entries(static_cast<uint32_t>(plan.source)) : paged_view{}, attended_);
  project_output(w, n, angles);
}

void forward_pass::attention_inputs(const layer_weights& w, const float* u, uint32_t n) {
  ops_.linear(where_, u, n, w.wq_a, qr_);
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
