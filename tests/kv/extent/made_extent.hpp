// Extents with valid members, for tests of the store.
#pragma once

#include <vector>

#include "kv/extent/extent.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv::testing_support {

/// Shape of a made extent; everything else is drawn from `seed`.
struct made_shape {
  uint64_t seed = 1;
  uint64_t first = 0;
  uint32_t count = 2;
  uint32_t block_bytes = 1'000;
  uint32_t data = 2;
  uint32_t parity = 1;
  uint32_t block_tokens = 128;
};

/// An extent that passes `validate`. The block checksums are drawn too: they fit no data.
inline extent_info made_extent(const made_shape& s) {
  rng draw(s.seed, 77);
  const auto hash = [&](uint64_t tokens) {
    block_hash h;
    for (auto& b : h.bytes) b = static_cast<uint8_t>(draw.next());
    h.tokens = static_cast<uint32_t>(tokens);
    return h;
  };
  extent_info e;
  e.id = {draw.next() | 1, draw.next()};
  e.first = s.first;
  e.count = s.count;
  e.block_bytes = s.block_bytes;
  if (s.first > 0) e.parent = hash(s.first * s.block_tokens);
  for (uint32_t i = 0; i < s.count; ++i) {
    e.hashes.push_back(hash((s.first + i + 1) * s.block_tokens));
    e.block_crcs.push_back(static_cast<uint32_t>(draw.next()));
  }
  const uint64_t in_slot = s.first % slot_blocks;
  e.slot_first = in_slot == 0 ? e.hashes[0] : in_slot == 1 ? e.parent : hash((s.first - in_slot + 1) * s.block_tokens);
  e.data = static_cast<uint8_t>(s.data);
  e.parity = static_cast<uint8_t>(s.parity);
  for (uint32_t i = 0; i < s.data + s.parity; ++i) e.targets.push_back(target_id{i + 1});
  e.traffic = draw.below(2) ? traffic_class::chatbot : traffic_class::agent;
  e.written = 1'700'000'000;
  e.expiry = e.written + 3'600;
  e.epoch = storage_epoch{3};
  e.scheme = draw.next() | 1;
  return e;
}

}  // namespace troupe::kv::testing_support
