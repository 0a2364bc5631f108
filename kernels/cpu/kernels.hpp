// The kernels behind the CPU operators: one table per instruction set, all giving the same bits. A kernel works on one
// row or a range of output elements on the calling thread; the operators split the work. Widths (cols, hidden, dim) are
// multiples of 16 except where a `count` is said; pointers may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.hpp"

namespace troupe::kernels::cpu {

/// Rows that `linear_tile` takes at once, and its output columns per strip; the work is split in these units.
constexpr uint32_t tile_rows = 64;
constexpr uint32_t tile_columns = 24;
/// Bytes of scratch that a thread needs for linear_tile.
constexpr size_t linear_scratch_bytes = (24 * 1024 + tile_rows * tile_columns * 16) * sizeof(float);

/// Keys that `attention` decodes at once.
constexpr uint32_t key_block = 48;
/// Floats of scratch for `attention` over `keys` keys.
constexpr size_t attention_scratch(uint32_t heads, uint32_t dim, uint32_t keys) {
  return size_t(key_block) * dim + size_t(heads) * ((keys + 15) / 16 * 16);
}
/// Keys that `index_scores` takes at once, and its floats of scratch.
constexpr uint32_t score_block = 48;
constexpr size_t index_scratch(uint32_t heads, uint32_t dim) {
  return size_t(score_block) * dim + size_t(score_block) * ((heads + 15) / 16 * 16) + (heads + 15) / 16 * 16;
}

/// The keys of one query row (they are the values too): window records in order of position, then main entries by s.
struct key_list {
  const std::byte* const* window = nullptr;
  uint32_t window_count = 0;
  const std::byte* const* entries = nullptr;
  uint32_t entry_count = 0;
};

/// The kernels of one instruction set. Pure functions on memory of the caller; any thread.
struct kernel_table {
  const char* name;

  // -- dense
  /// y[r][o] = x[r] . w_o for rows r < n <= tile_rows and outputs o in [begin, end) of w, where x, y are arrays of row
  /// pointers (y[r] is indexed by o). mxfp4: w.cols is a multiple of 32. scratch: linear_scratch_bytes, 64-byte
  /// aligned.
  void (*linear_tile)(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
                      float* scratch);
  /// y[0, w.cols) = row `row` of w as float.
  void (*dequantise_row)(const weight& w, uint32_t row, float* y);

  // -- rows
  /// y = x * (1 / sqrt(mean(x^2) + eps)) * w[0]; may be in place.
  void (*rms_norm)(const float* x, const weight& w, float eps, float* y);
  void (*add)(const float* x, size_t count, float* y);  // y += x
  void (*sigmoid)(float* x, size_t count);              // in place
  /// out = sum_i softmax_i(gate[i]) * kv[i] per channel, i < ratio.
  void (*softmax_gate)(const float* const* kv, const float* const* gate, uint32_t ratio, uint32_t dim, float* out);

  // -- residual streams
  /// sum(x^2) / count, count a multiple of 16.
  float (*mean_square)(const float* x, size_t count);
  /// pre, post, comb of hc_mix from m = fn . x (not yet normalised) and r = 1 / sqrt(mean(x^2) + eps). hc <= 8.
  void (*hc_finish)(const float* m, float r, uint32_t hc, const float* base, const float* scale, float hc_eps,
                    uint32_t iterations, float* pre, float* post, float* comb);
  /// y = sum_k weights[k] * x[k], x [hc, hidden]
  void (*hc_collapse)(const float* x, uint32_t hc, uint32_t hidden, const float* weights, float* y);
  void (*hc_expand)(float* x, uint32_t hc, uint32_t hidden, const float* y, const float* post, const float* comb);
  void (*hc_mean)(const float* x, uint32_t hc, uint32_t hidden, float* y);
  /// The gate of every stream, [hc], and x_k += gate_k * value.
  void (*engram_gate)(float* x, uint32_t hc, uint32_t hidden, const float* kv, const weight& q_weight,
                      const weight& k_weight, float eps, bool masked, float* gates);

  // -- experts
  /// s = sqrt(softplus(logits / temperature)), any count.
  void (*router_scores)(const float* logits, uint32_t count, float temperature, float* s);
  /// h = silu(min(gate, limit)) * clamp(up, -limit, limit) * route_weight, any count; h may be gate.
  void (*swiglu)(const float* gate, const float* up, uint32_t count, float limit, float route_weight, float* h);

  // -- attention
  /// out [heads, dim] for q [heads, dim]: softmax(q . k * scale) with the sinks in the denominator, times the keys.
  void (*attention)(const float* q, uint32_t heads, uint32_t dim, const key_list& keys, float scale, const float* sink,
                    float* out, float* scratch);
  /// scores[i] = (sum_h w[h] * heads^-0.5 * relu(q_h . key_i)) * dim^-0.5 for `count` index keys.
  void (*index_scores)(const float* q, const float* w, uint32_t heads, uint32_t dim, const std::byte* const* keys,
                       uint32_t count, float* scores, float* scratch);

  // -- sampling
  /// -log(-log(u)), u = ((w >> 8) + 0.5) 2^-24, any count.
  void (*gumbel)(const uint32_t* words, size_t count, float* out);
  /// sum of exp(x - shift), any count; out (may be null) gets the terms. -inf gives 0.
  float (*exp_sum)(const float* x, size_t count, float shift, float* out);
  /// log(x) of one positive normal number.
  float (*log)(float x);
};

}  // namespace troupe::kernels::cpu
