// The drafter (DSpark): context records from the target's features, and the pass that drafts a block of tokens.
#include <algorithm>
#include <cmath>

#include "kernels/model/forward.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {

// Context KV of the tail rows for every draft block, from the same projected features.
void forward_pass::draft_context() {
  const uint32_t n = tail_.count();
  const draft_weights& w = m_.weights.draft;
  ops_.linear(where_, features_, n, w.main_proj, main_x_);
  ops_.rms_norm(where_, main_x_, n, w.main_norm, eps_, main_x_);
  if (probe_) probe_->see(probe_point::main_x, 0, main_x_, n, c_.hidden_size);
  for (uint32_t b = 0; b < w.blocks.size(); ++b)
    window_kv(w.blocks[b], main_x_, range(tail_, 0, n), true, context_ + size_t{b} * limits_.max_rows * record_bytes_);
}

uint32_t forward_pass::draft_capacity() const {
  return c_.num_nextn_predict_layers ? limits_.max_rows / c_.dspark_block_size : 0;
}

result<void> forward_pass::draft(ep::group& group, ep::expert_table& table, std::span<const draft_sequence> sequences,
                                 int32_t* tokens, float* confidences) {
  const uint32_t block = c_.dspark_block_size, count = static_cast<uint32_t>(sequences.size());
  const uint32_t n = count * block, hc = c_.hc_mult, h = c_.hidden_size;
  TROUPE_CHECK(count <= draft_capacity(), "{} sequences to draft, at most {}", count, draft_capacity());
  draft_refs_.clear();
  draft_tokens_.clear();
  draft_positions_.clear();
  for (const draft_sequence& s : sequences) {
    const placed_sequence& p = sequences_[s.sequence];
    draft_refs_.push_back({p.rows.slot, s.last, s.floor, p.first_tail, p.tail_position});
    for (uint32_t i = 0; i < block; ++i) {
      draft_tokens_.push_back(i == 0 ? s.anchor : c_.dspark_noise_token_id);
      draft_positions_.push_back(s.last + 1 + i);
    }
  }
  ops_.rope_angles(where_, draft_positions_.data(), n, m_.plain_freqs.data(), pairs_, draft_angles_);
  micro_batch b = batch_at(0, 0, n);
  ops_.embed_streams(where_, draft_tokens_.data(), n, m_.weights.embed, hc, b.x);
  for (uint32_t i = 0; i < m_.weights.draft.blocks.size(); ++i) {
    const layer_weights& w = m_.weights.draft.blocks[i];
    const int64_t start = now();
    mix(b, n, w.hc_attn);
    enter_site(b, n, w.attn_norm);
    ops_.linear(where_, b.u, n, w.wkv, kv_);
    ops_.rms_norm(where_, kv_, n, w.kv_norm, eps_, kv_);
    ops_.window_records(where_, kv_, n, c_.head_dim, draft_angles_, pairs_, slot_records_);
    attention_inputs(w, b.u, n);
    ops_.rope(where_, q_, n, c_.num_attention_heads, c_.head_dim, draft_angles_, pairs_, false);
    ops_.draft_attention(where_, q_, draft_refs_.data(), count, block, c_.num_attention_heads, c_.head_dim,
                         plan_.window, attention_scale_, w.sink, state_.draft(i),
                         context_ + size_t{i} * limits_.max_rows * record_bytes_, slot_records_, attended_);
    project_output(w, n, draft_angles_);
    leave_site(b, n);
    times_.attention += now() - start;

    mix(b, n, w.hc_ffn);
    enter_site(b, n, w.ffn_norm);
    const uint32_t layer = c_.num_hidden_layers + i, k = c_.dspark_num_experts_per_tok;
    if (auto r = send_rows(group, table, b, layer, w, n, k, draft_positions_.data()); !r) return r;
    if (auto r = run_experts(group, table, b, layer, w, n, k); !r) return r;
    if (auto r = add_up(group, table, b, layer, n, k); !r) return r;
    leave_site(b, n);
  }
  ops_.hc_collapse(where_, b.x, n, hc, h, b.pre, u_);
  if (probe_) probe_->see(probe_point::draft_hidden, 0, u_, n, h);
  ops_.rms_norm(where_, u_, n, m_.weights.draft.norm, eps_, u_spare_);
  for (uint32_t first = 0; first < count; first += draft_group_)
    draft_head(sequences, first, std::min(draft_group_, count - first), tokens, confidences);
  return {};
}

// Draws the block's tokens left to right for some of the sequences: u_ holds the hidden rows before the last norm,
// u_spare_ after it, both sequence-major. Logits are laid out slot-major, so that one slot's rows lie together.
void forward_pass::draft_head(std::span<const draft_sequence> sequences, uint32_t first, uint32_t count,
                              int32_t* tokens, float* confidences) {
  const draft_weights& w = m_.weights.draft;
  const uint32_t block = c_.dspark_block_size, h = c_.hidden_size, vocabulary = c_.vocab_size;
  picked_index_.clear();
  for (uint32_t k = 0; k < block; ++k)
    for (uint32_t i = 0; i < count; ++i) picked_index_.push_back((first + i) * block + k);
  const uint32_t n = static_cast<uint32_t>(picked_index_.size());
  ops_.gather_rows(where_, u_spare_, picked_index_.data(), n, h, picked_);
  ops_.linear(where_, picked_, n, m_.weights.head, logits_);
  if (probe_) probe_->see(probe_point::draft_logits, 0, logits_, n, vocabulary);
  ops_.gather_rows(where_, u_, picked_index_.data(), n, h, picked_);
  picked_tokens_.resize(count);
  sample_rows_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    picked_tokens_[i] = sequences[first + i].anchor;
    sample_rows_[i] = sequences[first + i].sampling;
    sample_rows_[i].logprobs = -1;
  }
  for (uint32_t k = 0; k < block; ++k) {
    float* rows = logits_ + size_t{k} * count * vocabulary;
    ops_.embed(where_, picked_tokens_.data(), count, w.markov_embed, markov_);
    ops_.concat(where_, picked_ + size_t{k} * count * h, h, markov_, c_.dspark_markov_rank, count, joined_);
    ops_.linear(where_, joined_, count, w.confidence, confidence_);
    if (probe_) probe_->see(probe_point::draft_confidence, k, confidence_, count, 1);
    if (c_.dspark_confidence.empty()) ops_.sigmoid(where_, confidence_, count);
    ops_.linear(where_, markov_, count, w.markov_head, bias_);
    ops_.add(where_, bias_, size_t{count} * vocabulary, rows);
    for (uint32_t i = 0; i < count; ++i) sample_rows_[i].position = sequences[first + i].last + 2 + k;
    ops_.sample(where_, rows, count, vocabulary, sample_rows_.data(), picked_tokens_.data(), nullptr, nullptr, nullptr);
    for (uint32_t i = 0; i < count; ++i) {
      if (!std::isfinite(confidence_[i])) picked_tokens_[i] = -1;
      tokens[size_t{first + i} * block + k] = picked_tokens_[i];
      picked_tokens_[i] = std::max(picked_tokens_[i], 0);  // the block ends there, but its rows run on
      confidences[size_t{first + i} * block + k] =
          c_.dspark_confidence.empty()
              ? confidence_[i]
              : static_cast<float>(c_.dspark_confidence(confidence_[i], sample_rows_[i].temperature, k));
    }
  }
}

}  // namespace troupe::kernels
