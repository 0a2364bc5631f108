// The layers of a step, in one or two micro-batches: while one computes, the other's rows are on their way to or from
// the experts. Rows do not depend on each other but through the records and entries of earlier rows of their sequence,
// which are written before; so where the rows are split changes nothing.
#include <algorithm>

#include "kernels/model/forward.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {

forward_pass::micro_batch forward_pass::batch_at(uint32_t number, uint32_t first, uint32_t count) const {
  const size_t hc = c_.hc_mult, h = c_.hidden_size, at = first;
  const size_t k = std::max(c_.num_experts_per_tok, c_.dspark_num_experts_per_tok);
  micro_batch b;
  b.number = number;
  b.first = first;
  b.count = count;
  b.x = x_ + at * hc * h;
  b.x_spare = x_spare_ + at * hc * h;
  b.pre = pre_ + at * hc;
  b.pre_next = pre_next_ + at * hc;
  b.post = post_ + at * hc;
  b.comb = comb_ + at * hc * hc;
  b.u = u_ + at * h;
  b.u_spare = u_spare_ + at * h;
  b.parts = parts_ + at * k * h;
  b.shared = shared_ + at * h;
  b.selected = selected_ + at * c_.index_topk;
  b.counts = counts_ + at;
  b.candidate_blocks = candidate_blocks_ + at * c_.candidate_topk_blocks;
  b.candidate_counts = candidate_counts_ + at;
  return b;
}

// Halves, the first the larger; the tail rows go with their rows.
void forward_pass::split(uint32_t micro_batches) {
  TROUPE_CHECK(micro_batches >= 1 && micro_batches <= batches_.size(), "{} micro-batches", micro_batches);
  TROUPE_CHECK(micro_batches == 1 || !probe_, "a probe sees whole steps only");
  const uint32_t half = micro_batches == 1 ? rows() : (rows() + 1) / 2;
  const auto tail =
      static_cast<uint32_t>(std::lower_bound(tail_of_all_.begin(), tail_of_all_.end(), half) - tail_of_all_.begin());
  batches_[0] = batch_at(0, 0, half);
  batches_[0].tail_count = tail;
  batches_[1] = batch_at(1, half, rows() - half);
  batches_[1].first_tail = tail;
  batches_[1].tail_count = tail_.count() - tail;
}

forward_pass::row_range forward_pass::range(const row_set& set, uint32_t first, uint32_t count) const {
  const size_t angles = size_t{first} * pairs_ * 2;
  return {count, set.positions.data() + first, set.plain_angles + angles, set.compress_angles + angles};
}

void forward_pass::engram(const micro_batch& b, uint32_t layer, uint32_t first, uint32_t n) {
  const uint32_t module = static_cast<uint32_t>(plan_.layers[layer].engram);
  const engram_weights& w = m_.weights.engram[module];
  const uint32_t* rows = engram_rows_[module].data() + size_t{first} * m_.hash.columns();
  ops_.engram_gather(where_, w.table, rows, n, m_.hash.columns(), engram_values_);
  ops_.linear(where_, engram_values_, n, w.wkv, engram_kv_);
  ops_.engram_gate(where_, b.x, n, c_.hc_mult, c_.hidden_size, engram_kv_, w.q_weight, w.k_weight, eps_, nullptr,
                   probe_ ? engram_gates_ : nullptr);
  if (probe_) {
    probe_->see(probe_point::engram_rows, module, rows, n, m_.hash.columns());
    probe_->see(probe_point::engram_gate, module, engram_gates_, n, c_.hc_mult);
  }
}

// The site's mix, computed from the streams before the site changes them.
void forward_pass::mix(const micro_batch& b, uint32_t n, const hc_weights& w) {
  ops_.hc_mix(where_, b.x, n, c_.hc_mult, c_.hidden_size, w, eps_, static_cast<float>(c_.hc_eps), c_.hc_sinkhorn_iters,
              b.pre_next, b.post, b.comb);
}

// The site's normalised input, to u.
void forward_pass::enter_site(micro_batch& b, uint32_t n, const weight& norm) {
  ops_.hc_collapse(where_, b.x, n, c_.hc_mult, c_.hidden_size, b.first_site ? nullptr : b.pre, b.u);
  ops_.rms_norm(where_, b.u, n, norm, eps_, b.u);
  b.first_site = false;
}

// Adds the sublayer's output y_ to the streams.
void forward_pass::leave_site(micro_batch& b, uint32_t n) {
  ops_.hc_expand(where_, b.x, n, c_.hc_mult, c_.hidden_size, y_, b.post, b.comb);
  std::swap(b.pre, b.pre_next);
}

void forward_pass::to_tail(micro_batch& b) {
  const uint32_t n = b.tail_count;
  if (n == b.count) return;  // every row goes on; the sets are the same
  const uint32_t hc = c_.hc_mult, h = c_.hidden_size;
  picked_rows_.clear();
  for (uint32_t i = 0; i < n; ++i) picked_rows_.push_back(tail_of_all_[b.first_tail + i] - b.first);
  ops_.gather_rows(where_, b.x, picked_rows_.data(), n, size_t{hc} * h, b.x_spare);
  std::swap(b.x, b.x_spare);
  ops_.gather_rows(where_, b.u, picked_rows_.data(), n, h, b.u_spare);
  std::swap(b.u, b.u_spare);
}

// Returns false where the rows stop: at the first decoder layer's KV when nobody needs more.
bool forward_pass::attention_site(micro_batch& b, uint32_t l, bool decoder) {
  const uint32_t first_decoder = plan_.encoder_layers, h = c_.hidden_size;
  const layer_weights& w = m_.weights.layers[l];
  const layer_plan& plan = plan_.layers[l];
  const bool enters_whole = l <= first_decoder, leaves_whole = l < first_decoder;
  const row_range in = enters_whole ? all_of(b) : tail_of(b);
  const uint32_t first = enters_whole ? b.first : b.first_tail;
  if (plan.engram >= 0) engram(b, l, first, in.count);

  const int64_t start = now();
  enter_site(b, in.count, w.attn_norm);
  std::byte* written = records(l) + first * record_bytes_;
  window_kv(w, b.u, in, plan.ratio == 0, written);
  if (probe_) probe_->see(probe_point::window_records, l, written, in.count, record_bytes_);
  if (plan.role == layer_role::full) compress_kv(b, l, w);
  if (l == first_decoder) {
    if (!decoder) {
      times_.attention += now() - start;
      return false;
    }
    to_tail(b);
  }
  const row_range set = leaves_whole ? all_of(b) : tail_of(b);
  const uint32_t n = set.count;
  if (plan.draft_feature >= 0 && want_context_) {
    const size_t width = c_.dspark_target_layer_ids.size() * h;
    ops_.hc_mean(where_, b.x, n, c_.hc_mult, h, features_ + b.first_tail * width + size_t(plan.draft_feature) * h,
                 width);
  }
  mix(b, n, w.hc_attn);
  const row_ref* refs =
      leaves_whole ? rows_.data() + b.first : (l == first_decoder ? first_rows_ : tail_rows_).data() + b.first_tail;
  attend(b, l, w, set, refs);
  leave_site(b, n);
  times_.attention += now() - start;
  mix(b, n, w.hc_ffn);
  enter_site(b, n, w.ffn_norm);
  return true;
}

result<void> forward_pass::layers(ep::group& group, ep::expert_table& table, bool decoder, uint32_t micro_batches) {
  const uint32_t hc = c_.hc_mult, h = c_.hidden_size, first_decoder = plan_.encoder_layers;
  const uint32_t last = decoder ? c_.num_hidden_layers : first_decoder + 1, k = c_.num_experts_per_tok;
  split(micro_batches);
  const std::span<micro_batch> batches{batches_.data(), micro_batches};
  for (micro_batch& b : batches)
    ops_.embed_streams(where_, all_.tokens.data() + b.first, b.count, m_.weights.embed, hc, b.x);
  auto rows_of = [&](const micro_batch& b, uint32_t l) { return l < first_decoder ? b.count : b.tail_count; };
  auto end_layer = [&](micro_batch& b, uint32_t l) -> result<void> {
    const uint32_t n = rows_of(b, l);
    if (auto r = add_up(group, table, b, l, n, k); !r) return r;
    leave_site(b, n);
    if (probe_) {
      ops_.hc_mean(where_, b.x, n, hc, h, b.u, h);
      probe_->see(probe_point::resid_mean, l, b.u, n, h);
    }
    return {};
  };
  for (uint32_t l = 0; l < last; ++l) {
    const layer_weights& w = m_.weights.layers[l];
    bool goes_on = true;
    for (micro_batch& b : batches) {
      if (l > 0)
        if (auto r = end_layer(b, l - 1); !r) return r;
      goes_on = attention_site(b, l, decoder);
      if (!goes_on) continue;
      const row_range rows = l < first_decoder ? all_of(b) : tail_of(b);
      if (auto r = send_rows(group, table, b, l, w, rows.count, k, rows.positions); !r) return r;
    }
    if (!goes_on) return {};
    for (micro_batch& b : batches)
      if (auto r = run_experts(group, table, b, l, w, rows_of(b, l), k); !r) return r;
  }
  for (micro_batch& b : batches) {
    if (auto r = end_layer(b, last - 1); !r) return r;
    float* out = final_ + size_t{b.first_tail} * h;
    ops_.hc_collapse(where_, b.x, b.tail_count, hc, h, b.pre, out);
    ops_.rms_norm(where_, out, b.tail_count, m_.weights.norm, eps_, out);
  }
  if (want_context_) draft_context();
  return {};
}

}  // namespace troupe::kernels
