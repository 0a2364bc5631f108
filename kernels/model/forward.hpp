// The forward pass, written once over the operators. A step is: begin (rows and what is to be done with them), layers,
// any number of calls that read its results, draft, commit. Nothing of a slot's state changes before commit except page
// entries at or after the committed length, so an abandoned step is simply run again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ep/expert_table.hpp"
#include "kernels/model/model.hpp"
#include "kernels/model/state.hpp"
#include "kernels/ops.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels {

/// Rows [position, position + rows) of one sequence. The replay modes are data here.
struct sequence_rows {
  uint32_t slot = 0, position = 0, rows = 0;
  uint32_t window_floor = 0;  // layers before the first decoder layer see no window row before it
  uint32_t first_decoder_floor =
      0;                           // the same for the first decoder layer (differs from window_floor in strict replay)
  uint32_t decoder_floor = 0;      // the same for later layers
  uint32_t decoder_from = 0;       // rows before it stop at the first decoder layer's KV
  uint32_t write_global_from = 0;  // groups that end before it keep their stored entries
  bool draft_context = true;
  std::span<const int32_t> tokens;  // of the sequence from position 0; reaches position + rows
};

/// How many of a sequence's rows become part of its state.
struct commit_rows {
  uint32_t sequence = 0;  // index in begin's list
  uint32_t rows = 0;
};

/// One sequence of a draft pass.
struct draft_sequence {
  uint32_t sequence = 0;  // index in begin's list; its row at position `last` ran all layers in this step
  uint32_t last = 0;
  uint32_t floor = 0;   // first position with drafter context
  int32_t anchor = 0;   // the token sampled for position last + 1
  sample_row sampling;  // position is set by the pass
};

/// What a verification run wants to see. Pointers are valid during the call.
enum class probe_point : uint8_t {
  resid_mean,        // after each block: float [rows, hidden]
  router_ids,        // uint32 [rows, k]
  router_weights,    // float [rows, k]
  engram_rows,       // uint32 [rows, columns]; layer = Engram module
  engram_gate,       // float [rows, hc]; layer = Engram module
  window_records,    // bytes [rows, record]
  selected,          // uint32 [rows, topk]
  selected_counts,   // uint32 [rows, 1]
  candidate_blocks,  // uint32 [rows, limit]
  candidate_counts,  // uint32 [rows, 1]
  main_x,            // float [tail rows, hidden]
  draft_hidden,      // float [sequences * block, hidden]
  draft_logits,      // float [block * sequences, vocabulary], slot-major
  draft_confidence,  // float [sequences, 1] logits; layer = slot of the block
};
/// Sees inner values of a forward pass, for verification. Called on the thread that runs the pass.
class probe {
 public:
  virtual ~probe() = default;
  virtual void see(probe_point point, uint32_t layer, const void* data, uint32_t rows, size_t width) = 0;
  /// Where index_select of `layer` shall leave its scores [rows, stride], or null.
  virtual float* index_scores(uint32_t layer, uint32_t rows, size_t& stride) = 0;
};

/// Nanoseconds of the calling thread, by part.
struct forward_times {
  int64_t attention = 0, dispatch = 0, experts = 0, combine = 0;
};

/// What a forward pass is built for.
struct forward_limits {
  uint32_t max_rows = 0;       // per step
  uint32_t max_sequences = 0;  // per step
};

/// Thread rules: one thread at a time. Model, operators, state, clock outlive it; the group is given per step.
class forward_pass {
 public:
  /// exhausted if scratch memory is short.
  static result<std::unique_ptr<forward_pass>> make(const model& m, operators& ops, place where, kv_state& state,
                                                    const forward_limits& limits, const clock_source& clock);
  ~forward_pass();

  /// Takes the step's rows; total rows <= max_rows. Clears what the last step left.
  void begin(std::span<const sequence_rows> sequences);
  bool has_rows() const { return !rows_.empty(); }
  /// Whether some row runs decoder layers.
  bool has_tail() const { return !tail_rows_.empty(); }

  /// Runs the encoder layers and the first decoder layer's KV, and with `decoder` the rest; with zero rows it only
  /// takes part in the group's exchanges. `micro_batches`, 1 or 2 and the same on every rank: the rows run in so many
  /// parts, one computing while the other's exchange is under way; results do not depend on it. Errors are the group's,
  /// and stale when a row came for an expert that is not here; the step is then to be abandoned.
  result<void> layers(ep::group& group, ep::expert_table& table, bool decoder, uint32_t micro_batches = 1);
  /// Rows of the step.
  uint32_t rows() const { return static_cast<uint32_t>(rows_.size()); }

  /// Index among the step's tail rows of a sequence's row at `position`.
  uint32_t tail_index(uint32_t sequence, uint32_t position) const;
  /// Logits [n, vocabulary] of tail rows; n <= logits_rows().
  const float* logits(std::span<const uint32_t> tail_rows);
  uint32_t logits_rows() const { return logits_rows_; }

  /// Sequences that one draft pass can take.
  uint32_t draft_capacity() const;
  /// Drafts dspark_block_size tokens per sequence: tokens and confidences [n, block]. A token of -1 (the drafter's
  /// logits or its confidence are not finite) and what follows it is no draft. With no sequence it only takes part in
  /// the exchanges.
  result<void> draft(ep::group& group, ep::expert_table& table, std::span<const draft_sequence> sequences,
                     int32_t* tokens, float* confidences);

  /// The window records of `layer` (at most the first decoder layer) of a sequence's positions [first, first + count),
  /// to host memory `out`: those before the step's rows as the slot has them, the others as the step made them. Before
  /// commit only; first is at most window + 8 positions before the step's rows and not below the floor.
  void copy_window(uint32_t sequence, uint32_t layer, uint32_t first, uint32_t count, std::byte* out);

  /// Moves the step's rows into the slots' state.
  void commit(std::span<const commit_rows> sequences);

  void set_probe(probe* p) { probe_ = p; }
  /// Time spent since the last call.
  forward_times take_times();
  /// Rows of committed steps routed per [MoE layer][expert] since the last call are added to `loads`, and those that
  /// came for this rank's experts per [MoE layer] to `received`.
  void take_loads(std::vector<std::vector<uint64_t>>& loads, std::vector<uint64_t>& received);

 private:
  // A set of rows with everything that depends on their positions.
  struct row_set {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions;
    float* plain_angles = nullptr;
    float* compress_angles = nullptr;
    uint32_t count() const { return static_cast<uint32_t>(positions.size()); }
  };
  struct source_scratch {
    std::vector<group_ref> groups;    // completing rows ascending
    std::vector<uint32_t> positions;  // of the groups' first tokens
    float* angles = nullptr;
    float *kv = nullptr, *gate = nullptr;
  };
  // Rows of the step that run together: a range of all rows and of the tail rows, with scratch of their own for what
  // outlives a site.
  struct micro_batch {
    uint32_t number = 0;
    uint32_t first = 0, count = 0;            // in rows_
    uint32_t first_tail = 0, tail_count = 0;  // in tail_rows_
    bool first_site = true;                   // pre is one-hot on stream 0
    float *x = nullptr, *x_spare = nullptr, *pre = nullptr, *pre_next = nullptr, *post = nullptr, *comb = nullptr;
    float *u = nullptr, *u_spare = nullptr, *parts = nullptr, *shared = nullptr;
    uint32_t *selected = nullptr, *counts = nullptr, *candidate_blocks = nullptr, *candidate_counts = nullptr;
  };
  // Rows that go through a site.
  struct row_range {
    uint32_t count = 0;
    const uint32_t* positions = nullptr;
    const float *plain_angles = nullptr, *compress_angles = nullptr;
  };
  struct placed_sequence {
    sequence_rows rows;
    uint32_t first_row = 0;   // in rows_
    uint32_t first_tail = 0;  // in tail_rows_
    uint32_t tail_position = 0;
    uint32_t tail_count = 0;
  };

  forward_pass(const model& m, operators& ops, place where, kv_state& state, const forward_limits& limits,
               const clock_source& clock);
  bool allocate();
  template <class T>
  T* take(size_t count);

  void prepare_groups();
  void prepare_angles(row_set& set);
  micro_batch batch_at(uint32_t number, uint32_t first, uint32_t count) const;
  void split(uint32_t micro_batches);
  row_range range(const row_set& set, uint32_t first, uint32_t count) const;
  row_range all_of(const micro_batch& b) const { return range(all_, b.first, b.count); }
  row_range tail_of(const micro_batch& b) const { return range(tail_, b.first_tail, b.tail_count); }
  void engram(const micro_batch& b, uint32_t layer, uint32_t first, uint32_t n);
  void mix(const micro_batch& b, uint32_t n, const hc_weights& w);
  void enter_site(micro_batch& b, uint32_t n, const weight& norm);
  void leave_site(micro_batch& b, uint32_t n);
  bool attention_site(micro_batch& b, uint32_t layer, bool decoder);
  void attention_inputs(const layer_weights& w, const float* u, uint32_t n);
  void window_kv(const layer_weights& w, const float* x, const row_range& rows, bool plain, std::byte* records);
  void compress_kv(const micro_batch& b, uint32_t layer, const layer_weights& w);
  void attend(const micro_batch& b, uint32_t layer, const layer_weights& w, const row_range& rows, const row_ref* refs);
  void select(const micro_batch& b, uint32_t layer, const layer_weights& w, const row_range& rows, const row_ref* refs);
  void project_output(const layer_weights& w, uint32_t n, const float* angles);
  // The expert site in three parts: routed and sent; what came computed and sent back; brought home and added up.
  result<void> send_rows(ep::group& group, ep::expert_table& table, const micro_batch& b, uint32_t moe_layer,
                         const layer_weights& w, uint32_t n, uint32_t k, const uint32_t* positions);
  result<void> run_experts(ep::group& group, ep::expert_table& table, const micro_batch& b, uint32_t moe_layer,
                           const layer_weights& w, uint32_t n, uint32_t k);
  result<void> add_up(ep::group& group, ep::expert_table& table, micro_batch& b, uint32_t moe_layer, uint32_t n,
                      uint32_t k);
  void to_tail(micro_batch& b);
  void commit_loads();
  void draft_context();
  void draft_head(std::span<const draft_sequence> sequences, uint32_t first, uint32_t count, int32_t* tokens,
                  float* confidences);
  std::byte* records(uint32_t layer) const { return records_ + size_t{layer} * limits_.max_rows * record_bytes_; }
  int64_t now() const { return clock_.now().count(); }

  // Constant after construction.
  const model& m_;
  const model_config& c_;
  const model_plan& plan_;
  operators& ops_;
  const place where_;
  kv_state& state_;
  const forward_limits limits_;
  const clock_source& clock_;
  const float eps_, attention_scale_;
  const uint32_t pairs_;
  uint32_t logits_rows_ = 0, draft_group_ = 0;
  size_t record_bytes_ = 0;
  std::vector<std::pair<std::byte*, size_t>> blocks_;

  // The step.
  std::vector<placed_sequence> sequences_;
  row_set all_, tail_;
  std::vector<row_ref> rows_, first_rows_, tail_rows_;
  std::vector<uint32_t> tail_of_all_;  // row number in rows_ of each tail row
  std::vector<uint32_t> picked_rows_;  // of a micro-batch, counted from its first
  std::array<micro_batch, 2> batches_;
  std::vector<std::vector<uint32_t>> engram_rows_;  // [module], of its layer's row set
  std::vector<uint32_t> hash_scratch_;
  std::vector<source_scratch> sources_;
  std::vector<record_copy> copies_;
  bool want_context_ = false;

  // Scratch, [max_rows, ...] each.
  float *x_ = nullptr, *x_spare_ = nullptr, *pre_ = nullptr, *pre_next_ = nullptr, *post_ = nullptr, *comb_ = nullptr;
  float *u_ = nullptr, *u_spare_ = nullptr, *qr_ = nullptr, *q_ = nullptr, *kv_ = nullptr, *attended_ = nullptr;
  float *out_a_ = nullptr, *y_ = nullptr;
  float *index_q_ = nullptr, *index_w_ = nullptr, *latent_ = nullptr, *index_k_ = nullptr;
  uint32_t *selected_ = nullptr, *counts_ = nullptr, *candidate_blocks_ = nullptr, *candidate_counts_ = nullptr;
  float *router_ = nullptr, *route_weights_ = nullptr, *parts_ = nullptr, *shared_ = nullptr;
  uint32_t* route_ids_ = nullptr;
  float *engram_values_ = nullptr, *engram_kv_ = nullptr, *engram_gates_ = nullptr;
  float *features_ = nullptr, *main_x_ = nullptr, *final_ = nullptr, *picked_ = nullptr, *logits_ = nullptr;
  float *bias_ = nullptr, *markov_ = nullptr, *joined_ = nullptr, *confidence_ = nullptr, *draft_angles_ = nullptr;
  std::byte *records_ = nullptr, *context_ = nullptr, *slot_records_ = nullptr;
  std::vector<ep::route> routes_;
  std::vector<expert_item> items_, shared_items_;
  float* expert_out_ = nullptr;
  size_t expert_capacity_ = 0;
  std::vector<draft_ref> draft_refs_;
  std::vector<int32_t> draft_tokens_, picked_tokens_;
  std::vector<uint32_t> draft_positions_, picked_index_;
  std::vector<sample_row> sample_rows_;

  probe* probe_ = nullptr;
  forward_times times_;
  std::vector<std::vector<uint32_t>> step_loads_;  // of this step; they count when it is committed
  std::vector<uint32_t> step_received_;
  std::vector<std::vector<uint64_t>> loads_;
  std::vector<uint64_t> received_;
};

}  // namespace troupe::kernels
