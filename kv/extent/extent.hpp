// An extent: up to 16 consecutive blocks of one chain, stored as k data and m parity shards. This header says which
// bytes lie where.
//
// The data of an extent = its blocks one after the other, each taking block_bytes (a shorter block is followed by
// zeros), then zeros up to k x shard_bytes. Data shard i = bytes [i x shard_bytes, (i + 1) x shard_bytes) of it; shards
// k to k + m - 1 are parity. So reading one block of a full 10+2 extent touches one or two shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/types.hpp"

namespace troupe::kv {

inline constexpr uint32_t slot_blocks = 16;      // blocks of an aligned slot of a chain; no extent crosses its end
inline constexpr uint32_t shard_alignment = 64;  // shard sizes are multiples of it, so that ISA-L needs no tail
inline constexpr uint32_t max_data_shards = 32;
inline constexpr uint32_t max_parity_shards = 8;
inline constexpr uint32_t max_block_bytes = 1u << 26;

/// All that is known of an extent. It stands in the footer of each of its shards and in the index.
struct extent_info {
  extent_id id;
  uint64_t first = 0;              // position of its first block in the chain (block number)
  uint32_t count = 0;              // blocks, 1 to 16
  uint32_t block_bytes = 0;        // room of each block; 1 to 2^26
  std::vector<uint32_t> lengths;   // true bytes of each block; empty: all are block_bytes long
  std::vector<block_hash> hashes;  // of its blocks
  block_hash parent;               // of the block before `first`; default at block 0
  block_hash slot_first;           // of the first block of its slot, which may lie in another extent: places its owners
  uint8_t data = 0;                // k
  uint8_t parity = 0;              // m
  std::vector<target_id> targets;  // of each shard, data shards first, k + m
  traffic_class traffic = traffic_class::agent;
  int64_t written = 0;               // when, seconds since 1970
  int64_t expiry = 0;                // as known at the write; the index may know a later one
  storage_epoch epoch;               // membership that chose the targets
  uint64_t scheme = 0;               // hash_scheme::id()
  std::vector<uint32_t> block_crcs;  // CRC32C of the true bytes of each block

  bool operator==(const extent_info&) const = default;

  /// True bytes of block `ordinal` (< count).
  uint32_t length(uint32_t ordinal) const { return lengths.empty() ? block_bytes : lengths[ordinal]; }
  /// Slot of the chain that it lies in.
  uint64_t slot() const { return first / slot_blocks; }
  uint32_t shards() const { return uint32_t{data} + parity; }
};

/// Lets CAF (or any visitor in CAF's style) serialise it.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, extent_info& e) {
  return f(e.id, e.first, e.count, e.block_bytes, e.lengths, e.hashes, e.parent, e.slot_first, e.data, e.parity,
           e.targets, e.traffic, e.written, e.expiry, e.epoch, e.scheme, e.block_crcs);
}

/// Nothing, or invalid_argument that names the first member that breaks a rule of the comments above: ranges and sizes;
/// no crossing of a slot's end; token counts of hashes grow by one block size; parent given exactly when first > 0;
/// slot_first is the first hash when `first` begins a slot;
/// lengths 1 to block_bytes; id not {0, 0}; expiry and written >= 0.
result<void> validate(const extent_info& e);

/// Bytes of one shard: ceil(count x block_bytes / k) rounded up to 64.
uint64_t shard_bytes(uint32_t count, uint32_t block_bytes, uint32_t data_shards);

/// The same of an extent.
inline uint64_t shard_bytes(const extent_info& e) { return shard_bytes(e.count, e.block_bytes, e.data); }

/// A part of a block that lies in one data shard.
struct block_piece {
  uint32_t shard = 0;         // < k
  uint64_t shard_offset = 0;  // bytes from the start of the shard
  uint64_t block_offset = 0;  // bytes from the start of the block
  uint64_t bytes = 0;         // > 0
  bool operator==(const block_piece&) const = default;
};

/// Where the true bytes of block `ordinal` (< count) lie, in order.
std::vector<block_piece> pieces_of(const extent_info& e, uint32_t ordinal);

/// Where the true bytes of blocks [ordinal, ordinal + n) lie when they are read as one run of n x block_bytes (offsets
/// in `block_offset` count from the start of block `ordinal`; gaps after short blocks are left out at the end only).
std::vector<block_piece> pieces_of(const extent_info& e, uint32_t ordinal, uint32_t n);

}  // namespace troupe::kv
