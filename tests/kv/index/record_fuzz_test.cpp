// Index values as nobody wrote them: random changes of real ones, half of them with a checksum that holds, so that the
// parser is reached. Two seconds; a minute with TROUPE_LONG=1.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kv/index/keys.hpp"
#include "kv/index/records.hpp"
#include "runtime/base/clock.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

struct sample {
  family in;
  std::string key, value;
};

std::vector<sample> samples() {
  rng draw(31);
  const auto chain = made_chain(draw, 40);
  std::vector<sample> out;
  for (const auto& [first, count] : {std::pair{0u, 16u}, {16u, 1u}, {20u, 12u}}) {
    extent_record r{made_extent_of(chain, first, count, first + 1), start_s, (1u << count) - 1};
    if (count == 12) r.info.lengths.assign(12, 17);
    const std::string key = extent_key(r.info.id);
    out.push_back({family::extent, key, encode(key, r)});
    const std::string entry = expiry_key(expiry_entry_of(r));
    out.push_back({family::expiry, entry, encode(entry, expiry_record_of(r))});
    const std::string block = block_key(chain[first]);
    out.push_back({family::block, block, encode(block, block_record{{r.info.id, 0}, start_s})});
  }
  return out;
}

void change(rng& draw, std::string& v) {
  for (uint64_t n = 1 + draw.below(4); n > 0; --n) {
    const size_t at = v.empty() ? 0 : draw.below(v.size());
    switch (draw.below(6)) {
      case 0:
        if (!v.empty()) v[at] = static_cast<char>(v[at] ^ (1 << draw.below(8)));
        break;
      case 1:
        if (!v.empty()) v[at] = static_cast<char>(draw.next());
        break;
      case 2:
        v.resize(at);
        break;
      case 3:
        v.insert(at, 1 + draw.below(8), static_cast<char>(draw.next()));
        break;
      case 4: {  // a length or type of msgpack that promises much
        const unsigned char heads[] = {0xdd, 0xdc, 0xdf, 0xc6, 0xc5, 0xdb, 0xc9, 0x9f, 0xcf};
        if (v.size() > 10) {
          v[at] = static_cast<char>(heads[draw.below(std::size(heads))]);
          for (size_t i = 1; i < 5 && at + i < v.size(); ++i) v[at + i] = '\xff';
        }
        break;
      }
      case 5:
        if (!v.empty()) v += v.substr(at);
        break;
    }
  }
}

TEST(record_fuzz, nothing_but_what_was_written_is_read) {
  const char* set = std::getenv("TROUPE_SEED");
  const uint64_t seed = set ? std::strtoull(set, nullptr, 10) : entropy_seed();
  std::printf("TROUPE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  SCOPED_TRACE(fmt::format("TROUPE_SEED={}", seed));
  const char* is_long = std::getenv("TROUPE_LONG");
  const nanoseconds length = std::chrono::seconds(is_long && std::string(is_long) == "1" ? 60 : 2);
  const auto all = samples();
  rng draw(seed);
  uint64_t runs = 0, read = 0;
  for (const auto end = steady_clock().now() + length; steady_clock().now() < end;) {
    for (int i = 0; i < 200; ++i, ++runs) {
      const auto& s = all[draw.below(all.size())];
      std::string v = s.value;
      change(draw, v);
      const bool sealed = draw.below(2) == 0 && v.size() > 5;
      if (sealed) {
        const uint32_t crc = record_checksum(s.key, v);
        std::memcpy(v.data() + 1, &crc, sizeof crc);
      }
      // What is read is written and read again as the same; what was changed without its checksum is not read at all.
      const auto judge = [&](const auto& r) {
        if (!r) {
          ASSERT_TRUE(r.error().code == errc::corrupt || (sealed && r.error().code == errc::unsupported));
          return;
        }
        ++read;
        ASSERT_TRUE(sealed || v == s.value);
      };
      if (s.in == family::block) {
        const auto r = decode_block(s.key, v);
        judge(r);
        if (r) {
          ASSERT_EQ(*decode_block(s.key, encode(s.key, *r)), *r);
        }
      } else if (s.in == family::extent) {
        const auto r = decode_extent(s.key, v);
        judge(r);
        if (r) {
          ASSERT_EQ(*decode_extent(s.key, encode(s.key, *r)), *r);
        }
      } else {
        const auto r = decode_expiry(s.key, v);
        judge(r);
        if (r) {
          ASSERT_EQ(*decode_expiry(s.key, encode(s.key, *r)), *r);
        }
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::printf("%llu values, %llu of them read\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(read));
  EXPECT_GT(read, 0u);
}

TEST(record_fuzz, keys_of_any_length_are_taken_apart_or_refused) {
  rng draw(9);
  for (int i = 0; i < 20'000; ++i) {
    std::string key(draw.below(40), '\0');
    for (auto& c : key) c = static_cast<char>(draw.next());
    if (const auto e = parse_expiry_key(key)) {
      EXPECT_EQ(expiry_key(*e), key);
    }
    if (const auto e = parse_extent_key(key)) {
      EXPECT_EQ(extent_key(*e), key);
    }
    if (const auto b = parse_block_key(key)) {
      EXPECT_EQ(block_key(*b), key);
    }
  }
}

}  // namespace
}  // namespace troupe::kv
