#include "kv/erasure/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <thread>

#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

using shard = std::vector<std::byte>;

constexpr uint64_t seed = 2024;

std::vector<shard> drawn(uint32_t shards, size_t bytes, uint64_t stream) {
  rng draw(seed, stream);
  std::vector<shard> out(shards, shard(bytes));
  for (shard& s : out)
    for (std::byte& b : s) b = static_cast<std::byte>(draw.next());
  return out;
}

std::vector<const std::byte*> readable(const std::vector<shard>& s) {
  std::vector<const std::byte*> out;
  for (const shard& x : s) out.push_back(x.data());
  return out;
}

std::vector<std::byte*> writable(std::vector<shard>& s) {
  std::vector<std::byte*> out;
  for (shard& x : s) out.push_back(x.data());
  return out;
}

// k data shards, then m parity shards.
std::vector<shard> encoded(const codec& c, size_t bytes, uint64_t stream) {
  auto data = drawn(c.data(), bytes, stream);
  std::vector<shard> parity(c.parity(), shard(bytes));
  const auto r = c.encode(readable(data), writable(parity), bytes);
  EXPECT_TRUE(r) << r.error().message;
  data.insert(data.end(), parity.begin(), parity.end());
  return data;
}

std::shared_ptr<const codec> made(uint32_t k, uint32_t m) {
  auto r = codec::make(k, m);
  EXPECT_TRUE(r) << r.error().message;
  return *r;
}

// Multiplication in GF(2^8) by the polynomial x^8 + x^4 + x^3 + x^2 + 1, the slow way.
uint8_t times(uint8_t a, uint8_t b) {
  unsigned out = 0, x = a;
  for (; b; b >>= 1, x <<= 1) {
    if (x & 0x100) x ^= 0x11d;
    if (b & 1) out ^= x;
  }
  return static_cast<uint8_t>(out);
}

uint8_t inverse(uint8_t a) {
  for (unsigned b = 1; b < 256; ++b)
    if (times(a, static_cast<uint8_t>(b)) == 1) return static_cast<uint8_t>(b);
  return 0;
}

// What is on disks must stay readable: parity i is the sum of inverse((k + i) xor j) x data j.
TEST(codec, parity_is_the_cauchy_code_of_the_definition) {
  for (const auto& [k, m] : {std::pair{1u, 1u}, {2u, 1u}, {4u, 2u}, {10u, 2u}, {32u, 8u}}) {
    const auto c = made(k, m);
    const auto all = encoded(*c, 97, k);
    for (uint32_t i = 0; i < m; ++i)
      for (size_t at = 0; at < 97; ++at) {
        uint8_t sum = 0;
        for (uint32_t j = 0; j < k; ++j)
          sum ^= times(inverse(static_cast<uint8_t>((k + i) ^ j)), static_cast<uint8_t>(all[j][at]));
        ASSERT_EQ(static_cast<uint8_t>(all[k + i][at]), sum) << k << "+" << m << " parity " << i << " byte " << at;
      }
  }
}

// Rebuilds the shards of `lost` from survivors chosen by `pick` and compares.
void rebuild(const codec& c, const std::vector<shard>& all, uint64_t lost, rng& pick, size_t offset, size_t bytes) {
  std::vector<uint32_t> have, want;
  for (uint32_t s = 0; s < all.size(); ++s) (lost >> s & 1 ? want : have).push_back(s);
  while (have.size() > c.data()) have.erase(have.begin() + static_cast<ptrdiff_t>(pick.below(have.size())));
  std::rotate(want.begin(), want.begin() + static_cast<ptrdiff_t>(want.empty() ? 0 : pick.below(want.size())),
              want.end());
  std::vector<const std::byte*> sources;
  for (const uint32_t s : have) sources.push_back(all[s].data() + offset);
  std::vector<shard> out(want.size(), shard(bytes));
  const auto r = c.reconstruct(have, sources, want, writable(out), bytes);
  ASSERT_TRUE(r) << r.error().message;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(std::equal(out[i].begin(), out[i].end(), all[want[i]].begin() + static_cast<ptrdiff_t>(offset)))
        << "shard " << want[i] << " of loss " << std::hex << lost;
}

TEST(codec, every_loss_pattern_is_rebuilt) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  rng pick(seed, 99);
  for (const auto& [k, m] : {std::pair{2u, 1u}, {4u, 2u}, {10u, 2u}, {3u, 3u}}) {
    const auto c = made(k, m);
    const auto all = encoded(*c, 1'000, 1);
    for (uint64_t lost = 1; lost < uint64_t{1} << (k + m); ++lost) {
      if (static_cast<uint32_t>(std::popcount(lost)) > m) continue;
      for (int i = 0; i < 3; ++i) rebuild(*c, all, lost, pick, 0, 1'000);
      // Only a byte range of a shard.
      const size_t offset = pick.below(1'000), bytes = pick.below(1'001 - offset);
      rebuild(*c, all, lost, pick, offset, bytes);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(codec, random_patterns_of_the_widest_codes_are_rebuilt) {
  rng pick(seed, 100);
  for (const auto& [k, m] : {std::pair{32u, 8u}, {1u, 8u}, {32u, 1u}, {17u, 5u}}) {
    const auto c = made(k, m);
    for (const size_t bytes : {size_t{1}, size_t{15}, size_t{64}, size_t{4'097}}) {
      const auto all = encoded(*c, bytes, bytes);
      for (int i = 0; i < 100; ++i) {
        uint64_t lost = 0;
        while (static_cast<uint32_t>(std::popcount(lost)) < m) lost |= uint64_t{1} << pick.below(k + m);
        rebuild(*c, all, lost, pick, 0, bytes);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_LE(c->stats().entries, 64u);
  }
}

TEST(codec, tables_of_a_loss_pattern_are_made_once_and_bounded) {
  const auto c = made(10, 2);
  const auto all = encoded(*c, 64, 1);
  rng pick(seed, 101);
  for (int i = 0; i < 5; ++i) {
    std::vector<shard> out(2, shard(64));
    std::vector<uint32_t> have(10);
    std::iota(have.begin(), have.end(), 2);
    const auto p = readable(all);
    ASSERT_TRUE(c->reconstruct(have, std::span(p).subspan(2), std::vector<uint32_t>{1, 0}, writable(out), 64));
    EXPECT_EQ(out[0], all[1]);
    EXPECT_EQ(out[1], all[0]);
  }
  EXPECT_EQ(c->stats().misses, 1u);
  EXPECT_EQ(c->stats().hits, 4u);
  for (uint64_t a = 0; a < 12; ++a)
    for (uint64_t b = 0; b < 12; ++b) rebuild(*c, all, uint64_t{1} << a | uint64_t{1} << b, pick, 0, 64);
  EXPECT_EQ(c->stats().entries, 64u);
}

TEST(codec, no_parity_is_a_code_that_rebuilds_nothing) {
  const auto c = made(3, 0);
  const auto all = encoded(*c, 64, 1);
  EXPECT_TRUE(c->encode(readable(all), {}, 64));
  const std::vector<uint32_t> have{0, 1};
  std::vector<shard> out(1, shard(64));
  const auto p = readable(all);
  const auto r = c->reconstruct(have, std::span(p).first(2), std::vector<uint32_t>{2}, writable(out), 64);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::unavailable);
}

TEST(codec, bad_input_is_refused_and_nothing_is_written) {
  for (const auto& [k, m] : {std::pair{0u, 1u}, {33u, 1u}, {2u, 9u}, {1'000'000u, 0u}}) {
    EXPECT_EQ(codec::make(k, m).error().code, errc::invalid_argument);
    EXPECT_EQ(codec::get(k, m).error().code, errc::invalid_argument);
  }
  const auto c = made(2, 2);
  const auto all = encoded(*c, 64, 1);
  const auto p = readable(all);
  std::vector<shard> out(3, shard(64));
  auto w = writable(out);
  const auto code = [&](std::vector<uint32_t> have, size_t sources, std::vector<uint32_t> want, size_t outs) {
    const auto r = c->reconstruct(have, std::span(p).first(sources), want, std::span(w).first(outs), 64);
    return r ? errc{} : r.error().code;
  };
  EXPECT_EQ(code({0}, 1, {1}, 1), errc::unavailable);
  EXPECT_EQ(code({0, 1, 2}, 3, {3}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 1}, 1, {2}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 1}, 2, {2}, 2), errc::invalid_argument);
  EXPECT_EQ(code({1, 0}, 2, {2}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 0}, 2, {2}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 4}, 2, {2}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 1}, 2, {1}, 1), errc::invalid_argument);
  EXPECT_EQ(code({0, 1}, 2, {2, 2}, 2), errc::invalid_argument);
  EXPECT_EQ(code({0, 1}, 2, {70}, 1), errc::invalid_argument);
  EXPECT_EQ(out, (std::vector<shard>(3, shard(64))));
  EXPECT_EQ(code({0, 1}, 2, {}, 0), errc{});
  EXPECT_FALSE(c->encode(std::span(p).first(1), std::span(w).first(2), 64));
  EXPECT_FALSE(c->encode(std::span(p).first(2), std::span(w).first(1), 64));
}

TEST(codec, threads_share_one_codec) {
  const auto c = codec::get(4, 2);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->get(), codec::get(4, 2)->get());
  const auto all = encoded(**c, 500, 1);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      rng pick(seed, 200 + t);
      for (int i = 0; i < 300; ++i)
        rebuild(**c, all, uint64_t{1} << pick.below(6) | uint64_t{1} << pick.below(6), pick, 0, 500);
    });
  for (auto& t : threads) t.join();
}

}  // namespace
}  // namespace troupe::kv
