// Writes the shards of one extent: gathers the blocks, encodes, and puts one shard on each of k + m targets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/device/aligned_buffer.hpp"
#include "kv/erasure/codec.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"

namespace troupe::kv {

/// All shards of an extent in one piece of memory, each with room for its footer.
struct shard_buffers {
  aligned_buffer memory;
  uint64_t stride = 0;   // from shard to shard; whole runs
  uint64_t payload = 0;  // bytes of a shard
  std::span<std::byte> room(uint32_t shard) const { return {memory.data() + shard * stride, stride}; }
  std::span<std::byte> bytes(uint32_t shard) const { return {memory.data() + shard * stride, payload}; }
};

/// Makes memory of at least that many bytes; any thread.
using memory_source = std::function<aligned_buffer(size_t)>;

/// Memory of extents that have been written, kept for the next ones: at most `keep` pieces. Thread safe.
class extent_memory {
 public:
  /// `source`: where memory comes from; null: the heap.
  explicit extent_memory(size_t keep, memory_source source = nullptr) : keep_(keep), source_(std::move(source)) {}
  /// At least `bytes`; contents are unspecified.
  aligned_buffer take(size_t bytes);
  void give_back(aligned_buffer b);

 private:
  const size_t keep_;
  const memory_source source_;
  std::mutex mutex_;
  std::vector<aligned_buffer> free_;  // by mutex_
};

/// Copies the blocks (each true length long) to their places in the data shards, the only copy on the way to the disk,
/// fills in info.block_crcs and encodes the parity. info.count, block_bytes, lengths, data and parity are set. Errors:
/// invalid_argument.
result<shard_buffers> make_shards(extent_info& info, std::span<const std::span<const std::byte>> blocks,
                                  extent_memory& pool);

/// Puts every shard on its target. A target that cannot take its shard is replaced by another one that holds none of
/// this extent, as long as there is one. Reply: the info as written, with the targets that it lies on. On an error what
/// had been written is removed again where possible; the error is that of the last target that could not. All on the
/// executor; the buffers live until the reply.
void write_shards(extent_info info, std::shared_ptr<const shard_buffers> shards, const members& who, executor& home,
                  std::function<void(result<extent_info>)> done);

/// Frees all shards of an extent. The reply comes when all targets have answered; what they could not do is left to
/// scrub.
void remove_shards(const extent_info& info, const members& who, executor& home, std::function<void()> done);

}  // namespace troupe::kv
