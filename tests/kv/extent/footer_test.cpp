#include "kv/extent/footer.hpp"

#include <gtest/gtest.h>

#include "tests/kv/extent/made_extent.hpp"
#include "tests/kv/extent/made_footer.hpp"

namespace troupe::kv {
namespace {

using testing_support::as_read;
using testing_support::made_extent;
using testing_support::made_footer;

TEST(footer, takes_the_last_2_kib_of_the_last_run) {
  EXPECT_EQ(runs_of(1), 1u);
  EXPECT_EQ(runs_of(2'048), 1u);
  EXPECT_EQ(runs_of(2'049), 2u);
  EXPECT_EQ(runs_of(4'096), 2u);
  EXPECT_EQ(runs_of(4'097), 2u);
  EXPECT_EQ(runs_of(182'272), 45u);  // a full 10+2 extent of the released model: 1.1 % over the payload
  EXPECT_EQ(runs_of(11'392), 4u);    // its single block
  EXPECT_EQ(shard_buffer_bytes(182'272), 184'320u);
}

TEST(footer, round_trips_and_fits_for_every_shape) {
  for (const uint32_t data : {1u, 2u, 10u, 32u})
    for (const uint32_t parity : {0u, 2u, 8u})
      for (const uint32_t count : {1u, 16u})
        for (const uint32_t bytes : {1u, 5'000u, 113'920u, max_block_bytes})
          for (const bool lengths : {false, true}) {
            extent_info e =
                made_extent({.first = 32, .count = count, .block_bytes = bytes, .data = data, .parity = parity});
            if (lengths) e.lengths.assign(count, (bytes + 1) / 2);
            const shard_footer f = made_footer(e, 3);
            const std::string image = encode(f);
            ASSERT_LE(image.size(), footer_bytes);
            auto back = decode_footer(as_read(image));
            ASSERT_TRUE(back) << back.error().message;
            ASSERT_EQ(*back, f);
            ASSERT_EQ(encode(*back), image);
            // The record in the database: without the zeros.
            back = decode_footer(std::as_bytes(std::span(image)));
            ASSERT_TRUE(back);
            ASSERT_EQ(*back, f);
          }
}

TEST(footer, granules_are_runs_in_the_codes_that_are_used) {
  EXPECT_EQ(crc_shift_of(made_extent({.count = 16, .block_bytes = 113'920, .data = 10, .parity = 2})), 0);
  EXPECT_EQ(crc_shift_of(made_extent({.count = 16, .block_bytes = 113'920, .data = 2, .parity = 1})), 0);
  EXPECT_EQ(crc_shift_of(made_extent({.count = 16, .block_bytes = 113'920, .data = 1, .parity = 1})), 1);
}

TEST(footer, checksums_of_granules_are_those_of_the_bytes) {
  std::vector<std::byte> payload(10'000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 31);
  const std::span<const std::byte> all(payload);
  EXPECT_EQ(granule_crcs(all, 0), (std::vector<uint32_t>{crc32c(all.first(4'096)), crc32c(all.subspan(4'096, 4'096)),
                                                         crc32c(all.subspan(8'192))}));
  EXPECT_EQ(granule_crcs(all, 1), (std::vector<uint32_t>{crc32c(all.first(8'192)), crc32c(all.subspan(8'192))}));
}

TEST(footer, one_flipped_bit_anywhere_is_corrupt) {
  const std::string image =
      encode(made_footer(made_extent({.count = 16, .block_bytes = 113'920, .data = 10, .parity = 2}), 1));
  const auto whole = as_read(image);
  for (size_t at = 0; at < footer_bytes; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      auto bytes = whole;
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      const auto r = decode_footer(bytes);
      ASSERT_FALSE(r) << "byte " << at << " bit " << bit;
      ASSERT_EQ(r.error().code, at < 8 ? errc::not_found : errc::corrupt);
    }
}

TEST(footer, every_truncation_is_refused) {
  const std::string image = encode(made_footer(made_extent({}), 1));
  for (size_t n = 0; n < image.size(); ++n) EXPECT_FALSE(decode_footer(std::as_bytes(std::span(image).first(n)))) << n;
  EXPECT_EQ(decode_footer({}).error().code, errc::not_found);
  EXPECT_EQ(decode_footer(std::vector<std::byte>(footer_bytes)).error().code, errc::not_found);
  auto longer = as_read(image);
  longer.push_back({});
  EXPECT_FALSE(decode_footer(longer));
}

TEST(chunk_header, round_trips_and_every_flipped_byte_is_corrupt) {
  chunk_header h;
  h.device.fill(7);
  h.number = 3;
  h.bytes = 1 << 20;
  std::array<std::byte, run_bytes> bytes;
  encode(h, bytes);
  auto back = decode_chunk_header(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, h);
  for (size_t at = 0; at < run_bytes; ++at) {
    auto copy = bytes;
    copy[at] ^= std::byte{0x10};
    const auto r = decode_chunk_header(copy);
    ASSERT_FALSE(r) << at;
    EXPECT_EQ(r.error().code, errc::corrupt);
  }
}

}  // namespace
}  // namespace troupe::kv
