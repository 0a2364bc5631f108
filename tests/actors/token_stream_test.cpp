// Tokens of one request come out in order, each once, whatever way they arrive.
#include <gtest/gtest.h>

#include <algorithm>

#include "actors/serving/token_stream.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::actors {
namespace {

stream_item item(uint32_t first, std::vector<kernels::token_id> tokens, bool last = false) {
  stream_item i;
  i.first_position = first;
  i.tokens = std::move(tokens);
  i.logprobs.assign(i.tokens.size(), 0.5f);
  if (last) i.finish = kernels::finish_reason::stop;
  return i;
}

TEST(token_stream, in_order) {
  token_stream s{10};
  auto a = s.push(item(10, {1, 2}));
  ASSERT_EQ(a.ready.size(), 1u);
  EXPECT_EQ(s.next(), 12u);
  EXPECT_TRUE(s.push(item(10, {1, 2})).ready.empty()) << "twice";
  auto b = s.push(item(11, {2, 3}));
  ASSERT_EQ(b.ready.size(), 1u);
  EXPECT_EQ(b.ready[0].first_position, 12u);
  EXPECT_EQ(b.ready[0].tokens, (std::vector<kernels::token_id>{3}));
  EXPECT_EQ(b.ready[0].logprobs.size(), 1u);
}

TEST(token_stream, the_end_waits_for_what_it_overtook) {
  token_stream s{0};
  EXPECT_TRUE(s.push(item(2, {3}, true)).ready.empty());
  EXPECT_TRUE(s.push(item(1, {2})).ready.empty());
  auto r = s.push(item(0, {1})).ready;
  ASSERT_EQ(r.size(), 3u);
  EXPECT_TRUE(r[2].last());
  EXPECT_EQ(s.next(), 3u);
}

TEST(token_stream, an_end_without_tokens) {
  token_stream s{4};
  auto r = s.push(item(4, {}, true)).ready;
  ASSERT_EQ(r.size(), 1u);
  EXPECT_TRUE(r[0].last());
}

TEST(token_stream, too_much_held_back_is_said) {
  token_stream s{0};
  for (uint32_t i = 0; i < token_stream::max_early; ++i) EXPECT_FALSE(s.push(item(1 + i, {1})).overflow);
  EXPECT_TRUE(s.push(item(999, {1})).overflow);
}

TEST(token_stream, any_order_with_repeats) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    rng random{seed};
    std::vector<stream_item> items;
    uint32_t at = 5;
    const uint64_t n = 1 + random.below(12);
    for (uint64_t i = 0; i < n; ++i) {
      std::vector<kernels::token_id> tokens;
      for (uint64_t k = random.below(4) + (i + 1 == n ? 0 : 1); k > 0; --k)
        tokens.push_back(static_cast<kernels::token_id>(at + tokens.size()));
      items.push_back(item(at, tokens, i + 1 == n));
      at += static_cast<uint32_t>(tokens.size());
    }
    auto sent = items;
    for (uint64_t k = random.below(4); k > 0; --k) sent.push_back(items[random.below(n)]);
    for (size_t i = sent.size(); i > 1; --i) std::swap(sent[i - 1], sent[random.below(i)]);
    token_stream s{5};
    std::vector<kernels::token_id> got;
    int ends = 0;
    for (auto& i : sent) {
      for (auto& r : s.push(i).ready) {
        ASSERT_EQ(ends, 0) << "seed=" << seed;
        ASSERT_EQ(r.first_position, 5 + got.size()) << "seed=" << seed;
        got.insert(got.end(), r.tokens.begin(), r.tokens.end());
        ends += r.last();
      }
      if (ends) break;
    }
    EXPECT_EQ(ends, 1) << "seed=" << seed;
    ASSERT_EQ(got.size(), at - 5) << "seed=" << seed;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<kernels::token_id>(5 + i));
  }
}

}  // namespace
}  // namespace troupe::actors
