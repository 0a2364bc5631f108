// Mutated footers and chunk headers: whatever the bytes, decoding neither crashes nor accepts what `encode` did not
// write. TROUPE_LONG=1 runs a minute.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kv/extent/footer.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"
#include "tests/kv/extent/made_extent.hpp"
#include "tests/kv/extent/made_footer.hpp"

namespace troupe::kv {
namespace {

using testing_support::as_read;
using testing_support::made_extent;
using testing_support::made_footer;

std::chrono::seconds budget() { return std::chrono::seconds(std::getenv("TROUPE_LONG") ? 30 : 1); }

shard_footer drawn_footer(rng& draw) {
  extent_info e = made_extent({.seed = draw.next(),
                               .first = draw.below(1'000) * slot_blocks,
                               .count = static_cast<uint32_t>(1 + draw.below(16)),
                               .block_bytes = static_cast<uint32_t>(1 + draw.below(200'000)),
                               .data = static_cast<uint32_t>(1 + draw.below(32)),
                               .parity = static_cast<uint32_t>(draw.below(9)),
                               .block_tokens = static_cast<uint32_t>(1 + draw.below(256))});
  if (draw.below(2))
    for (uint32_t i = 0; i < e.count; ++i) e.lengths.push_back(static_cast<uint32_t>(1 + draw.below(e.block_bytes)));
  return made_footer(e, draw.next());
}

// One to four changes of the kinds that disks and bugs make.
void mutate(std::vector<std::byte>& bytes, size_t used, rng& draw) {
  const uint64_t changes = 1 + draw.below(4);
  for (uint64_t i = 0; i < changes; ++i) {
    const size_t at = draw.below(draw.below(4) ? used : bytes.size());
    const size_t n = std::min<size_t>(bytes.size() - at, 1 + draw.below(16));
    switch (draw.below(5)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1 << draw.below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(draw.next());
        break;
      case 2:
        for (size_t b = 0; b < n; ++b) bytes[at + b] = static_cast<std::byte>(draw.below(2) ? 0xff : 0);
        break;
      case 3:
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(draw.below(bytes.size() - n + 1)), n,
                    bytes.begin() + static_cast<ptrdiff_t>(at));
        break;
      case 4:
        std::fill(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end(), std::byte{0});
        break;  // torn
    }
  }
}

// Makes the checksum right again, so that the checks behind it are reached.
void seal(std::vector<std::byte>& bytes) {
  uint16_t length = 0;
  std::memcpy(&length, bytes.data() + 10, sizeof length);
  if (length < 12 || length + sizeof(uint32_t) > bytes.size()) return;
  const uint32_t crc = crc32c(std::span(bytes).first(length));
  std::memcpy(bytes.data() + length, &crc, sizeof crc);
  std::fill(bytes.begin() + length + sizeof crc, bytes.end(), std::byte{0});
}

TEST(footer_fuzz, decoding_takes_only_what_encode_writes) {
  const uint64_t seed = std::getenv("TROUPE_SEED") ? std::strtoull(std::getenv("TROUPE_SEED"), nullptr, 0) : 20'261'129;
  std::printf("seed %llu (TROUPE_SEED changes it)\n", static_cast<unsigned long long>(seed));
  rng draw(seed);
  uint64_t rounds = 0, accepted = 0, sealed_refused = 0;
  const auto end = steady_clock().now() + budget();
  while (rounds < 1'000 || steady_clock().now() < end) {
    const std::string image = encode(drawn_footer(draw));
    for (int i = 0; i < 50; ++i, ++rounds) {
      auto bytes = as_read(image);
      mutate(bytes, image.size(), draw);
      const bool resealed = draw.below(4) != 0;
      if (resealed) seal(bytes);
      const auto r = decode_footer(bytes);
      if (!r) {
        ASSERT_TRUE(r.error().code == errc::corrupt || r.error().code == errc::not_found);
        sealed_refused += resealed;
        continue;
      }
      ++accepted;
      // What was taken is a footer in its own right: it says the same when written again.
      ASSERT_EQ(as_read(encode(*r)), bytes) << "seed " << seed << " round " << rounds;
    }
  }
  std::printf("%llu rounds, %llu accepted, %llu sealed ones refused\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(sealed_refused));
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(sealed_refused, 0u);
}

TEST(footer_fuzz, chunk_headers_and_noise) {
  const uint64_t seed = 20'261'130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  rng draw(seed);
  uint64_t rounds = 0;
  const auto end = steady_clock().now() + budget();
  while (rounds < 1'000 || steady_clock().now() < end) {
    ++rounds;
    chunk_header h;
    h.number = static_cast<uint32_t>(draw.next());
    h.bytes = (2 + draw.below(1'000)) * run_bytes;
    std::vector<std::byte> bytes(run_bytes);
    const std::span<std::byte, run_bytes> whole(bytes.data(), run_bytes);
    encode(h, whole);
    const auto before = bytes;
    mutate(bytes, 44, draw);
    const auto r = decode_chunk_header(whole);
    ASSERT_EQ(r.has_value(), bytes == before) << "seed " << seed << " round " << rounds;
    for (std::byte& b : bytes) b = static_cast<std::byte>(draw.next());
    ASSERT_FALSE(decode_chunk_header(whole));
    ASSERT_FALSE(decode_footer(std::span(bytes).first(draw.below(run_bytes + 1))));
  }
}

}  // namespace
}  // namespace troupe::kv
