#include "kernels/model/forward.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::kernels {

forward_pass::forward_pass(const model& m, operators& ops, place where, kv_state& state, const forward_limits& limits,
                           const clock_source& clock)
    : m_(m),
      c_(m.config),
      plan_(m.plan),
      ops_(ops),
      where_(where),
      state_(state),
      limits_(limits),
      clock_(clock),
      eps_(static_cast<float>(m.config.rms_norm_eps)),
      attention_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(m.config.head_dim)))),
      pairs_(m.config.qk_rope_head_dim / 2) {}

forward_pass::~forward_pass() {
  for (auto [data, bytes] : blocks_) ops_.release(where_, data, bytes);
  if (expert_out_)
    ops_.release(where_, reinterpret_cast<std::byte*>(expert_out_), expert_capacity_ * c_.hidden_size * sizeof(float));
}

template <class T>
T* forward_pass::take(size_t count) {
  const size_t bytes = std::max<size_t>(count, 1) * sizeof(T);
  std::byte* data = ops_.allocate(where_, bytes);
  blocks_.emplace_back(data, bytes);
  return reinterpret_cast<T*>(data);
}

bool forward_pass::allocate() {
  const size_t n = limits_.max_rows, h = c_.hidden_size, hc = c_.hc_mult;
  const size_t q = size_t{c_.num_attention_heads} * c_.head_dim, iq = size_t{c_.index_n_heads} * c_.index_head_dim;
  const bool drafts = c_.num_nextn_predict_layers > 0;
  const size_t k = std::max(c_.num_experts_per_tok, c_.dspark_num_experts_per_tok);
  const size_t experts = std::max(c_.n_routed_experts, c_.dspark_n_routed_experts);
  const size_t features = c_.dspark_target_layer_ids.size() * h;
  record_bytes_ = plan_.window_record_bytes;
  draft_group_ = drafts ? std::max(1u, 64 / c_.dspark_block_size) : 0;
  logits_rows_ = std::max<uint32_t>(64, draft_group_ * c_.dspark_block_size);

  all_.plain_angles = take<float>(n * pairs_ * 2);
  all_.compress_angles = take<float>(n * pairs_ * 2);
  tail_.plain_angles = take<float>(n * pairs_ * 2);
  tail_.compress_angles = take<float>(n * pairs_ * 2);
  x_ = take<float>(n * hc * h);
  x_spare_ = take<float>(n * hc * h);
  pre_ = take<float>(n * hc);
  pre_next_ = take<float>(n * hc);
  post_ = take<float>(n * hc);
  comb_ = take<float>(n * hc * hc);
  u_ = take<float>(n * h);
  u_spare_ = take<float>(n * h);
  qr_ = take<float>(n * c_.q_lora_rank);
  q_ = take<float>(n * q);
  kv_ = take<float>(n * c_.head_dim);
  attended_ = take<float>(n * q);
  out_a_ = take<float>(n * c_.o_groups * c_.o_lora_rank);
  y_ = take<float>(n * h);
  index_q_ = take<float>(n * iq);
  index_w_ = take<float>(n * c_.index_n_heads);
  latent_ = take<float>(n * c_.head_dim);
  index_k_ = take<float>(n * c_.index_head_dim);
  selected_ = take<uint32_t>(n * c_.index_topk);
  counts_ = take<uint32_t>(n);
  candidate_blocks_ = take<uint32_t>(n * c_.candidate_topk_blocks);
  candidate_counts_ = take<uint32_t>(n);
  router_ = take<float>(n * experts);
  route_ids_ = take<uint32_t>(n * k);
  route_weights_ = take<float>(n * k);
  parts_ = take<float>(n * k * h);
  shared_ = take<float>(n * h);
  if (!c_.engram_layer_ids.empty()) {
    engram_values_ = take<float>(n * c_.engram_columns() * c_.engram_head_dim);
    engram_kv_ = take<float>(n * (hc + 1) * h);
    engram_gates_ = take<float>(n * hc);
  }
  final_ = take<float>(n * h);
  picked_ = take<float>(logits_rows_ * h);
  logits_ = take<float>(size_t{logits_rows_} * c_.vocab_size);
  records_ = take<std::byte>(c_.num_hidden_layers * n * record_bytes_);
  if (drafts) {
    features_ = take<float>(n * features);
    main_x_ = take<float>(n * h);
    context_ = take<std::byte>(c_.num_nextn_predict_layers * n * record_bytes_);
    slot_records_ = take<std::byte>(n * record_bytes_);
    bias_ = take<float>(size_t{draft_group_} * c_.vocab_size);
    markov_ = take<float>(size_t{draft_group_} * c_.dspark_markov_rank);
    joined_ = take<float>(draft_group_ * (h + c_.dspark_markov_rank));
    confidence_ = take<float>(draft_group_);
    draft_angles_ = take<float>(n * pairs_ * 2);
  }
  sources_.resize(plan_.sources.size());
  for (size_t s = 0; s < sources_.size(); ++s) {
    sources_[s].angles = take<float>(n * pairs_ * 2);
    sources_[s].kv = take<float>(n * c_.head_dim);
    if (plan_.sources[s].ratio > 1) sources_[s].gate = take<float>(n * c_.head_dim);
    sources_[s].groups.reserve(n);
    sources_[s].positions.reserve(n);
  }
  engram_rows_.resize(c_.engram_layer_ids.size());
  for (auto& r : engram_rows_) r.reserve(n * c_.engram_columns());
  hash_scratch_.resize(c_.engram_layer_ids.size() * c_.engram_columns());
  for (row_set* set : {&all_, &tail_}) {
    set->tokens.reserve(n);
    set->positions.reserve(n);
  }
  rows_.reserve(n);
  first_rows_.reserve(n);
  tail_rows_.reserve(n);
  tail_of_all_.reserve(n);
  picked_rows_.reserve(n);
  sequences_.reserve(limits_.max_sequences);
  copies_.reserve(n);
  routes_.resize(n * k);
  shared_items_.resize(n);
  for (uint32_t i = 0; i < n; ++i) shared_items_[i] = {i, 0, 1.0f};
  loads_.resize(plan_.moe_layers);
  step_loads_.resize(plan_.moe_layers);
  received_.resize(plan_.moe_layers);
  step_received_.resize(plan_.moe_layers);
  for (uint32_t l = 0; l < plan_.moe_layers; ++l) {
    const uint32_t experts = l < c_.num_hidden_layers ? c_.n_routed_experts : c_.dspark_n_routed_experts;
    loads_[l].assign(experts, 0);
    step_loads_[l].assign(experts, 0);
  }
  for (auto [data, bytes] : blocks_)
    if (!data) return false;
  return true;
}

result<std::unique_ptr<forward_pass>> forward_pass::make(const model& m, operators& ops, place where, kv_state& state,
                                                         const forward_limits& limits, const clock_source& clock) {
  std::unique_ptr<forward_pass> f(new forward_pass(m, ops, where, state, limits, clock));
  if (limits.max_rows == 0 || limits.max_sequences == 0)
    return fail(errc::invalid_argument, "a forward pass of {} rows and {} sequences", limits.max_rows,
                limits.max_sequences);
  if (!f->allocate()) return fail(errc::exhausted, "no memory for steps of {} rows", limits.max_rows);
  return f;
}

void forward_pass::begin(std::span<const sequence_rows> sequences) {
  sequences_.clear();
  for (row_set* set : {&all_, &tail_}) {
    set->tokens.clear();
    set->positions.clear();
  }
  rows_.clear();
  first_rows_.clear();
  tail_rows_.clear();
  tail_of_all_.clear();
  for (auto& r : engram_rows_) r.clear();
  want_context_ = false;
  for (auto& l : step_loads_) std::fill(l.begin(), l.end(), 0u);
  std::fill(step_received_.begin(), step_received_.end(), 0u);
  const uint32_t columns = m_.hash.columns(), modules = m_.hash.layers();
  for (const sequence_rows& s : sequences) {
    placed_sequence placed{s, static_cast<uint32_t>(rows_.size()), static_cast<uint32_t>(tail_rows_.size()),
                           std::max(s.position, s.decoder_from), 0};
    TROUPE_CHECK(s.tokens.size() >= size_t{s.position} + s.rows, "{} tokens for rows up to {}", s.tokens.size(),
                 s.position + s.rows);
    TROUPE_CHECK(rows_.size() + s.rows <= limits_.max_rows, "a step of more than {} rows", limits_.max_rows);
    for (uint32_t i = 0; i < s.rows; ++i) {
      const uint32_t position = s.position + i;
      const bool tail = position >= s.decoder_from;
      all_.tokens.push_back(s.tokens[position]);
      all_.positions.push_back(position);
      if (modules > 0) m_.hash.rows(s.tokens, position, hash_scratch_.data());
      for (uint32_t e = 0; e < modules; ++e) {
        if (c_.engram_layer_ids[e] > plan_.encoder_layers && !tail) continue;
        const uint32_t* from = hash_scratch_.data() + size_t{e} * columns;
        engram_rows_[e].insert(engram_rows_[e].end(), from, from + columns);
      }
      if (tail) {
        first_rows_.push_back({s.slot, position, placed.first_row, s.position, s.first_decoder_floor});
        tail_rows_.push_back({s.slot, position, placed.first_tail, placed.tail_position, s.decoder_floor});
        tail_of_all_.push_back(static_cast<uint32_t>(rows_.size()));
        tail_.tokens.push_back(s.tokens[position]);
        tail_.positions.push_back(position);
        ++placed.tail_count;
        want_context_ = want_context_ || s.draft_context;
      }
      rows_.push_back({s.slot, position, placed.first_row, s.position, s.window_floor});
    }
    sequences_.push_back(placed);
  }
  want_context_ = want_context_ && c_.num_nextn_predict_layers > 0;
  prepare_groups();
  prepare_angles(all_);
  prepare_angles(tail_);
}

void forward_pass::prepare_groups() {
  for (size_t s = 0; s < sources_.size(); ++s) {
    source_scratch& scratch = sources_[s];
    const uint32_t ratio = plan_.sources[s].ratio;
    scratch.groups.clear();
    scratch.positions.clear();
    for (const placed_sequence& sequence : sequences_)
      for (uint32_t i = 0; i < sequence.rows.rows; ++i) {
        const uint32_t position = sequence.rows.position + i;
        if ((position + 1) % ratio != 0 || position < sequence.rows.write_global_from) continue;
        const uint32_t group = position / ratio;
        scratch.groups.push_back({sequence.first_row + i, sequence.rows.slot, group});
        scratch.positions.push_back(group * ratio);
      }
    ops_.rope_angles(where_, scratch.positions.data(), static_cast<uint32_t>(scratch.positions.size()),
                     m_.compress_freqs.data(), pairs_, scratch.angles);
  }
}

void forward_pass::prepare_angles(row_set& set) {
  ops_.rope_angles(where_, set.positions.data(), set.count(), m_.plain_freqs.data(), pairs_, set.plain_angles);
  ops_.rope_angles(where_, set.positions.data(), set.count(), m_.compress_freqs.data(), pairs_, set.compress_angles);
}

uint32_t forward_pass::tail_index(uint32_t sequence, uint32_t position) const {
  const placed_sequence& s = sequences_[sequence];
  TROUPE_CHECK(position >= s.tail_position && position - s.tail_position < s.tail_count,
               "position {} is not among the {} tail rows from {}", position, s.tail_count, s.tail_position);
  return s.first_tail + position - s.tail_position;
}

const float* forward_pass::logits(std::span<const uint32_t> tail_rows) {
  const uint32_t n = static_cast<uint32_t>(tail_rows.size());
  TROUPE_CHECK(n <= logits_rows_, "logits of {} rows, at most {}", n, logits_rows_);
  ops_.gather_rows(where_, final_, tail_rows.data(), n, c_.hidden_size, picked_);
  ops_.linear(where_, picked_, n, m_.weights.head, logits_);
  return logits_;
}

void forward_pass::commit(std::span<const commit_rows> sequences) {
  commit_loads();
  const uint32_t ring = plan_.window + 8;
  // Records of the last `ring` rows that stay, of rows [from, end) whose record index starts at `first`.
  auto list = [&](const placed_sequence& s, uint32_t first, uint32_t from, uint32_t end) {
    if (end > from + ring) {
      first += end - ring - from;
      from = end - ring;
    }
    for (uint32_t p = from; p < end; ++p) copies_.push_back({first + p - from, s.rows.slot, p});
  };
  auto store = [&](const std::byte* data, const ring_view& view) {
    ops_.store_records(where_, data, copies_.data(), static_cast<uint32_t>(copies_.size()), view);
  };
  copies_.clear();
  for (const commit_rows& c : sequences) {
    const placed_sequence& s = sequences_[c.sequence];
    list(s, s.first_row, s.rows.position, s.rows.position + c.rows);
  }
  for (uint32_t l = 0; l <= plan_.encoder_layers; ++l) store(records(l), state_.window(l));
  for (size_t i = 0; i < sources_.size(); ++i) {
    const uint32_t ratio = plan_.sources[i].ratio;
    if (ratio == 1) continue;
    copies_.clear();
    for (const commit_rows& c : sequences) {
      const placed_sequence& s = sequences_[c.sequence];
      const uint32_t end = s.rows.position + c.rows;
      const uint32_t from = std::max(s.rows.position, end - end % ratio);
      for (uint32_t p = from; p < end; ++p) copies_.push_back({s.first_row + p - s.rows.position, s.rows.slot, p});
    }
    ops_.store_open(where_, sources_[i].kv, sources_[i].gate, c_.head_dim, copies_.data(),
                    static_cast<uint32_t>(copies_.size()), ratio, state_.open(static_cast<uint32_t>(i)));
  }
  copies_.clear();
  for (const commit_rows& c : sequences) {
    const placed_sequence& s = sequences_[c.sequence];
    const uint32_t end = s.rows.position + c.rows;
    if (end > s.tail_position) list(s, s.first_tail, s.tail_position, end);
  }
  for (uint32_t l = plan_.encoder_layers + 1; l < c_.num_hidden_layers; ++l) store(records(l), state_.window(l));
  if (!want_context_) return;
  copies_.clear();
  for (const commit_rows& c : sequences) {
    const placed_sequence& s = sequences_[c.sequence];
    const uint32_t end = s.rows.position + c.rows;
    if (s.rows.draft_context && end > s.tail_position) list(s, s.first_tail, s.tail_position, end);
  }
  for (uint32_t b = 0; b < c_.num_nextn_predict_layers; ++b)
    store(context_ + size_t{b} * limits_.max_rows * record_bytes_, state_.draft(b));
}

void forward_pass::copy_window(uint32_t sequence, uint32_t layer, uint32_t first, uint32_t count, std::byte* out) {
  const placed_sequence& s = sequences_[sequence];
  const ring_view& ring = state_.window(layer);
  TROUPE_CHECK(layer <= plan_.encoder_layers && first + ring.rows >= s.rows.position &&
                   first + count <= s.rows.position + s.rows.rows,
               "window rows {} to {} of layer {} in a step of rows {} to {}", first, first + count, layer,
               s.rows.position, s.rows.position + s.rows.rows);
  const uint32_t end = first + count;
  for (uint32_t p = first; p < end;) {
    const uint32_t row = p % ring.rows;
    const bool made = p >= s.rows.position;
    const uint32_t n = made ? end - p : std::min({s.rows.position, end, p + ring.rows - row}) - p;
    const std::byte* from = made ? records(layer) + size_t{s.first_row + p - s.rows.position} * record_bytes_
                                 : ring.base + s.rows.slot * ring.slot_stride + size_t{row} * ring.record_bytes;
    ops_.copy(where_, out, from, n * record_bytes_);
    out += n * record_bytes_;
    p += n;
  }
}

forward_times forward_pass::take_times() { return std::exchange(times_, {}); }

// A step that is abandoned is run again, so it counts only here.
void forward_pass::commit_loads() {
  for (size_t l = 0; l < loads_.size(); ++l) {
    received_[l] += std::exchange(step_received_[l], 0);
    for (size_t e = 0; e < loads_[l].size(); ++e) loads_[l][e] += std::exchange(step_loads_[l][e], 0);
  }
}

void forward_pass::take_loads(std::vector<std::vector<uint64_t>>& loads, std::vector<uint64_t>& received) {
  loads.resize(std::max(loads.size(), loads_.size()));
  received.resize(std::max(received.size(), received_.size()));
  for (size_t l = 0; l < loads_.size(); ++l) {
    received[l] += std::exchange(received_[l], 0);
    loads[l].resize(std::max(loads[l].size(), loads_[l].size()));
    for (size_t e = 0; e < loads_[l].size(); ++e) loads[l][e] += std::exchange(loads_[l][e], 0);
  }
}

}  // namespace troupe::kernels
