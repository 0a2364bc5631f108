// Footers with valid members, for tests of the store.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kv/extent/footer.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv::testing_support {

/// A footer that `encode` takes; its checksums are drawn.
inline shard_footer made_footer(const extent_info& e, uint64_t seed) {
  rng draw(seed, 78);
  shard_footer f;
  for (auto& b : f.device) b = static_cast<uint8_t>(draw.next());
  f.chunk = static_cast<uint32_t>(draw.below(1'000));
  f.first_run = static_cast<uint32_t>(1 + draw.below(60'000));
  f.payload_bytes = shard_bytes(e);
  f.runs = runs_of(f.payload_bytes);
  f.sequence = draw.next();
  f.shard = static_cast<uint32_t>(draw.below(e.shards()));
  f.crc_shift = crc_shift_of(e);
  for (uint64_t at = 0; at < f.payload_bytes; at += f.granule()) f.crcs.push_back(static_cast<uint32_t>(draw.next()));
  f.extent = e;
  return f;
}

/// The 2,048 bytes that a device gives for a footer.
inline std::vector<std::byte> as_read(const std::string& image) {
  std::vector<std::byte> bytes(footer_bytes);
  std::memcpy(bytes.data(), image.data(), image.size());
  return bytes;
}

}  // namespace troupe::kv::testing_support
