// Damaged values: found, taken for missing, repaired.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/index/keys.hpp"
#include "kv/index/memory_db.hpp"
#include "kv/index/records.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

constexpr family index_families[] = {family::block, family::extent, family::expiry};

struct filled {
  memory_db db;
  std::unique_ptr<block_index> index = open_index(db, {.hold_after_open = false});
  std::vector<block_hash> chain, fork;
  std::vector<extent_info> extents;

  filled() {
    rng draw(11);
    uint64_t id = 1;
    chain = made_chain(draw, 37);
    fork = made_chain(draw, 30, chain, 20);
    extents = made_extents(chain, 0, 37, id);
    for (auto& e : made_extents(fork, 16, 30, id)) extents.push_back(e);
    EXPECT_TRUE(index->put(extents, start_s));
  }
  uint64_t matched(const std::vector<block_hash>& c) const {
    return index->match(slots_of(c), UINT64_MAX, true, start_s)->first_missing;
  }
};

TEST(damage_test, records_read_back_what_was_written) {
  filled f;
  std::string value;
  for (const auto& e : f.extents) {
    const extent_record r{e, 12'345, 5};
    const std::string key = extent_key(e.id), bytes = encode(key, r);
    ASSERT_TRUE(decode_extent(key, bytes));
    EXPECT_EQ(*decode_extent(key, bytes), r);
    EXPECT_EQ(encode(key, *decode_extent(key, bytes)), bytes);
    EXPECT_EQ(parse_extent_key(key), e.id);
  }
  const block_record b{{{UINT64_MAX, 0}, 15}, INT64_MAX};
  const std::string key = block_key(f.chain[3]);
  EXPECT_EQ(*decode_block(key, encode(key, b)), b);
  EXPECT_EQ(parse_block_key(key), f.chain[3]);
  EXPECT_FALSE(decode_block(block_key(f.chain[4]), encode(key, b)));  // under another key
  const expiry_entry entry{77, 5, {1, 2}};
  EXPECT_EQ(parse_expiry_key(expiry_key(entry)), entry);
  EXPECT_LT(expiry_key({77, 6, {}}), expiry_key({77, 5, {}}));  // deeper first
  EXPECT_LT(expiry_key({77, 0, {9, 9}}), expiry_key({78, 9, {}}));
  EXPECT_LT(expiry_key({77, 0, {9, 9}}), expiry_bound(78));
}

TEST(damage_test, every_flipped_bit_is_found_and_repaired) {
  filled intact;
  const auto expected_stats = intact.index->stats(start_s);
  for (const family fam : index_families) {
    for (const auto& key : intact.db.keys(fam)) {
      std::string value;
      ASSERT_TRUE(*intact.db.get(fam, key, value));
      const bool sparse = fam == family::extent && key != extent_key({42, 1});  // one of them byte by byte
      for (size_t byte = 0; byte < value.size(); byte += sparse ? 7 : 1) {
        filled f;
        ASSERT_TRUE(f.db.flip(fam, key, byte, static_cast<uint8_t>(1u << byte % 8)));
        SCOPED_TRACE(fmt::format("{} byte {}", to_string(fam), byte));
        // Nothing wrong is answered: what is found is what was put.
        for (const auto* c : {&f.chain, &f.fork}) {
          const auto places = f.index->lookup(*c, start_s);
          const auto right = intact.index->lookup(*c, start_s);
          ASSERT_TRUE(places && right);
          for (size_t i = 0; i < c->size(); ++i)
            if ((*places)[i]) {
              ASSERT_EQ((*places)[i], (*right)[i]);
            }
        }
        if (fam == family::extent) {
          ASSERT_EQ(f.index->extent(*parse_extent_key(key), start_s).error().code, errc::corrupt);
        }
        const auto found = findings(*f.index, true);
        ASSERT_FALSE(found.empty());
        // A second look is clean; a lost extent record comes back from the shards.
        ASSERT_EQ(findings(*f.index), std::vector<std::string>{});
        ASSERT_TRUE(f.index->restore(f.extents, start_s));
        ASSERT_EQ(f.matched(f.chain), 37u);
        ASSERT_EQ(f.matched(f.fork), 30u);
        ASSERT_EQ(findings(*f.index), std::vector<std::string>{});
        const auto s = f.index->stats(start_s);
        ASSERT_EQ(s.blocks, expected_stats.blocks);
        ASSERT_EQ(s.bytes, expected_stats.bytes);
        ASSERT_GT(s.corrupt, 0u);
        const auto again = open_index(f.db)->stats(start_s);
        ASSERT_EQ(again.blocks, s.blocks);
        ASSERT_EQ(again.extents, s.extents);
      }
    }
  }
}

TEST(damage_test, missing_and_foreign_records_are_repaired) {
  filled f;
  write_batch b;
  b.erase(family::block, block_key(f.chain[2]));
  b.erase(family::expiry, expiry_key({start_s + 3 * 86'400, 16, {42, 2}}));
  const std::string dangling = block_key(f.fork[29]);
  b.put(family::block, dangling, encode(dangling, block_record{{{1, 1}, 3}, start_s}));
  const std::string stray = expiry_key({start_s + 60, 3, {8, 8}});
  b.put(family::expiry, stray, encode(stray, expiry_record{3, 3'000}));
  b.put(family::block, "short", "x");
  b.put(family::expiry, "short", "x");
  ASSERT_TRUE(f.db.write(b, sync_write::no));
  const auto without = findings(*f.index, false);
  EXPECT_EQ(without.size(),
            6u + 1u);  // without repair the block of the erased record is seen once more from the block's side
  const auto with = findings(*f.index, true);
  EXPECT_EQ(with.size(), 6u);
  EXPECT_EQ(findings(*f.index), std::vector<std::string>{});
  EXPECT_EQ(f.matched(f.chain), 37u);
  EXPECT_EQ(f.matched(f.fork), 30u);
}

TEST(damage_test, two_extents_that_claim_a_block_are_told_apart) {
  filled f;
  std::string value;
  const std::string key = extent_key({42, 4});  // the fork's first: blocks 20 to 31 are its own, 16 to 19 the chain's
  ASSERT_TRUE(*f.db.get(family::extent, key, value));
  auto r = *decode_extent(key, value);
  ASSERT_EQ(r.owned & 0xf, 0u);
  r.owned |= 1;
  write_batch b;
  b.put(family::extent, key, encode(key, r));
  const std::string entry = expiry_key(expiry_entry_of(r));
  b.put(family::expiry, entry, encode(entry, expiry_record_of(r)));
  ASSERT_TRUE(f.db.write(b, sync_write::no));
  f.index = open_index(f.db);
  EXPECT_EQ(findings(*f.index, true).size(), 1u);
  EXPECT_EQ(findings(*f.index), std::vector<std::string>{});
  EXPECT_EQ(f.index->stats(start_s).blocks, 37u + 10u);
}

TEST(damage_test, an_expiry_entry_whose_extent_is_damaged_does_not_block_reclaim) {
  filled f;
  ASSERT_TRUE(f.db.flip(family::extent, extent_key({42, 1}), 40, 1));
  const int64_t late = start_s + 4 * 86'400;
  size_t removed = 0;
  for (int i = 0; i < 10; ++i) {
    const auto plan = f.index->expired(late, 1);  // one at a time: the damaged one must not stay at the head
    ASSERT_TRUE(plan);
    removed += f.index->remove(plan->extents, remove_why::expired, late, {})->removed.size();
  }
  EXPECT_EQ(removed, f.extents.size() - 1);
  EXPECT_EQ(f.index->stats(late).expired_extents, 0u);
}

TEST(damage_test, a_database_that_refuses_to_write_changes_nothing) {
  filled f;
  const auto before = f.index->stats(start_s);
  f.db.fail_writes(error{errc::io, "disk full"});
  rng draw(5);
  const auto more = made_chain(draw, 16);
  uint64_t id = 100;
  EXPECT_EQ(f.index->put(made_extents(more, 0, 16, id), start_s).error().code, errc::io);
  EXPECT_EQ(f.index->remove(std::vector{extent_id{42, 1}}, remove_why::evicted, start_s, {}).error().code, errc::io);
  EXPECT_EQ(f.index->touch(f.chain, policies::ttl_touch::read, traffic_class::chatbot, start_s).error().code, errc::io);
  EXPECT_EQ(f.matched(f.chain), 37u);  // reads go on
  f.db.fail_writes(std::nullopt);
  const auto after = f.index->stats(start_s);
  EXPECT_EQ(before.blocks, after.blocks);
  EXPECT_EQ(before.extents, after.extents);
  EXPECT_EQ(findings(*f.index), std::vector<std::string>{});
}

}  // namespace
}  // namespace troupe::kv
