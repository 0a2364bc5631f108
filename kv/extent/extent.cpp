#include "kv/extent/extent.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kv {

result<void> validate(const extent_info& e) {
  const auto bad = [&](std::string what) {
    return fail(errc::invalid_argument, "extent {}: {}", to_string(e.id), what);
  };
  if (e.id == extent_id{}) return bad("the id {0, 0} names no extent");
  if (e.count < 1 || e.count > slot_blocks) return bad(fmt::format("count {} is not 1 to {}", e.count, slot_blocks));
  if (e.first > UINT32_MAX) return bad(fmt::format("first block {} is past the longest chain", e.first));
  if (e.first % slot_blocks + e.count > slot_blocks)
    return bad(
        fmt::format("blocks {} to {} cross the end of a slot of {}", e.first, e.first + e.count - 1, slot_blocks));
  if (e.block_bytes < 1 || e.block_bytes > max_block_bytes)
    return bad(fmt::format("block_bytes {} is not 1 to {}", e.block_bytes, max_block_bytes));
  if (!e.lengths.empty() && e.lengths.size() != e.count)
    return bad(fmt::format("{} lengths for {} blocks", e.lengths.size(), e.count));
  for (const uint32_t n : e.lengths)
    if (n < 1 || n > e.block_bytes) return bad(fmt::format("length {} is not 1 to block_bytes {}", n, e.block_bytes));
  if (e.hashes.size() != e.count) return bad(fmt::format("{} hashes for {} blocks", e.hashes.size(), e.count));
  if (e.block_crcs.size() != e.count)
    return bad(fmt::format("{} block checksums for {} blocks", e.block_crcs.size(), e.count));
  if (e.first == 0 && e.parent != block_hash{}) return bad("a parent before block 0");
  // Token counts say the block size: position x size, the same for every block and the parent.
  const uint64_t size = e.hashes[0].tokens / (e.first + 1);
  if (size == 0) return bad("the first hash counts fewer tokens than there are blocks");
  for (uint32_t i = 0; i < e.count; ++i)
    if (e.hashes[i].tokens != size * (e.first + i + 1))
      return bad(fmt::format("block {} counts {} tokens, expected {}", e.first + i, e.hashes[i].tokens,
                             size * (e.first + i + 1)));
  if (e.parent.tokens != size * e.first)
    return bad(fmt::format("the parent counts {} tokens, expected {}", e.parent.tokens, size * e.first));
  if (e.slot_first.tokens != size * (e.slot() * slot_blocks + 1))
    return bad(fmt::format("the first block of its slot counts {} tokens, expected {}", e.slot_first.tokens,
                           size * (e.slot() * slot_blocks + 1)));
  if (e.first % slot_blocks == 0 && e.slot_first != e.hashes[0]) return bad("slot_first is not the first hash");
  if (e.first % slot_blocks == 1 && e.slot_first != e.parent) return bad("slot_first is not the parent");
  if (e.data < 1 || e.data > max_data_shards)
    return bad(fmt::format("{} data shards, not 1 to {}", e.data, max_data_shards));
  if (e.parity > max_parity_shards)
    return bad(fmt::format("{} parity shards, more than {}", e.parity, max_parity_shards));
  if (e.targets.size() != e.shards()) return bad(fmt::format("{} targets for {} shards", e.targets.size(), e.shards()));
  if (e.traffic != traffic_class::agent && e.traffic != traffic_class::chatbot)
    return bad(fmt::format("unknown traffic class {}", static_cast<int>(e.traffic)));
  if (e.written < 0 || e.expiry < 0)
    return bad(fmt::format("negative time: written {}, expiry {}", e.written, e.expiry));
  return {};
}

uint64_t shard_bytes(uint32_t count, uint32_t block_bytes, uint32_t data_shards) {
  TROUPE_CHECK(data_shards > 0, "no data shards");
  const uint64_t total = uint64_t{count} * block_bytes;
  const uint64_t share = (total + data_shards - 1) / data_shards;
  return (share + shard_alignment - 1) / shard_alignment * shard_alignment;
}

std::vector<block_piece> pieces_of(const extent_info& e, uint32_t ordinal) { return pieces_of(e, ordinal, 1); }

std::vector<block_piece> pieces_of(const extent_info& e, uint32_t ordinal, uint32_t n) {
  TROUPE_CHECK(n > 0 && ordinal < e.count && n <= e.count - ordinal, "blocks {} + {} of {}", ordinal, n, e.count);
  const uint64_t size = shard_bytes(e);
  const uint64_t start = uint64_t{ordinal} * e.block_bytes;
  const uint64_t end = start + uint64_t{n - 1} * e.block_bytes + e.length(ordinal + n - 1);
  std::vector<block_piece> out;
  for (uint64_t at = start; at < end;) {
    const uint64_t shard = at / size, offset = at % size;
    const uint64_t bytes = std::min(size - offset, end - at);
    out.push_back({static_cast<uint32_t>(shard), offset, at - start, bytes});
    at += bytes;
  }
  return out;
}

}  // namespace troupe::kv
