// Names that the whole block store shares: hashes of blocks, ids of extents and targets, wall time as a parameter.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

#include "policies/ttl.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

using policies::traffic_class;

/// Key of a block: says which tokens, of whom, under which model stand before the block's end (hash/block_hash.hpp).
/// Both members are the key: equal bytes with another token count are another block. Default: no block (the parent of
/// block 0). Ordered by bytes, then tokens.
struct block_hash {
  std::array<uint8_t, 16> bytes{};
  uint32_t tokens = 0;  // from the start of the chain to the end of this block
  auto operator<=>(const block_hash&) const = default;
};

/// 32 hex digits, a slash, the token count: "0f…e1/256".
std::string to_string(const block_hash& h);

/// Lets CAF (or any visitor in CAF's style) serialise it.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, block_hash& h) {
  return f(h.bytes, h.tokens);
}

/// Names an extent for ever: `high` is random for each life of a writer, `low` counts its extents. {0, 0}: none.
struct extent_id {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const extent_id&) const = default;
};

/// 16 hex digits, a dash, 16 hex digits.
std::string to_string(const extent_id& id);

/// Lets CAF (or any visitor in CAF's style) serialise it.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, extent_id& id) {
  return f(id.high, id.low);
}

/// A storage target of the cluster, > 0, stable over restarts. 0: none (a shard that was given up).
using target_id = strong_id<struct target_id_tag, uint32_t>;

/// Wall time in whole seconds since 1970, as a parameter: expiries outlive processes, so a monotonic clock cannot name
/// them. Implementations are safe to call from any thread.
class unix_clock {
 public:
  virtual ~unix_clock() = default;
  virtual int64_t now() const = 0;
};

/// The machine's wall clock.
const unix_clock& system_unix_clock();

/// A wall clock that a test moves by hand. Not thread safe.
class manual_unix_clock final : public unix_clock {
 public:
  explicit manual_unix_clock(int64_t start = 0) : now_(start) {}
  int64_t now() const override { return now_; }
  void advance(int64_t seconds) { now_ += seconds; }
  void set(int64_t seconds) { now_ = seconds; }

 private:
  int64_t now_;
};

/// CRC32C (Castagnoli, reflected, initial and final value ~0: "123456789" gives e3069283), by ISA-L. `seed`: the result
/// over the bytes before, to go on from there.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace troupe::kv

/// Hashes as keys of unordered containers: the first eight bytes are random enough.
template <>
struct std::hash<troupe::kv::block_hash> {
  size_t operator()(const troupe::kv::block_hash& h) const noexcept {
    uint64_t v = 0;
    std::memcpy(&v, h.bytes.data(), sizeof v);
    return v ^ h.tokens;
  }
};

/// Extent ids as keys of unordered containers.
template <>
struct std::hash<troupe::kv::extent_id> {
  size_t operator()(const troupe::kv::extent_id& id) const noexcept { return id.high ^ (id.low * 0x9e3779b97f4a7c15u); }
};
