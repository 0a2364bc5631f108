// What the store in a directory is: its layout file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/hash/block_hash.hpp"
#include "kv/types.hpp"
#include "runtime/base/ids.hpp"

namespace troupe::kv {

inline constexpr uint32_t max_targets = 255;     // of one store at a time
inline constexpr uint32_t max_target_id = 9999;  // folders have four digits; numbers are not used twice

/// A target of the store.
struct store_member {
  target_id id;
  bool draining = false;  // gets no new shards; scrub moves those that it has
  bool operator==(const store_member&) const = default;
};

/// What a store is. Code, scheme and sizes are written once; the members change by directory_members.hpp, and every
/// change has a storage epoch of its own.
struct store_layout {
  uint32_t data = 2, parity = 1;  // k, m
  uint32_t targets = 3;           // number of members, at least k + m
  hash_scheme scheme;
  uint64_t chunk_bytes = 64ull << 20;
  uint64_t capacity_bytes = 64ull << 30;  // of each target, at most; less where the file system has less
  storage_epoch epoch{1};
  std::vector<store_member> changed;  // all members, ascending; empty: 1 to `targets`, as the store was made
  uint32_t next_target = 0;           // number of the next new member; 0: targets + 1, as the store was made

  /// All members, ascending.
  std::vector<store_member> members() const;
  /// Whether `id` is one.
  bool has(target_id id) const;
  /// Members that get new shards.
  uint32_t active() const;
};

/// Text of a layout file and back. A store whose members never changed is written as version 1, which earlier programs
/// read, others as version 2. Errors: corrupt, unsupported.
std::string print_layout(const store_layout& l);
result<store_layout> parse_layout(const std::string& text, const std::string& file);

}  // namespace troupe::kv
