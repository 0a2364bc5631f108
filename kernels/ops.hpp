// The operators of the forward pass, as one interface for the CPU and for GPUs. kernels/model writes the forward pass
// once over it; kernels/cpu implements it and is the reference of every other implementation.
//
// Rules for all operators:
// - Pointers are raw, row-major and dense, in memory of `where.device` (host memory for the CPU). Arrays of structs
// that
//   describe rows are given in the same memory. Sizes are host values. float unless said otherwise.
// - An operator enqueues its work on `where.stream` and returns; none waits for the device. On the CPU it has finished
// when
//   it returns. Only `synchronise` waits.
// - Outputs never overlap inputs unless the comment says "in place". n == 0 is a no-op.
// - Every reduction has one order per output element that depends on neither n, thread count, vector width nor
// instruction
//   set: the result of a row is a pure function, to the bit, of that row's inputs. NaN handling is unspecified.
// - Nothing is allocated per call once an operator has seen the largest shapes.
// Formulas: docs/architecture.md names their sources; the comments here are the definition.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::kernels {

/// Where an operator runs. device -1 is the host; stream is the device's own handle (null on the host).
struct place {
  int device = -1;
  void* stream = nullptr;
};

/// Storage format of a matrix. Scales `2^(byte - 127)` are ue8m0.
enum class weight_format : uint8_t {
  f32,
  bf16,
  fp8_block,  // e4m3 [rows, cols], ue8m0 scale [ceil(rows/32), ceil(cols/32)]
  fp8_row,    // e4m3 [rows, cols], ue8m0 scale [rows, cols/32] (Engram tables)
  mxfp4,      // e2m1 two per byte [rows, cols/2] (low nibble = even column, sign in bit 3), ue8m0 scale [rows, cols/32]
};

/// A matrix [rows = outputs, cols = inputs] in place in the checkpoint. A vector has rows == 1. Data may be unaligned.
/// cols is a multiple of 16, for fp8_row and mxfp4 of 32 (the loader refuses other sizes). A scale of an fp8 format
/// above 2^119 counts as 2^119.
struct weight {
  const void* data = nullptr;
  const uint8_t* scale = nullptr;
  weight_format format = weight_format::f32;
  uint32_t rows = 0, cols = 0;
};

/// One row of a step. Rows of one sequence are neighbours in a call and their positions consecutive.
struct row_ref {
  uint32_t slot = 0;            // place of the sequence's state
  uint32_t position = 0;        // of the row's token
  uint32_t first_row = 0;       // index of the sequence's first record (kv row) among this call's records. There may be
                                // more records than rows: the first decoder layer has queries for its last rows only.
  uint32_t first_position = 0;  // position of that record; keys before it are in the ring, from it on in the records
  uint32_t window_floor = 0;    // no window key before this position
};

/// Per-slot rings of fixed-size records; the record of position p lies at base + slot * slot_stride + (p % rows) *
/// record. A window record is head_dim e4m3 bytes, then head_dim / 32 ue8m0 bytes (528 B for head_dim 512).
struct ring_view {
  std::byte* base = nullptr;
  size_t slot_stride = 0;
  uint32_t rows = 0;
  uint32_t record_bytes = 0;
};

/// Entries of one kind in the page pool. Entry g of a slot lies in page table[slot * table_stride + g / per_page] at
/// pages + page * page_bytes + offset + (g % per_page) * entry_bytes.
/// Main entry: head_dim / 2 bytes e2m1 (low nibble = even channel), then head_dim / 16 e4m3 scales (288 B for 512).
/// Index key: dim / 2 bytes e2m1, then dim / 32 ue8m0 scales (68 B for 128).
struct paged_view {
  std::byte* pages = nullptr;
  size_t page_bytes = 0;
  const uint32_t* table = nullptr;
  uint32_t table_stride = 0;
  uint32_t per_page = 0;  // window / ratio
  size_t offset = 0;
  uint32_t entry_bytes = 0;
};

/// A compressed group completed by a row of this call: tokens [group * ratio, (group + 1) * ratio) of the slot.
struct group_ref {
  uint32_t row = 0;  // the completing row, index in this call
  uint32_t slot = 0;
  uint32_t group = 0;
};

/// Copies record `row` of a step's scratch to position `position` of a slot's ring.
struct record_copy {
  uint32_t row = 0;
  uint32_t slot = 0;
  uint32_t position = 0;
};

/// One sequence of a draft pass: block rows are [index * block, (index + 1) * block) of the call.
struct draft_ref {
  uint32_t slot = 0;
  uint32_t last = 0;            // p: last position with context
  uint32_t floor = 0;           // first position with context that may be read (max(floor, p - window + 1) is used)
  uint32_t first_row = 0;       // index in the step's context records of position first_position
  uint32_t first_position = 0;  // context before it is in the ring, from it on in the step's records; > last if none
};

/// The three matrices of an expert: y = w2 (silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit) * route weight).
struct expert_weights {
  weight w1, w2, w3;  // [ffn, hidden], [hidden, ffn], [ffn, hidden]
};

/// One (row, expert) pair.
struct expert_item {
  uint32_t row = 0;
  uint32_t expert = 0;
  float route_weight = 1;
};

/// Parameters of the mHC mix of one site.
struct hc_weights {
  weight fn;                     // f32 [(2 + hc) * hc, hc * hidden]
  const float* base = nullptr;   // [(2 + hc) * hc]
  const float* scale = nullptr;  // [3]
};

/// How one row is sampled.
struct sample_row {
  float temperature = 0;  // 0 = argmax of the logits
  float top_p = 1;
  uint32_t top_k = 0;  // 0 = no limit
  uint64_t seed = 0;
  uint32_t position = 0;            // of the token to be sampled
  const int32_t* banned = nullptr;  // token ids that cannot be sampled
  uint32_t banned_count = 0;
  int32_t logprobs = -1;  // -1: none; n >= 0: the token's own and n alternatives
};

/// Level one of the index top-k, see index_select.
struct candidate_blocks {
  uint32_t block = 0;          // positions (groups) per block
  uint32_t limit = 0;          // blocks kept
  uint32_t* blocks = nullptr;  // [n, limit], ascending
  uint32_t* counts = nullptr;  // [n]
};

/// The operators. Thread rules: one caller at a time; an implementation may use threads of its own inside a call.
class operators {
 public:
  static constexpr uint32_t max_top = 20;  // alternatives per sampled token

  virtual ~operators() = default;
  /// e.g. "cpu avx512 2 threads".
  virtual const char* name() const = 0;

  // -- memory ---------------------------------------------------------------------------------------------------------
  /// Zeroed memory of `where`, 64-byte aligned; null when there is none left. For set-up, not for the hot loop.
  virtual std::byte* allocate(place where, size_t bytes) = 0;
  virtual void release(place where, std::byte* data, size_t bytes) = 0;
  /// Copies in stream order: host to device, device to host, or within the device.
  virtual void copy(place where, void* to, const void* from, size_t bytes) = 0;
  /// Waits until everything enqueued on the stream has finished.
  virtual void synchronise(place where) = 0;

  // -- dense ----------------------------------------------------------------------------------------------------------
  /// y [n, w.rows] = x [n, w.cols] . w^T
  virtual void linear(place where, const float* x, uint32_t n, const weight& w, float* y) = 0;
  /// Block diagonal: w [groups * out, in]; x [n, groups * in]; y [n, groups * out]; group g of y sees group g of x.
  virtual void grouped_linear(place where, const float* x, uint32_t n, const weight& w, uint32_t groups, float* y) = 0;
  /// y = x * rsqrt(mean(x^2) + eps) * w, over rows of w.cols. May be in place.
  virtual void rms_norm(place where, const float* x, uint32_t n, const weight& w, float eps, float* y) = 0;
  /// y [n, w.cols] = row tokens[i] of w (any format).
  virtual void embed(place where, const int32_t* tokens, uint32_t n, const weight& w, float* y) = 0;
  /// y += x over count values, in place.
  virtual void add(place where, const float* x, size_t count, float* y) = 0;
  /// y [n, a_width + b_width] = [a_i ; b_i]
  virtual void concat(place where, const float* a, uint32_t a_width, const float* b, uint32_t b_width, uint32_t n,
                      float* y) = 0;
  /// x := 1 / (1 + exp(-x)), in place.
  virtual void sigmoid(place where, float* x, size_t count) = 0;
  /// y_i = x[index[i]], rows of width values.
  virtual void gather_rows(place where, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) = 0;
  /// y[index[i]] = x_i
  virtual void scatter_rows(place where, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) = 0;

  // -- rope -----------------------------------------------------------------------------------------------------------
  /// angles [n, pairs, 2] = (cos, sin) of float(positions[i] * freqs[j]), the product rounded to float once.
  virtual void rope_angles(place where, const uint32_t* positions, uint32_t n, const float* freqs, uint32_t pairs,
                           float* angles) = 0;
  /// Rotates the last 2 * pairs channels of each head of x [n, heads, dim], adjacent channels (even, odd) as one
  /// complex number, by +angle or by -angle (inverse). In place.
  virtual void rope(place where, float* x, uint32_t n, uint32_t heads, uint32_t dim, const float* angles,
                    uint32_t pairs, bool inverse) = 0;

  // -- key/value records ----------------------------------------------------------------------------------------------
  /// Rotates kv [n, dim] (already normalised) as `rope` does and writes one window record per row to records
  /// [n, dim + dim / 32]. Per 32 channels: scale = 2^ceil(log2(max(amax, 1e-4f) * (1/448f))) from the float's bits,
  /// value = e4m3 round-to-nearest-even of x / scale.
  virtual void window_records(place where, const float* kv, uint32_t n, uint32_t dim, const float* angles,
                              uint32_t pairs, std::byte* records) = 0;
  /// Copies records into rings at the end of a step.
  virtual void store_records(place where, const std::byte* records, const record_copy* copies, uint32_t n,
                             const ring_view& ring) = 0;
  /// Closes groups. Member i of a group is token t = group * ratio + i: its kv and gate come from this call's rows kv,
  /// gate [n rows, dim] if t >= rows[g.row].first_position, else from open [slot][ratio][2][dim] at index t % ratio
  /// (kv, gate). latent [groups, dim] = rms_norm(sum_i softmax_i(gate_i) * kv_i), softmax per channel over the members.
  /// ratio 1: gate and open are null and latent = rms_norm(kv).
  virtual void compress(place where, const group_ref* groups, uint32_t count, const row_ref* rows, const float* kv,
                        const float* gate, const float* open, uint32_t ratio, const weight& norm, float eps,
                        float* latent) = 0;
  /// Keeps kv, gate of a step's rows for groups still open: open[slot][position % ratio] = {kv[row], gate[row]}.
  virtual void store_open(place where, const float* kv, const float* gate, uint32_t dim, const record_copy* copies,
                          uint32_t n, uint32_t ratio, float* open) = 0;
  /// Rotates x [count, dim] by angles and stores it as main entries of the groups: per 16 channels scale =
  /// e4m3(max(amax, 6 * 2^-9) / 6), values e2m1 round-half-to-even of x / scale.
  virtual void store_main(place where, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                          const float* angles, uint32_t pairs, const paged_view& entries) = 0;
  /// The same for index keys: per 32 channels scale = 2^ceil(log2(max(amax, 6 * 2^-126) * (1/6f))), values e2m1.
  virtual void store_index_key(place where, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                               const float* angles, uint32_t pairs, const paged_view& keys) = 0;
  /// Rotates index queries q [n, heads, dim] and rounds them to the values of the index-key format. In place.
  virtual void index_query(place where, float* q, uint32_t n, uint32_t heads, uint32_t dim, const float* angles,
                           uint32_t pairs) = 0;

  // -- selection and attention ----------------------------------------------------------------------------------------
  /// score(s) = sum_h w_h * relu(q_h . k_s) * dim^-0.5, where the row's head weights w [n, heads] hold weights_proj(x),
  /// which this operator multiplies by heads^-0.5 first. Visible groups of a row: s < (position + 1) / ratio (whole
  /// numbers). selected [n, topk] = the topk highest visible scores, listed in ascending order of s; counts [n] how
  /// many. Ties go to the lower s. publish (may be null): level one. Block score = max over its visible groups; the
  /// block that holds the newest visible group counts as +inf; the publish->limit highest non-empty blocks are written,
  /// ascending; ties to the lower block. The row's own selection is over all visible groups. within (may be null): only
  /// groups inside these blocks are scored and selected. scores (may be null, for verification): [n, scores_stride],
  /// -inf where not visible or not scored.
  virtual void index_select(place where, const float* q, const float* w, const row_ref* rows, uint32_t n,
                            uint32_t heads, uint32_t dim, uint32_t ratio, const paged_view& keys, uint32_t topk,
                            uint32_t* selected, uint32_t* counts, const candidate_blocks* publish,
                            const candidate_blocks* within, float* scores, size_t scores_stride) = 0;
  /// out [n, heads, dim]: one softmax per head over the window keys at positions max(window_floor, position - window +
  /// 1)
  /// .. position and the selected main entries; keys are the values too (one KV head). sink [heads] is one more logit
  /// in the denominator only. Logits are q . k * scale. Order of accumulation: window keys by position, then entries by
  /// s. records: this call's window records. selected, counts may be null (window only). q [n, heads, dim] is rotated.
  virtual void attention(place where, const float* q, const row_ref* rows, uint32_t n, uint32_t heads, uint32_t dim,
                         uint32_t window, float scale, const float* sink, const ring_view& ring,
                         const std::byte* records, const uint32_t* selected, const uint32_t* counts, uint32_t topk,
                         const paged_view& entries, float* out) = 0;
  /// The drafter's: every one of `block` rows of a sequence sees the context records of positions
  /// max(floor, last - window + 1) .. last and all `block` slot records of its sequence. Same softmax with sink.
  /// q, out [n * block, heads, dim]; slots: records of the block rows; context: records of this step's context rows.
  virtual void draft_attention(place where, const float* q, const draft_ref* sequences, uint32_t n, uint32_t block,
                               uint32_t heads, uint32_t dim, uint32_t window, float scale, const float* sink,
                               const ring_view& ring, const std::byte* context, const std::byte* slots, float* out) = 0;

  // -- residual streams -----------------------------------------------------------------------------------------------
  /// x [n, hc, hidden]: all streams = the embedding row of the token.
  virtual void embed_streams(place where, const int32_t* tokens, uint32_t n, const weight& w, uint32_t hc,
                             float* x) = 0;
  /// The site's mix from x [n, hc, hidden]: m = fn . (x * rsqrt(mean(x^2 over all streams) + eps));
  /// pre [n, hc] = sigmoid(m[k] * scale[0] + base[k]) + hc_eps; post [n, hc] = 2 sigmoid(m[hc + k] * scale[1] + base[hc
  /// + k]); comb [n, hc, hc] from m[2 hc ..] * scale[2] + base[2 hc ..]: softmax over the last index + hc_eps, then
  /// divided by (column sum + hc_eps), then (iterations - 1) times rows then columns, each / (sum + hc_eps). Row j =
  /// source stream, column k = target stream.
  virtual void hc_mix(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const hc_weights& w,
                      float eps, float hc_eps, uint32_t iterations, float* pre, float* post, float* comb) = 0;
  /// u [n, hidden] = sum_k pre[k] * x[k], in order of k. pre null: stream 0 (the first site).
  virtual void hc_collapse(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* pre,
                           float* u) = 0;
  /// x[k] := post[k] * y + sum_j comb[j, k] * x[j], in order of j. In place.
  virtual void hc_expand(place where, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* y,
                         const float* post, const float* comb) = 0;
  /// y [n, hidden] = mean over the streams, summed in order of k. y rows are y_stride values apart.
  virtual void hc_mean(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, float* y,
                       size_t y_stride) = 0;

  // -- engram ---------------------------------------------------------------------------------------------------------
  /// y [n, columns * table.cols] = the table rows rows[i, c], dequantised, concatenated.
  virtual void engram_gather(place where, const weight& table, const uint32_t* rows, uint32_t n, uint32_t columns,
                             float* y) = 0;
  /// kv [n, (hc + 1) * hidden] = hc keys, then the value. dot_k = sum(x_k * q_weight_k * k_weight_k * key_k)
  /// * rsqrt(mean x_k^2 + eps) * rsqrt(mean key_k^2 + eps) * hidden^-0.5; gate_k = sigmoid(copysign(sqrt(max(|dot|,
  /// 1e-6)), dot)); x_k += gate_k * value, in place on x [n, hc, hidden]. q_weight, k_weight [hc, hidden]. masked (may
  /// be null): rows with a non-zero byte have gate 0. gates (may be null): [n, hc].
  virtual void engram_gate(place where, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* kv,
                           const weight& q_weight, const weight& k_weight, float eps, const uint8_t* masked,
                           float* gates) = 0;

  // -- experts --------------------------------------------------------------------------------------------------------
  /// s = sqrt(softplus(logits / temperature)) of logits [n, experts]; ids [n, k] = the k highest s + bias, falling,
  /// ties to the lower id; weights [n, k] = s / (sum of the k s + 1e-20) * scale.
  virtual void route(place where, const float* logits, uint32_t n, uint32_t experts, const float* bias,
                     float temperature, uint32_t k, float scale, uint32_t* ids, float* weights) = 0;
  /// `w` will be used from the next step on: brings it to where expert_mlp reads it. Only speed depends on it.
  virtual void fetch_expert(place, const expert_weights&) {}
  /// y [items, hidden]: expert items[i].expert applied to row items[i].row of x [*, hidden]. `experts` is a host array
  /// indexed by the logical expert. The shared expert is a call with one expert and one item per row.
  virtual void expert_mlp(place where, const float* x, const expert_item* items, uint32_t count,
                          const expert_weights* experts, uint32_t expert_count, float limit, float* y) = 0;
  /// y [n, hidden] = ((parts[i, 0] + parts[i, 1]) + ...) + shared[i]
  virtual void combine_add(place where, const float* parts, uint32_t n, uint32_t k, uint32_t hidden,
                           const float* shared, float* y) = 0;

  // -- sampling -------------------------------------------------------------------------------------------------------
  /// tokens [n] = argmax over allowed ids of logits (temperature 0), or of logits / temperature + gumbel after top_k,
  /// then top_p (the fewest most probable tokens whose probabilities under softmax(logits / temperature) over the top_k
  /// set sum to at least top_p); ties everywhere to the lowest id. gumbel of id t = -log(-log(u)), u = ((w >> 8) + 0.5)
  /// * 2^-24, w = word t % 4 of philox({t / 4, position, 0, 0}, {low, high half of seed}). Where rows[i].logprobs >= 0:
  /// logprobs [n] = log softmax(logits)[token] of the unmodified logits, top_tokens and top_logprobs [n, max_top] the
  /// rows[i].logprobs highest. The three arrays may be null if no row asks. A row with a NaN or an infinity among its
  /// logits (banned ids too) has no distribution: its token is -1 and nothing else is written for it.
  virtual void sample(place where, const float* logits, uint32_t n, uint32_t vocabulary, const sample_row* rows,
                      int32_t* tokens, float* logprobs, int32_t* top_tokens, float* top_logprobs) = 0;
};

}  // namespace troupe::kernels
