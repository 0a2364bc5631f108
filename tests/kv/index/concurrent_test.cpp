// Many threads on one index (memory twin; runs under ThreadSanitizer too).
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "kv/index/memory_db.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

TEST(concurrent_test, of_two_writers_of_a_block_one_wins_and_all_agree) {
  constexpr int threads = 4, rounds = 60;
  memory_db database;
  const auto index = open_index(database, {.hold_after_open = false});
  rng draw(21);
  std::vector<std::vector<block_hash>> chains;
  for (int r = 0; r < rounds; ++r) {
    const auto root = made_chain(draw, 24);
    chains.push_back(made_chain(draw, 40, root, 24));
  }
  std::vector<std::map<block_hash, block_place>> told(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      rng mine(100, static_cast<uint64_t>(t));
      uint64_t id = static_cast<uint64_t>(t) * 1'000'000 + 1;
      for (const auto& chain : chains) {
        // Each writer cuts the chain into other extents.
        std::vector<extent_info> extents;
        for (size_t at = 0; at < chain.size();) {
          const size_t room = std::min(chain.size() - at, slot_blocks - at % slot_blocks);
          const auto count = static_cast<uint32_t>(1 + mine.below(room));
          extents.push_back(made_extent_of(chain, at, count, id++));
          at += count;
        }
        const auto r = index->put(extents, start_s);
        ASSERT_TRUE(r) << r.error().message;
        for (size_t i = 0; i < extents.size(); ++i)
          for (size_t j = 0; j < extents[i].hashes.size(); ++j) told[t].emplace(extents[i].hashes[j], r->winners[i][j]);
      }
    });
  for (auto& t : pool) t.join();
  for (const auto& chain : chains) {
    const auto places = index->lookup(chain, start_s);
    ASSERT_TRUE(places);
    for (size_t i = 0; i < chain.size(); ++i) {
      ASSERT_TRUE((*places)[i]);
      for (const auto& t : told) ASSERT_EQ(t.at(chain[i]), *(*places)[i]);
    }
  }
  EXPECT_EQ(index->stats(start_s).blocks, chains.size() * 40);
  EXPECT_EQ(findings(*index), std::vector<std::string>{});
}

TEST(concurrent_test, everything_at_once_leaves_records_that_agree) {
  constexpr int threads = 4;
  memory_db database;
  const auto index = open_index(database, {.hold_after_open = false});
  rng draw(22);
  const auto root = made_chain(draw, 32);
  std::vector<std::vector<block_hash>> chains;
  for (int i = 0; i < 8; ++i) chains.push_back(made_chain(draw, 64, root, 8 + 3 * static_cast<size_t>(i)));
  std::atomic<uint64_t> leased{0}, removed{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      rng mine(200, static_cast<uint64_t>(t));
      uint64_t id = static_cast<uint64_t>(t) * 1'000'000 + 1;
      for (int i = 0; i < 400; ++i) {
        const auto& chain = chains[mine.below(chains.size())];
        const int64_t now = start_s + static_cast<int64_t>(mine.below(20)) * 43'200;
        switch (mine.below(8)) {
          case 0:
          case 1: {
            const size_t from = mine.below(64), to = from + 1 + mine.below(64 - from);
            ASSERT_TRUE(index->put(made_extents(chain, from, to, id), now));
            break;
          }
          case 2:
            ASSERT_TRUE(index->touch(chain, policies::ttl_touch::read, traffic_class::chatbot, now));
            break;
          case 3:
            ASSERT_TRUE(index->match(slots_of(chain), UINT64_MAX, mine.below(2) == 0, now));
            break;
          case 4: {
            const auto plan = index->expired(now, 4);
            ASSERT_TRUE(plan);
            const auto r = index->remove(plan->extents, remove_why::expired, now, {});
            ASSERT_TRUE(r);
            removed += r->removed.size();
            break;
          }
          case 5: {
            const auto cut = index->cut_for(100'000);
            ASSERT_TRUE(cut);
            const auto plan = index->evict(30'000, *cut, 20, now, {});
            ASSERT_TRUE(plan);
            const auto r = index->remove(plan->extents, remove_why::evicted, now, {});
            ASSERT_TRUE(r);
            removed += r->removed.size();
            break;
          }
          case 6: {
            // What is leased stays until the lease is given back.
            const auto places = index->lookup(chain, now);
            ASSERT_TRUE(places);
            std::vector<extent_id> ids;
            for (const auto& p : *places)
              if (p) ids.push_back(p->extent);
            const auto lease = index->lease(ids, now, {});
            ASSERT_TRUE(lease);
            for (size_t j = 0; j < ids.size(); ++j) {
              if (!lease->held[j]) continue;
              ++leased;
              ASSERT_TRUE(index->extent(ids[j], now)) << "gone while leased";
            }
            index->release(lease->token);
            break;
          }
          case 7: {
            index_cursor at{static_cast<family>(mine.below(3)), "", false};
            ASSERT_TRUE(index->check(at, 20, true, now));
            (void)index->stats(start_s);
            break;
          }
        }
      }
    });
  for (auto& t : pool) t.join();
  EXPECT_GT(leased.load(), 0u);
  EXPECT_GT(removed.load(), 0u);
  EXPECT_EQ(findings(*index), std::vector<std::string>{});
  const auto a = index->stats(start_s), b = open_index(database)->stats(start_s);
  EXPECT_EQ(a.extents, b.extents);
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(a.bytes, b.bytes);
}

}  // namespace
}  // namespace troupe::kv
