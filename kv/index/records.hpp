// Values of the index families: a version byte, CRC32C (little-endian) of key and payload, then the payload in msgpack.
// The checksum covers the key, so a value under the wrong key is found too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kv/extent/extent.hpp"
#include "kv/index/block_index.hpp"
#include "kv/index/keys.hpp"

namespace troupe::kv {

inline constexpr uint8_t record_version = 1;

/// Value in `block`.
struct block_record {
  block_place place;
  int64_t expiry_s = 0;  // of the extent when this was written: a lower bound, for the sweep
  bool operator==(const block_record&) const = default;
};

/// Value in `extent`. info.expiry is what the shards say; expiry_s is what counts.
struct extent_record {
  extent_info info;
  int64_t expiry_s = 0;
  uint32_t owned = 0;  // bit j: block j of the extent is the winner of its hash
  bool operator==(const extent_record&) const = default;
};

/// Value in `expiry`.
struct expiry_record {
  uint32_t blocks = 0;  // owned ones
  uint64_t bytes = 0;   // count * block_bytes
  bool operator==(const expiry_record&) const = default;
};

/// CRC32C of the key and of the value (of at least 5 bytes) without its checksum.
uint32_t record_checksum(std::string_view key, std::string_view value);

/// Encodes the value of `key`.
std::string encode(std::string_view key, const block_record& r);
std::string encode(std::string_view key, const extent_record& r);
std::string encode(std::string_view key, const expiry_record& r);

/// Reads the value of `key` back. corrupt for whatever `encode` did not write for this key (flipped, cut, another
/// version, another key, members that make no sense); unsupported for a newer version whose checksum holds.
result<block_record> decode_block(std::string_view key, std::string_view value);
result<extent_record> decode_extent(std::string_view key, std::string_view value);
result<expiry_record> decode_expiry(std::string_view key, std::string_view value);

/// What the expiry family says of an extent.
expiry_entry expiry_entry_of(const extent_record& r);
expiry_record expiry_record_of(const extent_record& r);

}  // namespace troupe::kv
