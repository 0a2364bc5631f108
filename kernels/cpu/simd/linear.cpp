// Dense products y = x w^T. Every output is one dot product whose order is fixed: 16 lanes, lane i sums columns i mod
// 16 with fused multiply-add in rising order, then the tree of `sum`. Tiling only decides which dot products advance
// together.
//
//   up to 4 rows     weights go from their packed form straight into registers: the memory's bandwidth decides
//   more rows        a strip of 24 outputs is dequantised once per 1,024 columns and used by up to 64 rows
#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/simd/tables.hpp"
#include "kernels/cpu/simd/weights.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {
namespace {

constexpr uint32_t depth = 1024;  // columns per panel: 6 outputs of it fit the first-level cache

static_assert(tile_columns % tile_n == 0 && tile_rows % tile_m == 0);

template <weight_format F, uint32_t R, uint32_t C>
void few_rows(const float* const* x, const weight& w, uint32_t out, uint32_t valid, float* const* y) {
  using reader = row_reader<F>;
  reader rows[C] = {};
  vec acc[R][C];
  for (uint32_t c = 0; c < C; ++c) rows[c] = reader(w, out + (c < valid ? c : valid - 1));
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < C; ++c) acc[r][c] = zero();
  const uint32_t cols = w.cols;
  for (uint32_t k = 0; k < cols; k += 32) {
#pragma GCC unroll 16
    for (uint32_t c = 0; c < C; ++c) rows[c].next(k);
    for (uint32_t half = k; half < k + 32 && half < cols; half += 16) {
      vec xs[R];
#pragma GCC unroll 16
      for (uint32_t r = 0; r < R; ++r) xs[r] = load(x[r] + half);
#pragma GCC unroll 16
      for (uint32_t c = 0; c < C; ++c) {
        const vec v = rows[c].get(half);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < R; ++r) acc[r][c] = fma(xs[r], v, acc[r][c]);
      }
    }
  }
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < valid; ++c) y[r][out + c] = sum(acc[r][c]);
}

template <weight_format F, uint32_t R>
void few_rows_range(const float* const* x, const weight& w, uint32_t begin, uint32_t end, float* const* y) {
  constexpr uint32_t c = few_columns(R);
  for (uint32_t o = begin; o < end; o += c) few_rows<F, R, c>(x, w, o, end - o < c ? end - o : c, y);
}

template <weight_format F>
void dequantise(const weight& w, uint32_t row, uint32_t from, uint32_t count, float* out) {
  row_reader<F> r(w, row);
  for (uint32_t k = 0; k < count; k += 32) {
    r.next(from + k);
    store(out + k, r.get(from + k));
    if (k + 16 < count) store(out + k + 16, r.get(from + k + 16));
  }
}

/// acc[m][n] += x[m] . panel[n] over count columns; acc is tile_m x tile_n vectors in memory.
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
      const vec w = load(panel + n * depth + k);
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
  float* const acc = scratch + size_t(tile_columns) * depth;
  const uint32_t row_tiles = (n + tile_m - 1) / tile_m;
  const float* rows[tile_rows];
  for (uint32_t r = 0; r < row_tiles * tile_m; ++r) rows[r] = x[r < n ? r : n - 1];
  for (uint32_t strip = begin; strip < end; strip += tile_columns) {
    const uint32_t width = end - strip < tile_columns ? end - strip : tile_columns;
    const uint32_t column_tiles = (width + tile_n - 1) / tile_n;
    for (size_t i = 0; i < size_t(row_tiles) * column_tiles * tile_m * tile_n * 16; i += 16) store(acc + i, zero());
    for (uint32_t k = 0; k < w.cols; k += depth) {
      const uint32_t count = w.cols - k < depth ? w.cols - k : depth;
      for (uint32_t c = 0; c < column_tiles * tile_n; ++c)
        dequantise<F>(w, strip + (c < width ? c : width - 1), k, count, panel + size_t(c) * depth);
      for (uint32_t c = 0; c < column_tiles; ++c)
        for (uint32_t r = 0; r < row_tiles; ++r)
          tile(rows + r * tile_m, k, panel + size_t(c) * tile_n * depth, count,
               acc + (size_t(c) * row_tiles + r) * tile_m * tile_n * 16);
    }
    for (uint32_t r = 0; r < n; ++r)
      for (uint32_t c = 0; c < width; ++c)
        y[r][strip + c] = sum(load(
            acc + (((size_t(c / tile_n) * row_tiles + r / tile_m) * tile_m + r % tile_m) * tile_n + c % tile_n) * 16));
  }
}

template <weight_format F>
void linear(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
            float* scratch) {
  switch (n) {
    case 0:
      return;
    case 1:
      return few_rows_range<F, 1>(x, w, begin, end, y);
    case 2:
      return few_rows_range<F, 2>(x, w, begin, end, y);
    case 3:
      return few_rows_range<F, 3>(x, w, begin, end, y);
    case 4:
      return few_rows_range<F, 4>(x, w, begin, end, y);
    default:
      return many_rows<F>(x, n, w, begin, end, y, scratch);
  }
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
      return dequantise<weight_format::f32>(w, row, 0, w.cols, y);
    case weight_format::bf16:
      return dequantise<weight_format::bf16>(w, row, 0, w.cols, y);
    case weight_format::fp8_block:
      return dequantise<weight_format::fp8_block>(w, row, 0, w.cols, y);
    case weight_format::fp8_row:
      return dequantise<weight_format::fp8_row>(w, row, 0, w.cols, y);
    case weight_format::mxfp4:
      return dequantise<weight_format::mxfp4>(w, row, 0, w.cols, y);
  }
}

}  // namespace troupe::kernels::cpu::TROUPE_ISA
