// Dense products y = x w^T. Every output is one dot product whose order is fixed: 16 lanes, lane i sums columns i mod
// 16 with fused multiply-add in rising order, then the tree of `sum`. Tiling only decides which dot products advance
// together.
//
//   up to 8 rows     weights go from their packed form straight into registers: the memory's bandwidth decides
//   more rows        1,024 columns of a few outputs are dequantised into the first-level cache and used by up to 64
//   rows
#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/simd/tables.hpp"
#include "kernels/cpu/simd/weights.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {
namespace {

constexpr uint32_t depth = 1024;  // columns per panel: 6 outputs of it fit the first-level cache

static_assert(tile_columns % tile_n == 0 && tile_rows % tile_m == 0);

/// Outputs [out, out + C) of R rows. The C weight rows lie side by side, and those of fp8_block share their scales.
template <weight_format F, uint32_t R, uint32_t C>
void few_rows(const float* const* x, const weight& w, uint32_t out, float* const* y) {
  using S = storage<F>;
  const size_t row = S::row_bytes(w.cols);
  const uint8_t* p = row_data<F>(w, out);
  const uint8_t* s = row_scale<F>(w, out);
  size_t scale_row = 0;
  if constexpr (S::scaled) scale_row = S::rows_per_scale > 1 ? 0 : S::scale_bytes(w.cols);
  const float* xs[R];
  for (uint32_t r = 0; r < R; ++r) xs[r] = x[r];
  vec acc[R][C];
#pragma GCC unroll 16
  for (uint32_t r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (uint32_t c = 0; c < C; ++c) acc[r][c] = zero();
  for (uint32_t k = 0; k + 32 <= w.cols; k += 32) {
#pragma GCC unroll 16
    for (uint32_t c = 0; c < C; ++c) {
      vec a, b;
      S::read(p + c * row, s + c * scale_row, a, b);
      __builtin_prefetch(p + (C + c) * row);  // the next outputs: the hardware loses a stream at the end of each row
#pragma GCC unroll 16
      for (uint32_t r = 0; r < R; ++r) {
        acc[r][c] = fma(load(xs[r] + k), a, acc[r][c]);
        acc[r][c] = fma(load(xs[r] + k + 16), b, acc[r][c]);
      }
    }
    p += S::block_bytes;
    if constexpr (S::scaled) ++s;
  }
  if (w.cols % 32 != 0) {
#pragma GCC unroll 16
    for (uint32_t c = 0; c < C; ++c) {
      const vec a = S::read_half(p + c * row, s + c * scale_row);
#pragma GCC unroll 16
      for (uint32_t r = 0; r < R; ++r) acc[r][c] = fma(load(xs[r] + w.cols - 16), a, acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (uint32_t r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (uint32_t c = 0; c < C; ++c) y[r][out + c] = sum(acc[r][c]);
}

template <weight_format F, uint32_t R>
void few_rows_range(const float* const* x, const weight& w, uint32_t begin, uint32_t end, float* const* y) {
  constexpr uint32_t c = few_columns(R);
  for (uint32_t o = begin; o < end;) {
    if (o + c <= end && o / 32 == (o + c - 1) / 32) {
      few_rows<F, R, c>(x, w, o, y);
      o += c;
    } else {
      few_rows<F, R, 1>(x, w, o, y);
      o += 1;
    }
  }
}

/// Columns [from, from + count) of a row; vector i goes to out + i * step. The cache lines of the same columns `ahead`
/// bytes further are fetched: the next piece that will be wanted.
template <weight_format F>
void dequantise(const weight& w, uint32_t row, uint32_t from, uint32_t count, float* out, size_t step,
                ptrdiff_t ahead) {
  using S = storage<F>;
  const uint8_t* p = row_data<F>(w, row) + from / 32 * S::block_bytes;
  const uint8_t* s = row_scale<F>(w, row) + (S::scaled ? from / 32 : 0);
  uint32_t k = 0;
  for (; k + 32 <= count; k += 32) {
    vec a, b;
    S::read(p, s, a, b);
    for (uint32_t line = 0; line < S::block_bytes; line += 64) __builtin_prefetch(p + ahead + line);
    store(out, a);
    store(out + step, b);
    out += 2 * step;
    p += S::block_bytes;
    if constexpr (S::scaled) ++s;
  }
  if (k < count) store(out, S::read_half(p, s));
}

/// acc[m][n] += x[m] . w[n] over count columns; acc is tile_m x tile_n vectors in memory. The panel holds vector k of
/// all outputs side by side: rows of their own would lie a multiple of 4 KiB apart and fight for the same cache lines.
inline void tile(const float* const* x, uint32_t from, const float* panel, uint32_t count, float* acc) {
  vec a[tile_m][tile_n];
#pragma GCC unroll 16
  for (uint32_t m = 0; m < tile_m; ++m)
#pragma GCC unroll 16
    for (uint32_t n = 0; n < tile_n; ++n) a[m][n] = load(acc + (m * tile_n + n) * 16);
  const float* xs[tile_m];
#pragma GCC unroll 16
  for (uint32_t m = 0; m < tile_m; ++m) xs[m] = x[m] + from;
  for (uint32_t k = 0; k < count; k += 16) {
    vec v[tile_m];
#pragma GCC unroll 16
    for (uint32_t m = 0; m < tile_m; ++m) v[m] = load(xs[m] + k);
#pragma GCC unroll 16
    for (uint32_t n = 0; n < tile_n; ++n) {
      const vec w = load(panel + (k * tile_n) + n * 16);
#pragma GCC unroll 16
      for (uint32_t m = 0; m < tile_m; ++m) a[m][n] = fma(v[m], w, a[m][n]);
    }
  }
#pragma GCC unroll 16
  for (uint32_t m = 0; m < tile_m; ++m)
#pragma GCC unroll 16
    for (uint32_t n = 0; n < tile_n; ++n) store(acc + (m * tile_n + n) * 16, a[m][n]);
}

template <weight_format F>
void many_rows(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
               float* scratch) {
  float* const panel = scratch;
  float* const acc = scratch + size_t(tile_n) * depth;
  const uint32_t row_tiles = (n + tile_m - 1) / tile_m;
  const float* rows[tile_rows];
  for (uint32_t r = 0; r < row_tiles * tile_m; ++r) rows[r] = x[r < n ? r : n - 1];
  for (uint32_t strip = begin; strip < end; strip += tile_columns) {
    const uint32_t width = end - strip < tile_columns ? end - strip : tile_columns;
    const uint32_t column_tiles = (width + tile_n - 1) / tile_n;
    for (size_t i = 0; i < size_t(row_tiles) * column_tiles * tile_m * tile_n * 16; i += 16) store(acc + i, zero());
    for (uint32_t k = 0; k < w.cols; k += depth) {
      const uint32_t count = w.cols - k < depth ? w.cols - k : depth;
      for (uint32_t c = 0; c < column_tiles; ++c) {
        // Next come the outputs beside these, then the first ones' next columns, then the next strip from column 0.
        const ptrdiff_t row = ptrdiff_t(storage<F>::row_bytes(w.cols));
        const ptrdiff_t back = ptrdiff_t(column_tiles - 1) * tile_n * row;
        const ptrdiff_t panel_bytes = ptrdiff_t(depth) / 32 * storage<F>::block_bytes;
        const ptrdiff_t ahead = c + 1 < column_tiles ? row * tile_n
                                : k + depth < w.cols ? panel_bytes - back
                                                     : row * tile_n - ptrdiff_t(k) / 32 * storage<F>::block_bytes;
        for (uint32_t j = 0; j < tile_n; ++j) {
          const uint32_t o = c * tile_n + j;
          dequantise<F>(w, strip + (o < width ? o : width - 1), k, count, panel + j * 16, tile_n * 16, ahead);
        }
        for (uint32_t r = 0; r < row_tiles; ++r)
          tile(rows + r * tile_m, k, panel, count, acc + (size_t(c) * row_tiles + r) * tile_m * tile_n * 16);
      }
    }
    for (uint32_t r = 0; r < n; ++r)
      for (uint32_t c = 0; c < width; ++c)
        y[r][strip + c] = sum(load(
            acc + (((size_t(c / tile_n) * row_tiles + r / tile_m) * tile_m + r % tile_m) * tile_n + c % tile_n) * 16));
  }
}

/// Up to 8 rows, in one or two passes over outputs whose weights the first pass leaves in the cache.
template <weight_format F>
void few_rows_passes(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end,
                     float* const* y) {
  const uint32_t passes = (n + 3) / 4;
  for (uint32_t o = begin; o < end; o += few_columns(1)) {
    const uint32_t last = end - o < few_columns(1) ? end : o + few_columns(1);
    for (uint32_t pass = 0, r = 0; pass < passes; ++pass) {
      const uint32_t rows = (n - r + passes - pass - 1) / (passes - pass);
      switch (rows) {
        case 1:
          few_rows_range<F, 1>(x + r, w, o, last, y + r);
          break;
        case 2:
          few_rows_range<F, 2>(x + r, w, o, last, y + r);
          break;
        case 3:
          few_rows_range<F, 3>(x + r, w, o, last, y + r);
          break;
        default:
          few_rows_range<F, 4>(x + r, w, o, last, y + r);
          break;
      }
      r += rows;
    }
  }
}

template <weight_format F>
void linear(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
            float* scratch) {
  if (n == 0) return;
  if (n <= 8) return few_rows_passes<F>(x, n, w, begin, end, y);
  many_rows<F>(x, n, w, begin, end, y, scratch);
}

}  // namespace

void linear_tile(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
                 float* scratch) {
  switch (w.format) {
    case weight_format::f32:
      return linear<weight_format::f32>(x, n, w, begin, end, y, scratch);
    case weight_format::bf16:
      return linear<weight_format::bf16>(x, n, w, begin, end, y, scratch);
    case weight_format::fp8_block:
      return linear<weight_format::fp8_block>(x, n, w, begin, end, y, scratch);
    case weight_format::fp8_row:
      return linear<weight_format::fp8_row>(x, n, w, begin, end, y, scratch);
    case weight_format::mxfp4:
      return linear<weight_format::mxfp4>(x, n, w, begin, end, y, scratch);
  }
}

void dequantise_row(const weight& w, uint32_t row, float* y) {
  switch (w.format) {
    case weight_format::f32:
      return dequantise<weight_format::f32>(w, row, 0, w.cols, y, 16, 0);
    case weight_format::bf16:
      return dequantise<weight_format::bf16>(w, row, 0, w.cols, y, 16, 0);
    case weight_format::fp8_block:
      return dequantise<weight_format::fp8_block>(w, row, 0, w.cols, y, 16, 0);
    case weight_format::fp8_row:
      return dequantise<weight_format::fp8_row>(w, row, 0, w.cols, y, 16, 0);
    case weight_format::mxfp4:
      return dequantise<weight_format::mxfp4>(w, row, 0, w.cols, y, 16, 0);
  }
}

}  // namespace troupe::kernels::cpu::TROUPE_ISA
