// What the backends share.
#pragma once

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// A contiguous move; at most `most` bytes of one page.
struct piece {
  uint64_t remote_offset = 0, local_offset = 0;
  uint32_t length = 0;
};

/// Cuts pages into pieces of at most `most` bytes; invalid_argument when a page leaves either region.
result<std::vector<piece>> cut_pieces(const memory_region& local, const remote_region& remote, uint64_t page_bytes,
                                      const std::vector<page_move>& pages, uint64_t most);

/// invalid_argument for options out of their bounds.
result<void> check_options(const options& o);

}  // namespace troupe::transport
