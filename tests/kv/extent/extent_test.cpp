#include "kv/extent/extent.hpp"

#include <gtest/gtest.h>

#include "tests/kv/extent/made_extent.hpp"

namespace troupe::kv {
namespace {

using testing_support::made_extent;

TEST(extent, full_extent_of_the_released_model_has_no_padding) {
  EXPECT_EQ(shard_bytes(16, 113'920, 10), 182'272u);
  EXPECT_EQ(shard_bytes(1, 113'920, 10), 11'392u);
  EXPECT_EQ(shard_bytes(16, 113'920, 2), 911'360u);
  EXPECT_EQ(shard_bytes(1, 1, 32), 64u);
}

TEST(extent, a_block_of_a_full_10_2_extent_lies_in_one_or_two_shards) {
  const extent_info e = made_extent({.count = 16, .block_bytes = 113'920, .data = 10, .parity = 2});
  for (uint32_t j = 0; j < 16; ++j) EXPECT_LE(pieces_of(e, j).size(), 2u) << j;
}

TEST(extent, pieces_cover_every_byte_of_a_block_once_and_in_order) {
  for (const uint32_t data : {1u, 2u, 4u, 10u, 32u})
    for (const uint32_t bytes : {1u, 63u, 64u, 1'000u, 113'920u})
      for (const uint32_t count : {1u, 3u, 16u}) {
        extent_info e = made_extent({.count = count, .block_bytes = bytes, .data = data, .parity = 1});
        for (uint32_t j = 0; j < count; ++j)
          for (uint32_t n = 1; n <= count - j; ++n) {
            uint64_t at = 0;
            for (const block_piece& p : pieces_of(e, j, n)) {
              ASSERT_EQ(p.block_offset, at);
              ASSERT_LT(p.shard, data);
              ASSERT_GT(p.bytes, 0u);
              ASSERT_LE(p.shard_offset + p.bytes, shard_bytes(e));
              ASSERT_EQ(p.shard * shard_bytes(e) + p.shard_offset, uint64_t{j} * bytes + at);
              at += p.bytes;
            }
            ASSERT_EQ(at, uint64_t{n} * bytes);
          }
      }
}

TEST(extent, a_short_block_is_read_to_its_true_length) {
  extent_info e = made_extent({.count = 3, .block_bytes = 100, .data = 2, .parity = 1});
  e.lengths = {100, 7, 50};
  ASSERT_TRUE(validate(e)) << validate(e).error().message;
  uint64_t bytes = 0;
  for (const block_piece& p : pieces_of(e, 1)) bytes += p.bytes;
  EXPECT_EQ(bytes, 7u);
}

TEST(extent, validate_names_what_is_wrong) {
  const extent_info good = made_extent({.first = 16, .count = 4});
  ASSERT_TRUE(validate(good)) << validate(good).error().message;
  const auto refused = [&](auto change, const char* word) {
    extent_info e = good;
    change(e);
    const auto r = validate(e);
    ASSERT_FALSE(r) << word;
    EXPECT_EQ(r.error().code, errc::invalid_argument);
    EXPECT_NE(r.error().message.find(word), std::string::npos) << r.error().message;
  };
  refused([](extent_info& e) { e.id = {}; }, "names no extent");
  refused([](extent_info& e) { e.count = 0; }, "count");
  refused([](extent_info& e) { e.count = 17; }, "count");
  refused([](extent_info& e) { e.first = 29; }, "cross the end");
  refused([](extent_info& e) { e.block_bytes = 0; }, "block_bytes");
  refused([](extent_info& e) { e.block_bytes = max_block_bytes + 1; }, "block_bytes");
  refused([](extent_info& e) { e.lengths = {1, 2}; }, "lengths");
  refused([](extent_info& e) { e.lengths = {1, 2, 0, 4}; }, "length 0");
  refused([](extent_info& e) { e.hashes.pop_back(); }, "hashes");
  refused([](extent_info& e) { e.block_crcs.pop_back(); }, "block checksums");
  refused([](extent_info& e) { e.hashes[2].tokens += 1; }, "tokens");
  refused([](extent_info& e) { e.hashes[0].tokens = 3; }, "tokens");
  refused([](extent_info& e) { e.parent.tokens += 1; }, "parent");
  refused([](extent_info& e) { e.first = 0; }, "parent");
  refused([](extent_info& e) { e.data = 0; }, "data shards");
  refused([](extent_info& e) { e.data = 33; }, "data shards");
  refused([](extent_info& e) { e.parity = 9; }, "parity shards");
  refused([](extent_info& e) { e.targets.pop_back(); }, "targets");
  refused([](extent_info& e) { e.traffic = static_cast<traffic_class>(2); }, "traffic");
  refused([](extent_info& e) { e.expiry = -1; }, "negative time");
}

TEST(extent, crc32c_follows_the_published_check_value) {
  const char text[] = "123456789";
  const auto bytes = std::as_bytes(std::span(text, 9));
  EXPECT_EQ(crc32c(bytes), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes.subspan(4), crc32c(bytes.first(4))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(extent, ids_and_hashes_print) {
  EXPECT_EQ(to_string(extent_id{1, 0xff}), "0000000000000001-00000000000000ff");
  block_hash h;
  h.bytes[0] = 0xab;
  h.tokens = 128;
  EXPECT_EQ(to_string(h), "ab000000000000000000000000000000/128");
}

}  // namespace
}  // namespace troupe::kv
