// Reads blocks of one extent from its shards: straight from the data shards, or, where those are gone, damaged or late,
// through the code from any k others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/erasure/codec.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"

namespace troupe::kv {

/// One block that is wanted. `into` is as long as the block's true bytes.
struct wanted_block {
  uint32_t ordinal = 0;
  std::span<std::byte> into;
};

/// What a read of an extent needs.
struct extent_read_request {
  std::shared_ptr<const extent_info> info;
  std::vector<wanted_block> wanted;         // ascending by ordinal
  nanoseconds hedge_after{0};               // 0: never
  std::function<bool(uint64_t)> may_hedge;  // asked once with the bytes that a hedge would read; null: yes
};

/// How it went. `good[i]`: wanted[i] is whole and holds its checksum; other buffers hold nothing that may be used.
struct extent_read_reply {
  std::vector<bool> good;
  std::optional<error> trouble;      // set when one is not good: unavailable (too many shards gone), corrupt, cancelled
  std::vector<uint32_t> bad_shards;  // that did not answer or did not hold; worth a repair
  uint32_t decoded = 0;              // shards whose bytes came through the code
  bool hedged = false;
};

/// One read under way; lives until its reply. All on the executor.
///
///   start: reads of the wanted data shards --all there--> checksums --> reply
///            | one fails, or all of `hedge_after` passes
///            v
///          decoding: k other shards over the hull of what is missing --all there--> code --> checksums --> reply
///            | one of those fails: another takes its place, or, when none is left, reply without those blocks
///
/// Whoever is first wins; what comes later writes nothing. Buffers are never written after the reply.
class extent_read : public std::enable_shared_from_this<extent_read> {
 public:
  /// Reads and calls `done` exactly once, later.
  static std::shared_ptr<extent_read> start(extent_read_request request, const members& who, executor& home,
                                            std::function<void(extent_read_reply)> done);

  /// Ends the read now: the reply, with `cancelled` for what is not there yet, comes before this returns unless it came
  /// before.
  void cancel();

 private:
  // Bytes of a shard that lie, or will lie, at `at`.
  enum class progress : uint8_t { idle, reading, there };
  struct segment {
    uint64_t bytes = 0;
    std::byte* at = nullptr;
    bool wanted = false;  // in the caller's memory; otherwise in scratch
    progress state = progress::idle;
  };
  struct shard_state {
    std::map<uint64_t, segment> segments;  // by offset; disjoint
    std::vector<std::shared_ptr<read_guard>> guards;
    bool failed = false;
    bool late = false;    // to be decoded although it may still come
    bool source = false;  // one of the k that are decoded from
  };

  extent_read(extent_read_request request, const members& who, executor& home,
              std::function<void(extent_read_reply)> done);
  void begin();
  void read_idle(uint32_t shard);
  void arrived(uint32_t shard, const std::vector<uint64_t>& offsets, const result<void>& r);
  void on_hedge_time();
  void advance();
  std::vector<uint32_t> to_decode();
  bool choose_sources(const std::vector<uint32_t>& lost);
  void cover(uint32_t shard);
  bool covered() const;
  void decode(const std::vector<uint32_t>& lost);
  bool missing(uint32_t shard) const;  // wanted bytes of it are not there
  uint64_t hedge_bytes() const;
  void finish(std::optional<error> trouble);

  const extent_read_request request_;
  const members& who_;
  executor& home_;
  std::function<void(extent_read_reply)> done_;
  std::vector<shard_state> shards_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
  uint64_t from_ = 0, to_ = 0;  // hull of what is decoded; empty: nothing is
  bool finished_ = false;
  extent_read_reply out_;
  std::optional<error> last_error_;
};

}  // namespace troupe::kv
