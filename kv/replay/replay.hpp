// Replays a trace against the store's rules and says how much of it would have been found.
//
// Definitions (the same for all variants): a request hits the longest prefix of its blocks that is stored; then all its
// blocks are stored or touched, from the first to the last. block_hit_rate = hit blocks / blocks asked for;
// token_hit_rate = tokens of hit blocks / input tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kv/index/block_index.hpp"
#include "kv/replay/trace.hpp"

namespace troupe::kv {

/// What a replay counts.
struct replay_counts {
  uint64_t requests = 0;
  uint64_t blocks = 0, hit_blocks = 0;
  uint64_t tokens = 0, hit_tokens = 0;  // tokens: of all inputs
  uint64_t unique_blocks = 0;           // different blocks of the whole trace
  double block_hit_rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
  double token_hit_rate() const {
    return tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(tokens);
  }
};

/// What the store forgets. At most one of the two; neither: nothing.
struct replay_limits {
  int64_t ttl_ms = 0;       // a block is gone when this much has passed since it was last stored or touched
  uint64_t lru_blocks = 0;  // room; the block goes that was touched longest ago
};

/// The trace's own blocks (the last one of a request may be partial and counts), bookkeeping only: no index, expiries
/// by policies::plan_ttl with a step of one millisecond, that is without coarsening. Memory: about 60 bytes per unique
/// block. Errors: both limits given, or a negative one.
result<replay_counts> replay_blocks(std::span<const trace_request> trace, const replay_limits& limits);

/// How the blocks of `replay_index` would be stored.
struct replay_shape {
  uint32_t block_tokens = 128;  // divides 512
  uint32_t block_bytes = 113'920;
  uint32_t data = 10, parity = 2;
  uint64_t lru_blocks = 0;     // room in the index, kept by block_index::evict; 0: no limit
  int64_t ttl_s = 0;           // what the index was told for the chatbot class, for per_block_hits; 0: nothing expires
  std::function<bool()> stop;  // asked before each request; true ends the replay with errc::cancelled
};

/// What a replay through the index counts beside the hits.
struct replay_index_counts : replay_counts {
  uint64_t per_block_hits = 0;  // hits if every block were stored and looked up by itself, under the same limits
  uint64_t extents = 0;         // written
  uint64_t extent_reads = 0;    // extents that the hits would have read
  uint64_t payload_bytes = 0;   // of all blocks written
  uint64_t device_bytes = 0;    // that their shards take, in whole runs
  /// Extents read for 16 blocks that hit (1: all were full ones).
  double extents_per_16_blocks() const {
    return hit_blocks == 0 ? 0 : 16 * static_cast<double>(extent_reads) / static_cast<double>(hit_blocks);
  }
  /// (k + m) / k plus padding and footers.
  double space_over_bytes() const {
    return payload_bytes == 0 ? 0 : static_cast<double>(device_bytes) / static_cast<double>(payload_bytes);
  }
};

/// The trace through a real index and real extents, without data: match, touch what hits, put the rest in extents that
/// end at slots. A trace id becomes 512 / block_tokens blocks; only complete blocks count and are stored. The time to
/// live is the index's (chatbot class); the trace starts at `start_s`. Errors: invalid_argument (shape), cancelled
/// (stopped), those of the index.
result<replay_index_counts> replay_index(std::span<const trace_request> trace, block_index& index,
                                         const replay_shape& shape, int64_t start_s);

}  // namespace troupe::kv
