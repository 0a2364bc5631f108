// The kernels behind the CPU operators: one table per instruction set, all giving the same bits. A kernel works on a
// range of output elements on the calling thread; cpu_operators splits the work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.hpp"

namespace troupe::kernels::cpu {

/// Rows that `linear_tile` takes at once, and its output columns per strip; the work is split in these units.
constexpr uint32_t tile_rows = 64;
constexpr uint32_t tile_columns = 24;
/// Bytes of scratch that a thread needs for linear_tile.
constexpr size_t linear_scratch_bytes = 2 * 24 * 1024 * sizeof(float) + tile_rows * tile_columns * 16 * sizeof(float);

struct kernel_table {
  const char* name;

  /// y[r][o] = x[r] . w_o for rows r < n <= tile_rows and outputs o in [begin, end) of w, where x, y are arrays of row
  /// pointers (y[r] is indexed by o). w.cols is a multiple of 16 (mxfp4: 32). scratch: linear_scratch_bytes, 64-byte
  /// aligned.
  void (*linear_tile)(const float* const* x, uint32_t n, const weight& w, uint32_t begin, uint32_t end, float* const* y,
                      float* scratch);
  /// y[0, w.cols) = row `row` of w as float.
  void (*dequantise_row)(const weight& w, uint32_t row, float* y);
};

}  // namespace troupe::kernels::cpu
