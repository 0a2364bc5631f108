#include "kv/device/shard_record.hpp"

#include <cstring>

namespace troupe::kv {
namespace {

constexpr size_t key_bytes = 4 + 8 + 8 + 1;
constexpr size_t device_bytes = 1 + 16 + 8 + 1;
constexpr char device_version = 1;

// Big-endian, so that keys sort as numbers.
template <class T>
void put(std::string& to, T v) {
  for (int shift = 8 * (sizeof v - 1); shift >= 0; shift -= 8) to.push_back(static_cast<char>(v >> shift));
}

template <class T>
T get(std::string_view from, size_t at) {
  T v = 0;
  for (size_t i = 0; i < sizeof v; ++i) v = static_cast<T>(v << 8 | static_cast<uint8_t>(from[at + i]));
  return v;
}

}  // namespace

std::string shard_record_prefix(target_id target) {
  std::string key;
  put(key, target.value);
  return key;
}

std::string shard_record_key(target_id target, const shard_key& k) {
  std::string key = shard_record_prefix(target);
  put(key, k.extent.high);
  put(key, k.extent.low);
  key.push_back(static_cast<char>(k.shard));
  return key;
}

std::optional<shard_key> parse_shard_record_key(std::string_view key) {
  if (key.size() != key_bytes) return std::nullopt;
  return shard_key{{get<uint64_t>(key, 4), get<uint64_t>(key, 12)}, static_cast<uint8_t>(key[20])};
}

std::string device_record_key(target_id target) {
  std::string key = "target/";
  put(key, target.value);
  return key;
}

std::string encode(const device_record& r) {
  std::string out(1, device_version);
  out.append(reinterpret_cast<const char*>(r.device.data()), r.device.size());
  put(out, r.sequence_ceiling);
  out.push_back(r.rebuilding ? 1 : 0);
  put(out, crc32c(std::as_bytes(std::span(out))));
  return out;
}

result<device_record> decode_device_record(std::string_view value) {
  if (value.size() != device_bytes + 4 || value[0] != device_version ||
      get<uint32_t>(value, device_bytes) != crc32c(std::as_bytes(std::span(value.substr(0, device_bytes)))))
    return fail(errc::corrupt, "the record of the device does not hold");
  device_record r;
  std::memcpy(r.device.data(), value.data() + 1, r.device.size());
  r.sequence_ceiling = get<uint64_t>(value, 17);
  r.rebuilding = value[25] != 0;
  return r;
}

}  // namespace troupe::kv
