#include "policies/snapshot_marks.hpp"

#include <algorithm>

namespace troupe::policies {

snapshot_marks marks_of_chunk(uint32_t window, uint32_t prompt, uint32_t position, uint32_t rows, uint32_t write_from) {
  const uint32_t newest = prompt / window, oldest = newest >= snapshots_kept ? newest - (snapshots_kept - 1) : 1;
  const uint32_t crossed = position / window + 1, written = (write_from + window - 1) / window;
  return {std::max({oldest, crossed, written, 1u}), std::min(newest, (position + rows) / window)};
}

snapshot_marks marks_of_decode(uint32_t window, uint32_t committed, uint32_t reach) {
  const uint32_t next = committed / window + 1;
  return {next, reach / window >= next ? next : next - 1};
}

}  // namespace troupe::policies
