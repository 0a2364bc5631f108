// Keys of the index families. The layouts are on disk: add a new family or version rather than change one.
//
//   block   hash (16) tokens (be32)                                       -> extent id, ordinal, expiry when written
//   extent  high (be64) low (be64)                                        -> extent_info, expiry, blocks it still owns
//   expiry  expiry (be64) ~first block number (be32) extent id (16)       -> blocks, bytes
//
// So a walk of `expiry` meets the earliest expiry first and, within one step, the deepest extent of a chain before its
// ancestors. The families `shard` and `meta` belong to the storage target (kv/device).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/types.hpp"

namespace troupe::kv {

inline constexpr size_t block_key_size = 20, extent_key_size = 16, expiry_key_size = 28;

/// Key in `block`: bytes and token count, so that a wrong count never matches.
std::string block_key(const block_hash& hash);
std::optional<block_hash> parse_block_key(std::string_view key);

/// Key in `extent`.
std::string extent_key(const extent_id& id);
std::optional<extent_id> parse_extent_key(std::string_view key);

/// Key in `expiry`, taken apart.
struct expiry_entry {
  int64_t expiry_s = 0;  // >= 0
  uint32_t first = 0;    // number of the extent's first block in its chain
  extent_id id;
  bool operator==(const expiry_entry&) const = default;
};
std::string expiry_key(const expiry_entry& e);
std::optional<expiry_entry> parse_expiry_key(std::string_view key);

/// First key in `expiry` of anything that has not expired at `now_s` (expired means expiry < now).
std::string expiry_bound(int64_t now_s);

}  // namespace troupe::kv
