// Attention of one row over its keys, and index scores. Keys are decoded in blocks that depend on the row's own key
// list only. A logit is one dot product in the order of linear.cpp; a softmax denominator sums keys in 16 lanes, then
// the tree, then the sink; an output channel adds its keys in list order.
#include "kernels/cpu/simd/elementary.hpp"
#include "kernels/cpu/simd/partial.hpp"
#include "kernels/cpu/simd/tables.hpp"
#include "kernels/cpu/simd/weights.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {
namespace {

/// The values of all E4M3 codes.
struct e4m3_values {
  float v[256];
  constexpr e4m3_values() : v{} {
    for (int c = 0; c < 256; ++c) {
      const int e = (c >> 3) & 15, m = c & 7;
      float f = e == 0 ? float(m) * 0x1p-9f : float(8 + m) * 0x1p-10f;
      for (int i = 1; i <= e; ++i) f *= 2.0f;
      v[c] = (c & 0x7f) == 0x7f ? __builtin_nanf("") : c & 0x80 ? -f : f;
    }
  }
};
constexpr e4m3_values e4m3;

void decode_window(const std::byte* record, uint32_t dim, float* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(record);
  for (uint32_t k = 0; k < dim; k += 32) {
    const vec scale = set1(scales_e4m3[p[dim + k / 32]]);
    store(out + k, mul(load_e4m3(p + k), scale));
    store(out + k + 16, mul(load_e4m3(p + k + 16), scale));
  }
}

void decode_entry(const std::byte* record, uint32_t dim, float* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(record);
  for (uint32_t k = 0; k < dim; k += 16) store(out + k, load_e2m1(p + k / 2, e2m1_table(e4m3.v[p[dim / 2 + k / 16]])));
}

void decode_key(const std::byte* record, uint32_t dim, float* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(record);
  for (uint32_t k = 0; k < dim; k += 32) {
    const vec table = e2m1_table(scales_plain[p[dim / 2 + k / 32]]);
    store(out + k, load_e2m1(p + k / 2, table));
    store(out + k + 16, load_e2m1(p + k / 2 + 8, table));
  }
}

/// out[i * out_a + j * out_b] = a_i . b_j over rows a, b that lie `dim` apart.
void dots(const float* a, uint32_t na, const float* b, uint32_t nb, uint32_t dim, float* out, size_t out_a,
          size_t out_b) {
  for (uint32_t j0 = 0; j0 < nb; j0 += tile_n)
    for (uint32_t i0 = 0; i0 < na; i0 += tile_m) {
      const float* as[tile_m];
      const float* bs[tile_n];
      for (uint32_t i = 0; i < tile_m; ++i) as[i] = a + size_t(i0 + i < na ? i0 + i : na - 1) * dim;
      for (uint32_t j = 0; j < tile_n; ++j) bs[j] = b + size_t(j0 + j < nb ? j0 + j : nb - 1) * dim;
      vec acc[tile_m * tile_n];
#pragma GCC unroll 32
      for (uint32_t t = 0; t < tile_m * tile_n; ++t) acc[t] = zero();
      for (uint32_t k = 0; k < dim; k += 16) {
        vec v[tile_m];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < tile_m; ++i) v[i] = load(as[i] + k);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < tile_n; ++j) {
          const vec w = load(bs[j] + k);
#pragma GCC unroll 16
          for (uint32_t i = 0; i < tile_m; ++i) acc[i * tile_n + j] = fma(v[i], w, acc[i * tile_n + j]);
        }
      }
      float sums[(tile_m * tile_n + 3) / 4 * 4];
#pragma GCC unroll 16
      for (uint32_t t = 0; t + 4 <= tile_m * tile_n; t += 4) sum4(acc[t], acc[t + 1], acc[t + 2], acc[t + 3], sums + t);
#pragma GCC unroll 16
      for (uint32_t t = tile_m * tile_n / 4 * 4; t < tile_m * tile_n; ++t) sums[t] = sum(acc[t]);
      for (uint32_t i = 0; i < tile_m && i0 + i < na; ++i)
        for (uint32_t j = 0; j < tile_n && j0 + j < nb; ++j)
          out[(i0 + i) * out_a + (j0 + j) * out_b] = sums[i * tile_n + j];
    }
}

/// out[h][16 V channels] += p[h][j] * keys[j] for j in order, H heads.
template <uint32_t H, uint32_t V>
void weigh(const float* p, size_t p_stride, const float* keys, uint32_t count, uint32_t dim, float* out) {
  vec acc[H][V];
#pragma GCC unroll 16
  for (uint32_t h = 0; h < H; ++h)
#pragma GCC unroll 16
    for (uint32_t v = 0; v < V; ++v) acc[h][v] = load(out + size_t(h) * dim + v * 16);
  for (uint32_t j = 0; j < count; ++j) {
    vec key[V];
#pragma GCC unroll 16
    for (uint32_t v = 0; v < V; ++v) key[v] = load(keys + size_t(j) * dim + v * 16);
#pragma GCC unroll 16
    for (uint32_t h = 0; h < H; ++h) {
      const vec w = set1(p[h * p_stride + j]);
#pragma GCC unroll 16
      for (uint32_t v = 0; v < V; ++v) acc[h][v] = fma(w, key[v], acc[h][v]);
    }
  }
#pragma GCC unroll 16
  for (uint32_t h = 0; h < H; ++h)
#pragma GCC unroll 16
    for (uint32_t v = 0; v < V; ++v) store(out + size_t(h) * dim + v * 16, acc[h][v]);
}

/// Softmax of one head's logits, in place: p_j = e^(l_j scale - m) / (sum + e^(sink - m)). Lanes past count become 0.
void softmax(float* logits, uint32_t count, float scale, float sink) {
  const vec s = set1(scale);
  const float none = -__builtin_inff();
  vec top = set1(sink);
  for (uint32_t k = 0; k < count; k += 16) {
    const vec l = mul(load_part(logits + k, count - k, none), s);  // scale > 0 keeps -inf
    store(logits + k, l);
    top = max(top, l);
  }
  const float m = largest(top);
  const vec ms = set1(m);
  vec total = zero();
  for (uint32_t k = 0; k < count; k += 16) {
    const vec e = exp(sub(load(logits + k), ms));
    store(logits + k, e);
    total = add(total, e);
  }
  float rest[16];
  store(rest, exp(set1(sink - m)));
  const vec all = set1(sum(total) + rest[0]);
  for (uint32_t k = 0; k < count; k += 16) store(logits + k, div(load(logits + k), all));
}

}  // namespace

void attention(const float* q, uint32_t heads, uint32_t dim, const key_list& keys, float scale, const float* sink,
               float* out, float* scratch) {
  const uint32_t count = keys.window_count + keys.entry_count, padded = (count + 15) / 16 * 16;
  float* const block = scratch;
  float* const logits = scratch + size_t(key_block) * dim;  // [heads, padded]
  auto decode = [&](uint32_t first, uint32_t n) {
    for (uint32_t j = 0; j < n; ++j) {
      const uint32_t i = first + j;
      if (i < keys.window_count) {
        decode_window(keys.window[i], dim, block + size_t(j) * dim);
      } else {
        decode_entry(keys.entries[i - keys.window_count], dim, block + size_t(j) * dim);
      }
    }
  };
  for (uint32_t first = 0; first < count; first += key_block) {
    const uint32_t n = count - first < key_block ? count - first : key_block;
    decode(first, n);
    dots(q, heads, block, n, dim, logits + first, padded, 1);
  }
  for (uint32_t h = 0; h < heads; ++h) softmax(logits + size_t(h) * padded, count, scale, sink[h]);

  for (size_t i = 0; i < size_t(heads) * dim; i += 16) store(out + i, zero());
  constexpr uint32_t hs = weigh_heads, vs = weigh_vecs;
  for (uint32_t first = 0; first < count; first += key_block) {
    const uint32_t n = count - first < key_block ? count - first : key_block;
    if (count > key_block) decode(first, n);  // a single block is still there
    uint32_t d = 0;
    for (; d + 16 * vs <= dim; d += 16 * vs) {
      uint32_t h = 0;
      for (; h + hs <= heads; h += hs)
        weigh<hs, vs>(logits + size_t(h) * padded + first, padded, block + d, n, dim, out + size_t(h) * dim + d);
      for (; h < heads; ++h)
        weigh<1, vs>(logits + size_t(h) * padded + first, padded, block + d, n, dim, out + size_t(h) * dim + d);
    }
    for (; d < dim; d += 16)
      for (uint32_t h = 0; h < heads; ++h)
        weigh<1, 1>(logits + size_t(h) * padded + first, padded, block + d, n, dim, out + size_t(h) * dim + d);
  }
}

void index_scores(const float* q, const float* w, uint32_t heads, uint32_t dim, const std::byte* const* keys,
                  uint32_t count, float* scores, float* scratch) {
  const uint32_t padded = (heads + 15) / 16 * 16;
  float* const block = scratch;
  float* const products = block + size_t(score_block) * dim;  // [key, padded heads]
  float* const weights = products + size_t(score_block) * padded;
  const vec head_share = set1(1.0f / __builtin_sqrtf(float(heads)));
  const vec dim_share = set1(1.0f / __builtin_sqrtf(float(dim)));
  for (uint32_t h = 0; h < padded; h += 16)
    store(weights + h, h < heads ? mul(load_part(w + h, heads - h, 0), head_share) : zero());
  for (size_t i = 0; i < size_t(score_block) * padded; i += 16) store(products + i, zero());
  for (uint32_t first = 0; first < count; first += score_block) {
    const uint32_t n = count - first < score_block ? count - first : score_block;
    for (uint32_t j = 0; j < n; ++j) decode_key(keys[first + j], dim, block + size_t(j) * dim);
    dots(q, heads, block, n, dim, products, 1, padded);
    for (uint32_t j = 0; j < n; ++j) {
      vec acc = zero();
      for (uint32_t h = 0; h < padded; h += 16)
        acc = fma(load(weights + h), max(load(products + size_t(j) * padded + h), zero()), acc);
      float lanes[16];
      store(lanes, mul(set1(sum(acc)), dim_share));
      scores[first + j] = lanes[0];
    }
  }
}

}  // namespace troupe::kernels::cpu::TROUPE_ISA
