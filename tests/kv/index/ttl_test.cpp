// How long records live, with an injected clock: times to live by class, who extends, leases, reclaim, eviction.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/index/memory_db.hpp"
#include "kv/index/rocks_db.hpp"
#include "kv/index/sweep.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
using policies::ttl_touch;

constexpr int64_t day = 86'400, hour = 3'600;

class ttl_test : public ::testing::Test {
 protected:
  void put(const std::vector<extent_info>& extents, int64_t now_s) {
    const auto r = index_->put(extents, now_s);
    ASSERT_TRUE(r) << r.error().message;
  }
  bool visible(const block_hash& h, int64_t now_s) {
    const auto r = index_->lookup(std::span(&h, 1), now_s);
    EXPECT_TRUE(r);
    return r && (*r)[0].has_value();
  }
  uint64_t matched(const std::vector<block_hash>& chain, int64_t now_s) {
    return index_->match(slots_of(chain), UINT64_MAX, false, now_s)->first_missing;
  }
  size_t writes() { return db_.unsynced(); }

  manual_unix_clock clock_{start_s};
  memory_db db_{{make_index_sweeper(), &clock_}};
  std::unique_ptr<block_index> index_ = open_index(db_);
  rng draw_{3};
  uint64_t next_id_ = 1;
};

TEST_F(ttl_test, agents_keep_three_days_and_chatbots_seven) {
  const auto a = made_chain(draw_, 16), c = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_, traffic_class::agent), start_s);
  put(made_extents(c, 0, 16, next_id_, traffic_class::chatbot), start_s);
  EXPECT_TRUE(visible(a[5], start_s + 3 * day));  // expired means expiry < now
  EXPECT_FALSE(visible(a[5], start_s + 3 * day + 1));
  EXPECT_EQ(matched(a, start_s + 3 * day + 1), 0u);
  EXPECT_EQ(index_->extent({42, 1}, start_s + 3 * day + 1).error().code, errc::not_found);
  EXPECT_TRUE(visible(c[15], start_s + 7 * day));
  EXPECT_FALSE(visible(c[15], start_s + 7 * day + 1));
}

TEST_F(ttl_test, expiries_are_rounded_up_to_the_step) {
  const auto a = made_chain(draw_, 1);
  put(made_extents(a, 0, 1, next_id_), start_s + 1);
  EXPECT_EQ(index_->extent({42, 1}, start_s + 1)->expiry_s, start_s + 3 * day + hour);
}

TEST_F(ttl_test, only_reads_and_writes_extend) {
  const auto a = made_chain(draw_, 32);
  put(made_extents(a, 0, 32, next_id_), start_s);
  const int64_t later = start_s + 2 * day;
  const size_t before = writes();
  EXPECT_EQ(matched(a, later), 32u);
  ASSERT_TRUE(index_->match(slots_of(a), UINT64_MAX, true, later));
  EXPECT_TRUE(visible(a[3], later));
  ASSERT_TRUE(index_->extent({42, 1}, later));
  ASSERT_TRUE(index_->lease(std::vector{extent_id{42, 1}}, later, {}));
  const auto probe = index_->touch(a, ttl_touch::probe, traffic_class::agent, later);
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->visible, 32u);
  EXPECT_TRUE(probe->changes.empty());
  EXPECT_EQ(writes(), before);
  EXPECT_FALSE(visible(a[3], start_s + 3 * day + 1));
}

TEST_F(ttl_test, a_read_extends_its_part_of_the_chain_once_a_step) {
  const auto a = made_chain(draw_, 48);
  put(made_extents(a, 0, 48, next_id_), start_s);
  const size_t before = writes();
  const int64_t later = start_s + 10 * hour;
  const auto r = index_->touch(std::span(a).first(20), ttl_touch::read, traffic_class::agent, later);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->visible, 20u);
  EXPECT_EQ(r->changes.size(), 2u);  // two extents, the third was not read
  EXPECT_EQ(writes(), before + 1);
  // Within the step (whose expiries are the same) nothing is written any more.
  for (int64_t t = later - hour + 1; t <= later; t += 60)
    ASSERT_TRUE(index_->touch(std::span(a).first(20), ttl_touch::read, traffic_class::agent, t)->changes.empty());
  EXPECT_EQ(writes(), before + 1);
  ASSERT_EQ(index_->touch(std::span(a).first(20), ttl_touch::read, traffic_class::agent, later + 1)->changes.size(),
            2u);
  EXPECT_EQ(writes(), before + 2);
  EXPECT_TRUE(visible(a[19], later + 3 * day));
  EXPECT_FALSE(visible(a[40], later + 3 * day));
}

TEST_F(ttl_test, a_long_chain_is_raised_from_its_root) {
  const auto a = made_chain(draw_, 2'000);
  for (size_t at = 0; at < 2'000; at += 1'000) put(made_extents(a, at, at + 1'000, next_id_), start_s);
  const size_t before = writes();
  const auto r = index_->touch(a, ttl_touch::read, traffic_class::chatbot, start_s + 5);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->changes.size(), 126u);  // 63 extents of each put, which ended in the middle of a slot
  const size_t batches = writes() - before;
  EXPECT_EQ(batches, 2u);
  db_.power_loss(before + 1);  // the second batch is lost: what lies deeper keeps the older expiry
  index_ = open_index(db_);
  int64_t last = INT64_MAX;
  for (const size_t i : {size_t{0}, size_t{500}, size_t{1'023}, size_t{1'024}, size_t{1'999}}) {
    const auto place = (*index_->lookup(std::span(&a[i], 1), start_s))[0];
    ASSERT_TRUE(place);
    const int64_t e = index_->extent(place->extent, start_s)->expiry_s;
    EXPECT_LE(e, last);
    last = e;
  }
}

TEST_F(ttl_test, a_write_raises_its_ancestors_whatever_their_class) {
  const auto a = made_chain(draw_, 32);
  put(made_extents(a, 0, 16, next_id_, traffic_class::agent), start_s);
  ASSERT_TRUE(index_->touch(std::span(a).first(16), ttl_touch::write, traffic_class::chatbot, start_s));
  put(made_extents(a, 16, 32, next_id_, traffic_class::chatbot), start_s);
  EXPECT_EQ(matched(a, start_s + 7 * day), 32u);
}

TEST_F(ttl_test, writing_a_block_that_is_there_extends_it) {
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_, traffic_class::agent), start_s);
  const auto again = made_extents(a, 0, 16, next_id_, traffic_class::chatbot);
  const auto r = index_->put(again, start_s + 10);
  ASSERT_TRUE(r);
  EXPECT_FALSE(r->recorded[0]);
  ASSERT_EQ(r->changes.size(), 1u);
  EXPECT_EQ(r->changes[0].kind, index_change::kind_t::raise);
  EXPECT_TRUE(visible(a[0], start_s + 7 * day));
}

TEST_F(ttl_test, expired_blocks_are_not_revived_but_written_anew) {
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_), start_s);
  const int64_t late = start_s + 4 * day;
  const auto t = index_->touch(a, ttl_touch::read, traffic_class::chatbot, late);
  EXPECT_EQ(t->visible, 0u);
  EXPECT_FALSE(visible(a[0], late));
  const auto r = index_->put(made_extents(a, 0, 8, next_id_), late);
  ASSERT_TRUE(r);
  EXPECT_TRUE(r->recorded[0]);
  EXPECT_EQ(matched(a, late), 8u);
  auto s = index_->stats(start_s + 3 * day + 1);
  EXPECT_EQ(s.blocks, 8u);
  EXPECT_EQ(s.expired_blocks, 8u);  // the other half still waits for reclaim
  // Reclaim of the old extent spares the new one's blocks.
  index_ = open_index(db_, {.hold_after_open = false}, start_s + 3 * day + 1);
  const auto plan = index_->expired(late, 100);
  ASSERT_EQ(plan->extents, (std::vector{extent_id{42, 1}}));
  ASSERT_EQ(index_->remove(plan->extents, remove_why::expired, late, {})->removed.size(), 1u);
  EXPECT_EQ(matched(a, late), 8u);
  s = index_->stats(late);
  EXPECT_EQ(s.extents, 1u);
  EXPECT_EQ(s.expired_extents, 0u);
  EXPECT_TRUE(findings(*index_).empty());
}

TEST_F(ttl_test, a_leased_extent_is_not_reclaimed) {
  const nanoseconds t0 = std::chrono::hours(5), second = std::chrono::seconds(1);
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_), start_s);
  const std::vector<extent_id> ids{{42, 1}, {42, 99}};
  const auto lease = index_->lease(ids, start_s, t0);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->held, (std::vector<bool>{true, false}));
  EXPECT_EQ(lease->deadline, t0 + 10 * second);
  EXPECT_TRUE(index_->is_live(lease->token, t0 + 10 * second));
  EXPECT_FALSE(index_->is_live(lease->token, t0 + 10 * second + nanoseconds(1)));
  EXPECT_FALSE(index_->is_live(lease->token + 1, t0));
  const int64_t late = start_s + 4 * day;
  for (const auto why : {remove_why::expired, remove_why::evicted, remove_why::lost}) {
    const auto r = index_->remove(ids, why, late, t0 + 20 * second);  // the owner keeps it twice as long
    ASSERT_TRUE(r);
    EXPECT_TRUE(r->removed.empty());
    EXPECT_EQ(r->kept, (std::vector{extent_id{42, 1}}));
  }
  EXPECT_EQ(index_->evict(1, {INT64_MAX, 0}, 10, late, t0)->extents.size(), 0u);
  EXPECT_FALSE(index_->lease(std::vector{extent_id{42, 1}}, late, t0)->held[0]);  // expired: nothing new to read
  EXPECT_EQ(index_->remove(ids, remove_why::expired, late, t0 + 21 * second)->removed.size(), 1u);
}

TEST_F(ttl_test, a_released_lease_holds_nothing) {
  const nanoseconds t0 = std::chrono::hours(1);
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_), start_s);
  const std::vector<extent_id> ids{{42, 1}};
  const auto one = index_->lease(ids, start_s, t0), two = index_->lease(ids, start_s, t0);
  index_->release(one->token);
  index_->release(one->token);
  EXPECT_FALSE(index_->is_live(one->token, t0));
  EXPECT_EQ(index_->remove(ids, remove_why::evicted, start_s, t0)->kept.size(), 1u);
  index_->release(two->token);
  EXPECT_EQ(index_->stats(start_s).leases, 0u);
  EXPECT_EQ(index_->remove(ids, remove_why::evicted, start_s, t0)->removed.size(), 1u);
}

TEST_F(ttl_test, leases_are_bounded) {
  index_ = open_index(db_, {.leases_max = 3});
  const std::vector<extent_id> none{{42, 5}};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(index_->lease(none, start_s, {}));
  EXPECT_EQ(index_->lease(none, start_s, {}).error().code, errc::exhausted);
  EXPECT_TRUE(index_->lease(none, start_s, std::chrono::seconds(21)));  // the old ones have run out
}

TEST_F(ttl_test, after_a_restart_reclaim_waits_for_leases_it_cannot_know) {
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_), start_s);
  const int64_t late = start_s + 4 * day;
  const nanoseconds open_at = std::chrono::minutes(3), second = std::chrono::seconds(1);
  index_ = open_index(db_, {}, late, open_at);
  const std::vector<extent_id> ids{{42, 1}};
  EXPECT_EQ(index_->remove(ids, remove_why::expired, late, open_at + 20 * second - nanoseconds(1))->kept.size(), 1u);
  EXPECT_EQ(index_->remove(ids, remove_why::expired, late, open_at + 20 * second)->removed.size(), 1u);
}

TEST_F(ttl_test, an_extent_that_was_read_in_the_meantime_is_not_removed_as_expired) {
  const auto a = made_chain(draw_, 16);
  put(made_extents(a, 0, 16, next_id_), start_s);
  EXPECT_EQ(
      index_->remove(std::vector{extent_id{42, 1}}, remove_why::expired, start_s, std::chrono::hours(1))->kept.size(),
      1u);
}

TEST_F(ttl_test, eviction_takes_the_earliest_expiry_and_children_first) {
  const nanoseconds later = std::chrono::hours(1);
  const auto old_chain = made_chain(draw_, 64), young = made_chain(draw_, 64);
  put(made_extents(old_chain, 0, 64, next_id_), start_s);         // ids 1 to 4
  put(made_extents(young, 0, 64, next_id_), start_s + 2 * hour);  // ids 5 to 8
  const uint64_t extent_bytes = 16 * made_block_bytes;
  const auto cut = index_->cut_for(3 * extent_bytes);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->expiry_s, start_s + 3 * day);
  EXPECT_EQ(cut->depth, 16u);
  auto plan = index_->evict(3 * extent_bytes, *cut, 100, start_s, later);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->extents, (std::vector<extent_id>{{42, 4}, {42, 3}, {42, 2}}));
  EXPECT_EQ(plan->bytes, 3 * extent_bytes);
  // The cut holds even if more is wanted.
  plan = index_->evict(100 * extent_bytes, *cut, 100, start_s, later);
  EXPECT_EQ(plan->extents.size(), 3u);
  EXPECT_EQ(plan->short_bytes, 97 * extent_bytes);
  // A leased extent keeps itself and its ancestors.
  const auto lease = index_->lease(std::vector{extent_id{42, 3}}, start_s, later);
  plan = index_->evict(100 * extent_bytes, {INT64_MAX, 0}, 100, start_s, later);
  EXPECT_EQ(plan->extents, (std::vector<extent_id>{{42, 4}, {42, 8}, {42, 7}, {42, 6}, {42, 5}}));
  index_->release(lease->token);
  // Any number of them: what is left is always a chain without holes.
  while (true) {
    plan = index_->evict(1, {INT64_MAX, 0}, 5, start_s, later);
    if (plan->extents.empty()) break;
    ASSERT_TRUE(index_->remove(plan->extents, remove_why::evicted, start_s, later));
    for (const auto& chain : {old_chain, young})
      EXPECT_EQ(matched(chain, start_s), index_->match(slots_of(chain), UINT64_MAX, true, start_s)->first_missing);
  }
  EXPECT_EQ(index_->stats(start_s).extents, 0u);
  EXPECT_EQ(index_->cut_for(1)->expiry_s, INT64_MAX);
}

TEST_F(ttl_test, the_sweep_drops_only_what_expired_a_day_ago) {
  const auto a = made_chain(draw_, 32), b = made_chain(draw_, 16);
  put(made_extents(a, 0, 32, next_id_), start_s);
  put(made_extents(b, 0, 16, next_id_), start_s);
  const int64_t read_at = start_s + 2 * day;
  ASSERT_TRUE(index_->touch(b, ttl_touch::read, traffic_class::agent, read_at));
  const auto sweep = [&] {
    for (const auto f : {family::extent, family::block, family::expiry}) ASSERT_TRUE(db_.compact(f));
  };
  clock_.set(start_s + 4 * day);
  sweep();
  EXPECT_EQ(db_.stats().swept, 0u);
  EXPECT_EQ(index_->stats(clock_.now()).expired_extents, 2u);
  clock_.advance(1);
  sweep();
  EXPECT_EQ(db_.stats().swept, 2u + 32 + 2);
  EXPECT_EQ(index_->stats(clock_.now()).expired_extents, 0u);
  EXPECT_EQ(index_->stats(clock_.now()).extents, 1u);
  EXPECT_EQ(matched(b, clock_.now()), 16u);  // its blocks were written long ago, but it was read since
  EXPECT_EQ(matched(b, read_at + 3 * day), 16u);
  EXPECT_TRUE(findings(*index_).empty());
  EXPECT_EQ(open_index(db_, {}, clock_.now())->stats(clock_.now()).extents, 1u);
}

// Records on a disk: 96,000 blocks whose space is back as soon as the families are rewritten after the reclaim, and
// also when nobody reclaimed and only the sweep is left.
TEST(ttl_rocks_test, space_of_records_comes_back) {
  for (const bool reclaim : {true, false}) {
    SCOPED_TRACE(reclaim ? "reclaimed" : "swept");
    temp_dir dir;
    manual_unix_clock clock(start_s);
    auto opened = open_rocks_db({.path = dir.path() + "/db", .sweep = make_index_sweeper(), .clock = &clock});
    ASSERT_TRUE(opened) << opened.error().message;
    auto index = open_index(**opened, {.hold_after_open = false});
    rng draw(8);
    uint64_t id = 1;
    for (int i = 0; i < 100; ++i) {
      const auto chain = made_chain(draw, 960);
      ASSERT_TRUE(index->put(made_extents(chain, 0, 960, id), start_s));
    }
    const std::vector families{family::extent, family::block, family::expiry};
    for (const auto f : families) ASSERT_TRUE((*opened)->compact(f));
    const uint64_t full = (*opened)->stats().disk_bytes;
    EXPECT_GT(full, 5'000'000u);
    clock.set(start_s + 5 * day);
    if (reclaim) {
      for (;;) {
        const auto plan = index->expired(clock.now(), 1'000);
        ASSERT_TRUE(plan);
        if (plan->extents.empty()) break;
        ASSERT_EQ(index->remove(plan->extents, remove_why::expired, clock.now(), {})->removed.size(),
                  plan->extents.size());
      }
      EXPECT_EQ(index->stats(start_s + 4 * day).expired_extents, 0u);
    }
    for (const auto f : families) ASSERT_TRUE((*opened)->compact(f));
    EXPECT_LT((*opened)->stats().disk_bytes, full / 20);
    EXPECT_EQ((*opened)->stats().swept > 0, !reclaim);
  }
}

}  // namespace
}  // namespace troupe::kv
