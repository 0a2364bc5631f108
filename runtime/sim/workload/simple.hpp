// What prefix caches of different shapes would have hit, without any queueing: requests one after the other, each found
// whole before the next one comes.
//
// Definitions: a request hits the longest prefix of its blocks that the cache has; then all its blocks are stored or
// touched, from the first to the last, and the least recently used ones go where there is no room. A partial last block
// is a block like any other.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/sim/workload/workload.hpp"

namespace troupe::sim {

/// Who gets a request.
enum class simple_place : uint8_t {
  round_robin,  // policies/placement: the next cache
  prefix_load,  // policies/prefix_place: longest prefix less extra work
  shared        // one cache for all, of the size of all
};

/// "round_robin", "prefix_load", "shared"; else invalid_argument.
result<simple_place> parse_simple_place(std::string_view name);

/// The caches.
struct simple_options {
  simple_place place = simple_place::shared;
  uint32_t caches = 1;        // 1 to 65,536
  uint64_t cache_tokens = 0;  // of each, in whole blocks of the source; 0: no limit
};

/// What came of it.
struct simple_counts {
  uint64_t requests = 0, blocks = 0, hit_blocks = 0, tokens = 0, hit_tokens = 0;
  std::vector<uint64_t> requests_of, missed_of;  // per cache
  double block_hit_rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
  double token_hit_rate() const {
    return tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(tokens);
  }
};

/// Plays the source to its end. Errors: options out of their bounds (a cache of less than one block too), the source's.
result<simple_counts> run_simple(workload_source& source, const simple_options& options);

}  // namespace troupe::sim
