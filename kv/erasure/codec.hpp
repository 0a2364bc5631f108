// Erasure code of an extent: k data shards and m parity shards, any k of which give back the rest. Systematic
// Reed-Solomon with a Cauchy matrix over GF(2^8), by ISA-L.
//
// The code works byte by byte: byte i of a lost shard depends on byte i of k survivors only. So every call may be given
// the same byte range of all shards instead of whole shards; a degraded read of one block decodes only its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kv/extent/extent.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// The code of one (k, m). Thread safe; the decode tables of recent loss patterns are kept (64 at most, the least
/// recently used goes).
class codec {
 public:
  /// k 1 to 32, m 0 to 8, else invalid_argument. m = 0: nothing can be rebuilt.
  static result<std::shared_ptr<const codec>> make(uint32_t data, uint32_t parity);

  /// The shared codec of this (k, m), made at first use; at most 297 exist. Errors as make. Any thread.
  static result<std::shared_ptr<const codec>> get(uint32_t data, uint32_t parity);

  ~codec();

  uint32_t data() const;
  uint32_t parity() const;

  /// Fills m parity shards of `bytes` bytes (any number, 0 included) from k data shards. No output overlaps anything.
  /// Errors: invalid_argument (other numbers of shards than k and m).
  result<void> encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity, size_t bytes) const;

  /// Makes shards `want` (0 to k + m - 1, data and parity alike) from exactly k survivors: `sources[i]` points at
  /// `bytes` bytes of shard `have[i]`, `out[i]` gets the same bytes of shard `want[i]`. `have` strictly ascending;
  /// `want` all different and none in `have`. Errors: invalid_argument, unavailable (fewer than k survivors); nothing
  /// is written then.
  result<void> reconstruct(std::span<const uint32_t> have, std::span<const std::byte* const> sources,
                           std::span<const uint32_t> want, std::span<std::byte* const> out, size_t bytes) const;

  /// How the table cache fares. Hits and misses since the start.
  struct cache_stats {
    uint64_t hits = 0, misses = 0;
    size_t entries = 0;
  };
  cache_stats stats() const;

 private:
  struct impl;
  explicit codec(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

}  // namespace troupe::kv
