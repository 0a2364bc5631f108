#include "kernels/cpu/dense.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

void grouped_linear(context& c, const float* x, uint32_t n, const weight& w, uint32_t groups, float* y) {
  if (n == 0) return;
  TROUPE_CHECK(w.cols % (w.format == weight_format::mxfp4 ? 32 : 16) == 0 && w.rows % groups == 0,
               "weight [{}, {}] in {} groups", w.rows, w.cols, groups);
  const uint32_t out = w.rows / groups;
  const size_t x_stride = size_t(groups) * w.cols;
  // Equal row blocks, so that no block is left with a single row.
  const uint32_t blocks = (n + tile_rows - 1) / tile_rows;
  const uint32_t block = std::min(tile_rows, ((n + blocks - 1) / blocks + 3) / 4 * 4);
  const uint32_t width = task_size(c, out, tile_columns), strips = (out + width - 1) / width;
  c.pool.run(groups * strips * blocks, [&](uint32_t task, uint32_t thread) {
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
    float* scratch = c.per_thread[thread].get<float>(linear_scratch_bytes / sizeof(float));
    c.kernels.linear_tile(xs, rows, w, begin, end, ys, scratch);
  });
}

void linear(context& c, const float* x, uint32_t n, const weight& w, float* y) { grouped_linear(c, x, n, w, 1, y); }

}  // namespace troupe::kernels::cpu
