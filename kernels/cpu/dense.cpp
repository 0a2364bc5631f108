#include <algorithm>
#include <cstring>

#include "kernels/cpu/operators_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

void cpu_operators::grouped_linear(place, const float* x, uint32_t n, const weight& w, uint32_t groups, float* y) {
  if (n == 0) return;
  TROUPE_CHECK(w.cols % (w.format == weight_format::mxfp4 ? 32 : 16) == 0 && w.rows % groups == 0,
               "weight [{}, {}] in {} groups", w.rows, w.cols, groups);
  const uint32_t out = w.rows / groups;
  const size_t x_stride = size_t(groups) * w.cols;
  // Equal row blocks, so that no block is left with a single row.
  const uint32_t blocks = (n + tile_rows - 1) / tile_rows;
  const uint32_t block = std::min(tile_rows, ((n + blocks - 1) / blocks + 3) / 4 * 4);
  const uint32_t width = task_size(c_, out, tile_columns), strips = (out + width - 1) / width;
  c_.pool.run(groups * strips * blocks, [&](uint32_t task, uint32_t thread) {
    const uint32_t first = task % blocks * block, strip = task / blocks % strips, group = task / blocks / strips;
    if (first >= n) return;
    const uint32_t rows = std::min(block, n - first);
    const float* xs[tile_rows];
    float* ys[tile_rows];
    for (uint32_t r = 0; r < rows; ++r) {
      xs[r] = x + (first + r) * x_stride + size_t(group) * w.cols;
      ys[r] = y + size_t(first + r) * w.rows;
    }
    const uint32_t begin = group * out + strip * width, end = std::min(begin + width, (group + 1) * out);
    float* scratch = c_.per_thread[thread].get<float>(linear_scratch_bytes / sizeof(float));
    c_.kernels.linear_tile(xs, rows, w, begin, end, ys, scratch);
  });
}

void cpu_operators::linear(place where, const float* x, uint32_t n, const weight& w, float* y) {
  grouped_linear(where, x, n, w, 1, y);
}

void cpu_operators::rms_norm(place, const float* x, uint32_t n, const weight& w, float eps, float* y) {
  each_row(c_, n, [&](uint32_t i) { c_.kernels.rms_norm(x + size_t(i) * w.cols, w, eps, y + size_t(i) * w.cols); });
}

void cpu_operators::embed(place, const int32_t* tokens, uint32_t n, const weight& w, float* y) {
  each_row(c_, n, [&](uint32_t i) { c_.kernels.dequantise_row(w, uint32_t(tokens[i]), y + size_t(i) * w.cols); });
}

void cpu_operators::add(place, const float* x, size_t count, float* y) { c_.kernels.add(x, count, y); }

void cpu_operators::concat(place, const float* a, uint32_t a_width, const float* b, uint32_t b_width, uint32_t n,
                           float* y) {
  const size_t width = size_t(a_width) + b_width;
  for (uint32_t i = 0; i < n; ++i) {
    memcpy(y + i * width, a + size_t(i) * a_width, a_width * sizeof(float));
    memcpy(y + i * width + a_width, b + size_t(i) * b_width, b_width * sizeof(float));
  }
}

void cpu_operators::sigmoid(place, float* x, size_t count) { c_.kernels.sigmoid(x, count); }

void cpu_operators::gather_rows(place, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) {
  for (uint32_t i = 0; i < n; ++i) memcpy(y + i * width, x + index[i] * width, width * sizeof(float));
}

void cpu_operators::scatter_rows(place, const float* x, const uint32_t* index, uint32_t n, size_t width, float* y) {
  for (uint32_t i = 0; i < n; ++i) memcpy(y + index[i] * width, x + i * width, width * sizeof(float));
}

}  // namespace troupe::kernels::cpu
