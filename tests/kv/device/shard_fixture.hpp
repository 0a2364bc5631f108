// Shards with known bytes, for tests of the shard store.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "kv/device/memory_disk.hpp"
#include "kv/device/shard_store.hpp"
#include "kv/index/memory_db.hpp"
#include "runtime/base/rng.hpp"
#include "tests/kv/extent/made_extent.hpp"

namespace troupe::kv::testing_support {

/// One shard of an extent drawn from `seed`. Payloads of a shard differ by seed and shard only, so a shard that is put
/// again has the same bytes, as in the store.
struct made_shard {
  extent_info extent;
  uint32_t shard = 0;
  std::vector<std::byte> payload;

  shard_key key() const { return {extent.id, shard}; }
  shard_put put() const { return {&extent, shard, payload, {}}; }
};

inline made_shard make_shard(uint64_t seed, uint32_t shard, uint32_t block_bytes, uint32_t count = 2) {
  made_shard s;
  s.extent = made_extent({.seed = seed, .count = count, .block_bytes = block_bytes, .data = 2, .parity = 1});
  s.shard = shard;
  s.payload.resize(shard_bytes(s.extent));
  rng draw(seed, 1'000 + shard);
  for (std::byte& b : s.payload) b = static_cast<std::byte>(draw.next());
  return s;
}

/// Options of a small device.
inline shard_store_options small_device(uint64_t chunks = 4) {
  shard_store_options o;
  o.chunk_bytes = uint64_t{1} << 20;
  o.capacity_bytes = chunks * o.chunk_bytes;
  o.new_device.fill(0xd1);
  return o;
}

/// Opens it or fails the test.
inline std::unique_ptr<shard_store> opened(disk& d, db& database, const shard_store_options& options = small_device()) {
  auto s = shard_store::open(d, database, options);
  EXPECT_TRUE(s) << s.error().message;
  return s ? std::move(*s) : nullptr;
}

/// The shard is there and all of its bytes are right.
inline ::testing::AssertionResult holds(shard_store& store, const made_shard& s) {
  std::vector<std::byte> out(s.payload.size());
  if (auto r = store.read(s.extent.id, s.shard, 0, out); !r) return ::testing::AssertionFailure() << r.error().message;
  if (out != s.payload) return ::testing::AssertionFailure() << "other bytes in shard " << s.shard;
  if (auto r = store.check(s.extent.id, s.shard); !r) return ::testing::AssertionFailure() << r.error().message;
  auto f = store.stat(s.extent.id, s.shard);
  if (!f || f->extent != s.extent) return ::testing::AssertionFailure() << "another extent in its record";
  return ::testing::AssertionSuccess();
}

/// All footers of the store by key.
inline std::map<shard_key, shard_footer> all_of(const shard_store& store) {
  std::map<shard_key, shard_footer> out;
  std::optional<shard_key> after;
  for (;;) {
    const auto page = store.list(after, 7);
    EXPECT_TRUE(page) << page.error().message;
    if (!page || page->empty()) return out;
    for (const shard_footer& f : *page) {
      after = shard_key{f.extent.id, f.shard};
      EXPECT_TRUE(out.emplace(*after, f).second);
    }
  }
}

/// The accounting equals what the records say.
inline void expect_exact(const shard_store& store) {
  uint64_t runs = 0, payload = 0, shards = 0;
  for (const auto& [k, f] : all_of(store)) {
    runs += f.runs;
    payload += f.payload_bytes;
    ++shards;
  }
  const shard_usage u = store.usage();
  EXPECT_EQ(u.allocated, runs * run_bytes);
  EXPECT_EQ(u.payload, payload);
  EXPECT_EQ(u.shards, shards);
  EXPECT_LE(u.allocated + u.largest_free, u.capacity);
}

}  // namespace troupe::kv::testing_support
