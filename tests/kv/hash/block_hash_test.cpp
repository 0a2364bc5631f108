#include "kv/hash/block_hash.hpp"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/rng.hpp"

// The recorded hashes were computed with Python's hashlib, not with this code:
//   f = lambda b: struct.pack('<I', len(b)) + b
//   parent = sha256(f(fingerprint) + f(salt) + f(parent) + f(ids as u32 LE) + f(u32 size) + f(u32 (i + 1) * size))[:16]

namespace troupe::kv {
namespace {

hash_scheme scheme(uint32_t block_tokens, bool counted_fingerprint = true) {
  hash_scheme s;
  s.block_tokens = block_tokens;
  if (counted_fingerprint)
    for (size_t i = 0; i < s.fingerprint.size(); ++i) s.fingerprint[i] = static_cast<uint8_t>(i);
  return s;
}

std::vector<uint32_t> prompt(size_t n) {
  std::vector<uint32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<uint32_t>(i * 7919 % 129'280);
  return ids;
}

std::vector<block_hash> chain(const hash_scheme& s, std::string_view salt, std::span<const uint32_t> ids) {
  auto r = hash_chain(s, salt, ids);
  EXPECT_TRUE(r) << r.error().message;
  return r ? *r : std::vector<block_hash>{};
}

std::vector<std::string> printed(const std::vector<block_hash>& hashes) {
  std::vector<std::string> out;
  for (const block_hash& h : hashes) out.push_back(to_string(h));
  return out;
}

TEST(block_hash, equals_the_recorded_vectors) {
  EXPECT_EQ(printed(chain(scheme(128), "tenant-a", prompt(128 * 3 + 5))),
            (std::vector<std::string>{"3abe0a154ddbd41574d842b6e9165a61/128", "7da5e470ccb8a9376ae1b0bda55d56cd/256",
                                      "c80888e9875c52f51fc01de021571248/384"}));
  EXPECT_EQ(printed(chain(scheme(4), "", std::vector<uint32_t>{0xffffffff, 0, 1, 2, 3, 4, 5, 6})),
            (std::vector<std::string>{"fa03185e950bcecf47a6f3faa8d7a40a/4", "6bc00b829e782a5b06408c7f2eb66497/8"}));
  EXPECT_EQ(printed(chain(scheme(1, false), "", std::vector<uint32_t>{5, 6})),
            (std::vector<std::string>{"1ede0149b4c8d76fef4119c5842054ce/1", "d44bf54c3a83da30f513c3b35d35dd72/2"}));
  EXPECT_EQ(scheme(128).id(), 0xbc1b22b95ccf262fu);
}

TEST(block_hash, a_conversation_extended_by_any_pieces_hashes_as_one_prompt) {
  const uint64_t seed = 11;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  rng draw(seed);
  const auto ids = prompt(4'000);
  const auto whole = chain(scheme(128), "t", ids);
  for (int round = 0; round < 50; ++round) {
    auto h = block_hasher::make(scheme(128), "t");
    ASSERT_TRUE(h);
    std::vector<block_hash> out;
    for (size_t at = 0; at < ids.size();) {
      const size_t n = std::min<size_t>(ids.size() - at, draw.below(300));
      const size_t before = out.size();
      const auto done = h->append(std::span(ids).subspan(at, n), out);
      ASSERT_TRUE(done);
      ASSERT_EQ(*done, out.size() - before);
      at += n;
      ASSERT_EQ(h->tokens(), at);
      ASSERT_EQ(out.size(), at / 128);
      ASSERT_EQ(h->last(), out.empty() ? block_hash{} : out.back());
    }
    ASSERT_EQ(out, whole) << "seed " << seed << " round " << round;
  }
}

TEST(block_hash, a_copy_is_a_fork) {
  auto a = block_hasher::make(scheme(4), "t");
  ASSERT_TRUE(a);
  std::vector<block_hash> first, second, third;
  ASSERT_TRUE(a->append(std::vector<uint32_t>{1, 2, 3, 4, 5}, first));
  block_hasher b = *a;
  ASSERT_TRUE(a->append(std::vector<uint32_t>{6, 7, 8}, first));
  ASSERT_TRUE(b.append(std::vector<uint32_t>{6, 7, 9}, second));
  EXPECT_EQ(printed(first), printed(chain(scheme(4), "t", std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8})));
  EXPECT_EQ(second.back(), chain(scheme(4), "t", std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 9}).back());
  b = *a;
  ASSERT_TRUE(b.append(std::vector<uint32_t>{1, 1, 1, 1}, third));
  EXPECT_EQ(third.back(), chain(scheme(4), "t", std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1}).back());
}

TEST(block_hash, whatever_differs_gives_other_keys) {
  const auto ids = prompt(512);
  const auto base = chain(scheme(128), "tenant-a", ids);
  const auto shares_none = [&](const std::vector<block_hash>& other, const char* what) {
    std::set<block_hash> keys(base.begin(), base.end());
    for (const block_hash& h : other) EXPECT_FALSE(keys.contains(h)) << what << " " << to_string(h);
  };
  shares_none(chain(scheme(128), "tenant-b", ids), "tenant");
  shares_none(chain(scheme(128), "", ids), "no salt");
  shares_none(chain(scheme(128), "tenant-", ids), "salt prefix");
  shares_none(chain(scheme(128, false), "tenant-a", ids), "fingerprint");
  shares_none(chain(scheme(64), "tenant-a", ids), "block size");
  shares_none(chain(scheme(256), "tenant-a", ids), "block size");
  // The same tokens at another place of the chain are another block.
  shares_none(chain(scheme(128), "tenant-a", std::span(ids).subspan(128)), "parent");
  hash_scheme one_bit = scheme(128);
  one_bit.fingerprint[31] ^= 1;
  shares_none(chain(one_bit, "tenant-a", ids), "fingerprint bit");
  // One token changed: the blocks before it stay, all from there on differ.
  auto changed = ids;
  changed[130] ^= 1;
  const auto other = chain(scheme(128), "tenant-a", changed);
  EXPECT_EQ(other[0], base[0]);
  for (size_t i = 1; i < base.size(); ++i) EXPECT_NE(other[i], base[i]);
  // Equal bytes with another token count are not equal.
  block_hash h = base[0];
  h.tokens = 256;
  EXPECT_NE(h, base[0]);
}

TEST(block_hash, lengths_keep_fields_apart) {
  // Bytes that move from one field to the next would meet without the lengths: ("org_1", "2345") and ("org_12345", "").
  hash_scheme a = scheme(1), b = scheme(1);
  EXPECT_NE(chain(a, std::string("\0\0\0\0", 4), std::vector<uint32_t>{7})[0],
            chain(b, "", std::vector<uint32_t>{7})[0]);
  std::set<block_hash> seen;
  for (size_t n = 0; n <= block_hasher::max_salt; ++n)
    EXPECT_TRUE(seen.insert(chain(a, std::string(n, '\0'), std::vector<uint32_t>{0})[0]).second) << n;
}

TEST(block_hash, incomplete_blocks_have_no_hash) {
  EXPECT_TRUE(chain(scheme(128), "t", prompt(127)).empty());
  EXPECT_EQ(chain(scheme(128), "t", prompt(255)).size(), 1u);
  EXPECT_TRUE(chain(scheme(128), "t", {}).empty());
}

TEST(block_hash, a_chain_goes_on_behind_a_block_that_somebody_else_hashed) {
  const auto whole = chain(scheme(16), "t", prompt(100));
  ASSERT_EQ(whole.size(), 6u);
  const auto tokens = prompt(100);
  for (size_t at = 0; at < whole.size(); ++at) {
    auto h = block_hasher::resume(scheme(16), "t", at == 0 ? block_hash{} : whole[at - 1]);
    ASSERT_TRUE(h) << h.error().message;
    std::vector<block_hash> rest;
    ASSERT_TRUE(h->append(std::span(tokens).subspan(at * 16), rest));
    EXPECT_EQ(rest, std::vector(whole.begin() + static_cast<ptrdiff_t>(at), whole.end())) << at;
  }
  EXPECT_EQ(block_hasher::resume(scheme(128), "t", whole[0]).error().code, errc::invalid_argument);
}

TEST(block_hash, bad_input_is_refused) {
  EXPECT_EQ(block_hasher::make(scheme(0), "").error().code, errc::invalid_argument);
  EXPECT_EQ(block_hasher::make(scheme(65'537), "").error().code, errc::invalid_argument);
  EXPECT_EQ(block_hasher::make(scheme(128), std::string(257, 'x')).error().code, errc::invalid_argument);
  hash_scheme s = scheme(128);
  s.version = 2;
  EXPECT_EQ(block_hasher::make(s, "").error().code, errc::unsupported);
  s = scheme(128);
  s.name = "xxh3";
  EXPECT_EQ(block_hasher::make(s, "").error().code, errc::unsupported);
}

TEST(block_hash, schemes_that_differ_are_refused_with_the_member_named) {
  const hash_scheme ours = scheme(128);
  EXPECT_TRUE(check_same_scheme(ours, ours, "node 7"));
  const auto refused = [&](auto change, const char* word) {
    hash_scheme s = ours;
    change(s);
    EXPECT_NE(s.id(), ours.id());
    const auto r = check_same_scheme(ours, s, "node 7");
    ASSERT_FALSE(r) << word;
    EXPECT_EQ(r.error().code, errc::unsupported);
    EXPECT_NE(r.error().message.find("node 7"), std::string::npos) << r.error().message;
    EXPECT_NE(r.error().message.find(word), std::string::npos) << r.error().message;
  };
  refused([](hash_scheme& s) { s.name = "xxh3"; }, "scheme xxh3");
  refused([](hash_scheme& s) { s.version = 2; }, "version 2");
  refused([](hash_scheme& s) { s.block_tokens = 64; }, "block size 64");
  refused([](hash_scheme& s) { s.fingerprint[0] ^= 1; }, "fingerprint 01");
}

}  // namespace
}  // namespace troupe::kv
