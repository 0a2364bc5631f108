// Keys and values of a storage target in the database.
//
//   shard   target (be32) extent id high (be64) low (be64) shard (u8)  -> the shard's footer (extent/footer.hpp)
//   meta    "target/" target (be32)                                    -> device_record
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kv/device/shard_store.hpp"

namespace troupe::kv {

/// Key in `shard`. `prefix`: what all keys of a target start with.
std::string shard_record_key(target_id target, const shard_key& k);
std::string shard_record_prefix(target_id target);
std::optional<shard_key> parse_shard_record_key(std::string_view key);

/// What the database knows of the device as a whole.
struct device_record {
  device_uuid device{};
  uint64_t sequence_ceiling = 0;  // no write so far had this number or a higher one
  bool rebuilding = false;        // the shard records are being made again: they are not complete
  bool operator==(const device_record&) const = default;
};

/// Key in `meta`.
std::string device_record_key(target_id target);

/// Version byte, members, CRC32C. decode: corrupt for anything that `encode` did not write.
std::string encode(const device_record& r);
result<device_record> decode_device_record(std::string_view value);

}  // namespace troupe::kv
