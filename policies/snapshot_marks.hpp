// At which block boundaries of a request its windows are kept as snapshots.
#pragma once

#include <cstdint>

namespace troupe::policies {

/// Snapshots that are kept of a request: the newest. Source: the design's "the last three of a request kept".
inline constexpr uint32_t snapshots_kept = 3;

/// Boundaries behind `first` .. `last` blocks; none when first > last.
struct snapshot_marks {
  uint32_t first = 1, last = 0;
  bool operator==(const snapshot_marks&) const = default;
};

/// Of a chunk with rows [position, position + rows) of a prompt of `prompt` tokens: those of the prompt's last
/// snapshots_kept boundaries that it reaches. Rows before write_from are replayed; behind a hit windows are right where
/// its replay ends. window > 0.
snapshot_marks marks_of_chunk(uint32_t window, uint32_t prompt, uint32_t position, uint32_t rows, uint32_t write_from);

/// Of a decode step behind `committed` tokens, which ends at `reach` tokens at most: the next boundary, if it may be
/// crossed. A step crosses one at most. window > 0.
snapshot_marks marks_of_decode(uint32_t window, uint32_t committed, uint32_t reach);

}  // namespace troupe::policies
