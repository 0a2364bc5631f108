// Writing and reading one extent on targets that fail, lag and come too late.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kv/store/extent_read.hpp"
#include "kv/store/extent_write.hpp"
#include "runtime/base/rng.hpp"
#include "tests/kv/store/scripted_target.hpp"

namespace troupe::kv {
namespace {

using namespace std::chrono_literals;

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TROUPE_SEED");
    const uint64_t s = given ? std::strtoull(given, nullptr, 10) : entropy_seed() % 1'000'000;
    printf("TROUPE_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

struct extent_io_fixture {
  manual_executor home;
  std::vector<std::unique_ptr<scripted_target>> targets;
  members who;
  extent_memory pool{4};
  extent_info info;
  std::vector<std::vector<std::byte>> blocks;

  extent_io_fixture(uint32_t n, uint32_t k, uint32_t m, uint32_t count, uint32_t block_bytes, bool ragged,
                    rng& random) {
    for (uint32_t i = 1; i <= n; ++i) {
      targets.push_back(std::make_unique<scripted_target>(target_id{i}, home));
      who.targets[target_id{i}] = targets.back().get();
      who.placing.push_back({i, i, 1});
    }
    info.id = {random.next(), 1};
    info.count = count;
    info.block_bytes = block_bytes;
    info.data = static_cast<uint8_t>(k);
    info.parity = static_cast<uint8_t>(m);
    for (uint32_t b = 0; b < count; ++b) {
      block_hash h;
      h.bytes[0] = static_cast<uint8_t>(b);
      h.tokens = (b + 1) * 128;
      info.hashes.push_back(h);
      uint32_t bytes = block_bytes;
      if (ragged && b > 0) bytes = 1 + static_cast<uint32_t>(random.below(block_bytes));
      if (ragged) info.lengths.push_back(bytes);
      auto& block = blocks.emplace_back(bytes);
      for (auto& x : block) x = static_cast<std::byte>(random.below(256));
    }
    info.slot_first = info.hashes[0];
  }

  scripted_target& at_shard(uint32_t s) { return *targets[info.targets[s].value - 1]; }

  result<void> write() {
    std::vector<std::span<const std::byte>> views(blocks.begin(), blocks.end());
    auto shards = make_shards(info, views, pool);
    if (!shards) return fail(shards.error());
    std::optional<result<extent_info>> out;
    write_shards(info, std::make_shared<const shard_buffers>(std::move(*shards)), who, home,
                 [&](result<extent_info> r) { out = std::move(r); });
    EXPECT_TRUE(home.run_until([&] { return out.has_value(); }));
    home.run_ready();
    if (!*out) return fail(out->error());
    info = **out;
    return {};
  }

  // Reads blocks; returns the reply and checks that good ones are equal and that nothing is written afterwards.
  struct outcome {
    extent_read_reply reply;
    std::vector<std::vector<std::byte>> got;
  };
  outcome read(const std::vector<uint32_t>& which, nanoseconds hedge = 0ns, std::function<bool(uint64_t)> may = {}) {
    outcome o;
    extent_read_request r;
    r.info = std::make_shared<const extent_info>(info);
    r.hedge_after = hedge;
    r.may_hedge = std::move(may);
    for (uint32_t b : which) o.got.emplace_back(blocks[b].size());
    for (size_t i = 0; i < which.size(); ++i) r.wanted.push_back({which[i], o.got[i]});
    bool done = false;
    extent_read::start(std::move(r), who, home, [&](extent_read_reply x) {
      EXPECT_FALSE(done);
      done = true;
      o.reply = std::move(x);
    });
    EXPECT_TRUE(home.run_until([&] { return done; })) << "the read never ended";
    for (size_t i = 0; i < which.size(); ++i) {
      if (i < o.reply.good.size() && o.reply.good[i]) {
        EXPECT_EQ(o.got[i], blocks[which[i]]) << "block " << which[i];
      }
    }
    // The caller takes its memory back: what is still under way must not touch it.
    for (auto& g : o.got) std::fill(g.begin(), g.end(), std::byte{0xee});
    for (auto& t : targets) t->release();
    home.run_until([] { return false; });
    for (auto& g : o.got) {
      EXPECT_TRUE(std::all_of(g.begin(), g.end(), [](std::byte b) { return b == std::byte{0xee}; }))
          << "memory was written after the reply";
    }
    return o;
  }
  static bool all_good(const extent_read_reply& r) {
    return std::all_of(r.good.begin(), r.good.end(), [](bool g) { return g; });
  }
};

TEST(extent_io, one_block_of_a_full_extent_touches_one_or_two_shards) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 1139, false, random);
  ASSERT_TRUE(f.write());
  for (uint32_t b = 0; b < 16; ++b) {
    for (auto& t : f.targets) t->reads = 0;
    auto o = f.read({b});
    ASSERT_TRUE(extent_io_fixture::all_good(o.reply));
    uint64_t reads = 0;
    for (auto& t : f.targets) reads += t->reads;
    EXPECT_GE(reads, 1u);
    EXPECT_LE(reads, 2u) << "block " << b;
  }
}

TEST(extent_io, a_whole_extent_is_one_read_per_data_shard) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 4096, false, random);
  ASSERT_TRUE(f.write());
  for (auto& t : f.targets) t->reads = t->bytes_read = 0;
  std::vector<uint32_t> all(16);
  for (uint32_t b = 0; b < 16; ++b) all[b] = b;
  ASSERT_TRUE(extent_io_fixture::all_good(f.read(all).reply));
  uint64_t reads = 0, bytes = 0;
  for (auto& t : f.targets) reads += t->reads, bytes += t->bytes_read;
  EXPECT_EQ(reads, 10u);
  EXPECT_EQ(bytes, 16u * 4096);
}

// All shapes, any set of blocks, any set of lost shards: up to m are made good, more are an error and nothing wrong.
TEST(extent_io, any_loss_of_any_shape) {
  rng random(test_seed());
  int degraded = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const uint32_t k = 1 + static_cast<uint32_t>(random.below(10)), m = static_cast<uint32_t>(random.below(4));
    const uint32_t count = 1 + static_cast<uint32_t>(random.below(16));
    const uint32_t bytes = 1 + static_cast<uint32_t>(random.below(random.below(3) == 0 ? 20000 : 700));
    extent_io_fixture f(k + m + static_cast<uint32_t>(random.below(3)), k, m, count, bytes, random.below(2) == 0,
                        random);
    ASSERT_TRUE(f.write());
    std::set<uint32_t> lost;
    const uint64_t n = random.below(m + 2);
    while (lost.size() < std::min<uint64_t>(n, k + m)) lost.insert(static_cast<uint32_t>(random.below(k + m)));
    for (uint32_t s : lost) {
      if (random.below(2) == 0)
        f.at_shard(s).shards.clear();
      else
        f.at_shard(s).broken = error{errc::io, "disk gone"};
    }
    std::vector<uint32_t> which;
    for (uint32_t b = 0; b < count; ++b) {
      if (random.below(3) > 0) which.push_back(b);
    }
    if (which.empty()) which.push_back(count - 1);
    for (auto& t : f.targets) t->delay = nanoseconds(random.below(1000));
    auto o = f.read(which);
    degraded += o.reply.decoded > 0 ? 1 : 0;
    if (lost.size() <= m) {
      ASSERT_TRUE(extent_io_fixture::all_good(o.reply)) << o.reply.trouble->message;
      ASSERT_FALSE(o.reply.trouble);
    } else if (!extent_io_fixture::all_good(o.reply)) {
      ++refused;
      ASSERT_TRUE(o.reply.trouble);
      ASSERT_EQ(o.reply.trouble->code, errc::unavailable) << o.reply.trouble->message;
    }
  }
  EXPECT_GT(degraded, 50);
  EXPECT_GT(refused, 20);
}

TEST(extent_io, a_late_shard_loses_against_a_hedge) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 1000, false, random);
  ASSERT_TRUE(f.write());
  for (auto& t : f.targets) t->delay = 1ms;
  f.at_shard(3).held = true;
  auto o = f.read({4, 5, 6}, 20ms);
  EXPECT_TRUE(extent_io_fixture::all_good(o.reply));
  EXPECT_TRUE(o.reply.hedged);
  EXPECT_EQ(o.reply.decoded, 1u);
  EXPECT_EQ(f.home.now(), 21ms);
}

TEST(extent_io, a_shard_that_comes_before_the_hedge_wins) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 1000, false, random);
  ASSERT_TRUE(f.write());
  for (auto& t : f.targets) t->delay = 30ms;
  f.at_shard(3).delay = 25ms;
  auto o = f.read({4, 5}, 20ms);
  EXPECT_TRUE(extent_io_fixture::all_good(o.reply));
  EXPECT_EQ(o.reply.decoded, 0u);
}

TEST(extent_io, no_hedge_without_leave_or_without_enough_others) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 1000, false, random);
  ASSERT_TRUE(f.write());
  for (auto& t : f.targets) t->delay = 50ms;  // everybody is slow: k others would be slow too
  auto all_slow = f.read({0, 1, 2, 3, 4, 5, 6, 7}, 20ms);
  EXPECT_TRUE(extent_io_fixture::all_good(all_slow.reply));
  EXPECT_FALSE(all_slow.reply.hedged);
  f.at_shard(0).delay = 500ms;
  uint64_t asked = 0;
  auto refused = f.read({0}, 20ms, [&](uint64_t bytes) { return asked = bytes, false; });
  EXPECT_TRUE(extent_io_fixture::all_good(refused.reply));
  EXPECT_FALSE(refused.reply.hedged);
  EXPECT_EQ(asked, 10u * 1000);
}

TEST(extent_io, a_hedge_whose_sources_fail_waits_for_the_late_one) {
  rng random(test_seed());
  extent_io_fixture f(12, 10, 2, 16, 1000, false, random);
  ASSERT_TRUE(f.write());
  f.at_shard(0).delay = 80ms;
  f.at_shard(5).delay = 40ms;
  f.at_shard(5).broken = f.at_shard(6).broken = f.at_shard(7).broken = error{errc::io, "disk gone"};
  auto o = f.read({0}, 20ms);
  EXPECT_TRUE(extent_io_fixture::all_good(o.reply));
  EXPECT_EQ(o.reply.decoded, 0u);
}

TEST(extent_io, a_write_goes_around_a_full_disk_and_cleans_up_when_it_cannot) {
  rng random(test_seed());
  extent_io_fixture f(4, 2, 1, 3, 500, false, random);
  f.targets[0]->broken = error{errc::exhausted, "disk full"};
  for (int i = 0; i < 8; ++i) {
    f.info.id.low = static_cast<uint64_t>(i) + 10;
    ASSERT_TRUE(f.write());
    for (target_id t : f.info.targets) EXPECT_NE(t.value, 1u);
    EXPECT_TRUE(extent_io_fixture::all_good(f.read({0, 1, 2}).reply));
  }
  f.targets[1]->broken = error{errc::exhausted, "disk full"};
  f.info.id.low = 99;
  auto r = f.write();
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::exhausted) << r.error().message;
  for (auto& t : f.targets) {
    for (const auto& [key, bytes] : t->shards) EXPECT_NE(key.extent.low, 99u) << "left behind";
  }
}

TEST(extent_io, rot_that_no_target_notices_is_noticed_by_the_block_checksum) {
  rng random(test_seed());
  extent_io_fixture f(3, 2, 1, 4, 300, false, random);
  ASSERT_TRUE(f.write());
  auto& shard = f.at_shard(0).shards.begin()->second;
  shard[7] ^= std::byte{1};
  auto o = f.read({0, 3});
  EXPECT_FALSE(o.reply.good[0]);
  EXPECT_TRUE(o.reply.good[1]);
  ASSERT_TRUE(o.reply.trouble);
  EXPECT_EQ(o.reply.trouble->code, errc::corrupt);
}

}  // namespace
}  // namespace troupe::kv
