#include "kv/types.hpp"

#include <fmt/format.h>
#include <isa-l/crc.h>

#include <algorithm>

#include "runtime/base/clock.hpp"

namespace troupe::kv {
namespace {

class machine_unix_clock final : public unix_clock {
 public:
  int64_t now() const override { return wall_seconds(); }
};

}  // namespace

std::string to_string(const block_hash& h) {
  std::string out;
  for (const uint8_t b : h.bytes) out += fmt::format("{:02x}", b);
  return out + fmt::format("/{}", h.tokens);
}

std::string to_string(const extent_id& id) { return fmt::format("{:016x}-{:016x}", id.high, id.low); }

const unix_clock& system_unix_clock() {
  static const machine_unix_clock clock;
  return clock;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  // ISA-L takes an int length and a non-const pointer that it only reads.
  uint32_t crc = ~seed;
  constexpr size_t step = size_t{1} << 30;
  for (size_t at = 0; at < bytes.size(); at += step) {
    const size_t n = std::min(step, bytes.size() - at);
    crc = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data() + at)), static_cast<int>(n),
                      crc);
  }
  return ~crc;
}

}  // namespace troupe::kv
