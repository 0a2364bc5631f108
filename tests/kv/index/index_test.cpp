// The index on both databases: put-if-absent, lookup, match, what goes and what follows.
#include "kv/index/block_index.hpp"

#include <gtest/gtest.h>

#include <map>

#include "kv/index/memory_db.hpp"
#include "kv/index/rocks_db.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

class index_test : public ::testing::TestWithParam<const char*> {
 protected:
  index_test() {
    if (std::string(GetParam()) == "memory") {
      db_ = std::make_unique<memory_db>();
    } else {
      auto r = open_rocks_db({.path = dir_.path() + "/db"});
      EXPECT_TRUE(r) << r.error().message;
      if (r) db_ = std::move(*r);
    }
    if (db_) index_ = open_index(*db_, {.hold_after_open = false});
  }
  void SetUp() override { ASSERT_TRUE(index_); }

  put_reply put(const std::vector<extent_info>& extents, int64_t now_s = start_s) {
    auto r = index_->put(extents, now_s);
    EXPECT_TRUE(r) << r.error().message;
    return r ? *r : put_reply{};
  }
  uint64_t matched(const std::vector<block_hash>& chain, uint64_t limit = UINT64_MAX, int64_t now_s = start_s) {
    const auto slots = slots_of(chain);
    auto quick = index_->match(slots, limit, false, now_s), full = index_->match(slots, limit, true, now_s);
    EXPECT_TRUE(quick && full);
    if (!quick || !full) return UINT64_MAX;
    EXPECT_EQ(quick->first_missing, full->first_missing);
    return quick->first_missing;
  }

  temp_dir dir_;
  std::unique_ptr<db> db_;
  std::unique_ptr<block_index> index_;
  rng draw_{20261129};
  uint64_t next_id_ = 1;
};

INSTANTIATE_TEST_SUITE_P(dbs, index_test, ::testing::Values("memory", "rocks"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(index_test, what_was_put_is_found) {
  const auto chain = made_chain(draw_, 40);
  const auto extents = made_extents(chain, 0, 40, next_id_);
  const auto r = put(extents);
  ASSERT_EQ(r.recorded, std::vector<bool>(3, true));
  EXPECT_EQ(r.winners[2][7], (block_place{extents[2].id, 7}));
  const auto found = index_->lookup(chain, start_s);
  ASSERT_TRUE(found);
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ((*found)[i], (block_place{extents[i / 16].id, uint32_t(i % 16)})) << i;
  const auto e = index_->extent(extents[1].id, start_s);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->info, extents[1]);
  EXPECT_EQ(e->owned, 0xffffu);
  EXPECT_EQ(e->expiry_s, start_s + 3 * 86'400);
  const auto s = index_->stats(start_s);
  EXPECT_EQ(s.extents, 3u);
  EXPECT_EQ(s.blocks, 40u);
  EXPECT_EQ(s.bytes, 40u * made_block_bytes);
  EXPECT_EQ(matched(chain), 40u);
  EXPECT_EQ(matched(chain, 37), 37u);
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, another_token_count_never_matches) {
  auto chain = made_chain(draw_, 16);
  put(made_extents(chain, 0, 16, next_id_));
  auto wrong = chain;
  for (auto& h : wrong) h.tokens *= 2;
  const auto found = index_->lookup(wrong, start_s);
  ASSERT_TRUE(found);
  for (const auto& p : *found) EXPECT_FALSE(p);
  EXPECT_EQ(matched(wrong), 0u);
}

TEST_P(index_test, a_later_turn_completes_a_slot_with_an_extent_of_its_own) {
  const auto chain = made_chain(draw_, 50);
  put(made_extents(chain, 0, 21, next_id_));   // 16 + 5
  put(made_extents(chain, 21, 33, next_id_));  // 11 + 1
  EXPECT_EQ(matched(chain), 33u);
  put(made_extents(chain, 33, 50, next_id_));  // 15 + 2
  EXPECT_EQ(matched(chain), 50u);
  const auto m = index_->match(slots_of(chain), 45, true, start_s);
  ASSERT_TRUE(m);
  std::vector<std::pair<uint64_t, uint32_t>> runs;
  for (const auto& r : m->runs) runs.emplace_back(r.first, r.count);
  EXPECT_EQ(runs, (std::vector<std::pair<uint64_t, uint32_t>>{{0, 16}, {16, 5}, {21, 11}, {32, 1}, {33, 12}}));
}

TEST_P(index_test, the_first_writer_of_a_block_wins_and_the_loser_is_told) {
  const auto chain = made_chain(draw_, 16);
  const auto fork = made_chain(draw_, 16, chain, 8);
  const auto first = made_extents(chain, 0, 16, next_id_);
  put(first);
  // The same blocks once more: nothing won.
  const auto again = made_extents(chain, 0, 16, next_id_);
  auto r = put(again);
  EXPECT_EQ(r.recorded, std::vector<bool>{false});
  EXPECT_EQ(r.winners[0][3], (block_place{first[0].id, 3}));
  EXPECT_EQ(index_->extent(again[0].id, start_s).error().code, errc::not_found);
  // A branch written whole: its second half is new.
  const auto branch = made_extents(fork, 0, 16, next_id_);
  r = put(branch);
  EXPECT_EQ(r.recorded, std::vector<bool>{true});
  EXPECT_EQ(r.winners[0][7].extent, first[0].id);
  EXPECT_EQ(r.winners[0][8], (block_place{branch[0].id, 8}));
  EXPECT_EQ(index_->extent(branch[0].id, start_s)->owned, 0xff00u);
  EXPECT_EQ(index_->stats(start_s).blocks, 24u);
  EXPECT_EQ(matched(fork), 16u);
  EXPECT_EQ(matched(chain), 16u);
  // An extent that is put again (its answer was lost) is answered as before.
  r = put(branch);
  EXPECT_EQ(r.recorded, std::vector<bool>{true});
  EXPECT_EQ(r.winners[0][7].extent, first[0].id);
  EXPECT_EQ(r.winners[0][8].extent, branch[0].id);
  EXPECT_EQ(index_->stats(start_s).extents, 2u);
  // The same id with other contents is a mistake.
  auto other = branch[0];
  other.block_crcs[0] ^= 1;
  EXPECT_EQ(index_->put(std::span(&other, 1), start_s).error().code, errc::invalid_argument);
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, an_extent_that_breaks_its_rules_is_refused_and_changes_nothing) {
  const auto chain = made_chain(draw_, 40);
  auto bad = made_extent_of(chain, 0, 16, 1);
  bad.first = 8, bad.parent = chain[7];
  const std::vector<extent_info> both{made_extent_of(chain, 16, 16, 2), bad};
  EXPECT_EQ(index_->put(both, start_s).error().code, errc::invalid_argument);
  EXPECT_EQ(index_->stats(start_s).extents, 0u);
  const std::vector<extent_info> many(put_extents_max + 1, made_extent_of(chain, 0, 16, 3));
  EXPECT_EQ(index_->put(many, start_s).error().code, errc::invalid_argument);
}

TEST_P(index_test, a_removed_extent_leaves_nothing_and_spares_the_blocks_of_others) {
  const auto chain = made_chain(draw_, 32);
  const auto fork = made_chain(draw_, 32, chain, 20);
  const auto a = made_extents(chain, 0, 32, next_id_);
  const auto b = made_extents(fork, 16, 32, next_id_);
  put(a), put(b);
  auto r = index_->remove(std::vector{b[0].id, extent_id{9, 9}}, remove_why::evicted, start_s, {});
  ASSERT_TRUE(r);
  ASSERT_EQ(r->removed.size(), 1u);
  EXPECT_EQ(r->removed[0], b[0]);
  EXPECT_EQ(matched(fork), 20u);
  EXPECT_EQ(matched(chain), 32u);
  EXPECT_EQ(index_->stats(start_s).blocks, 32u);
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, a_hole_ends_a_match_that_looks_at_every_extent) {
  const auto chain = made_chain(draw_, 160);
  const auto extents = made_extents(chain, 0, 160, next_id_);
  put(extents);
  ASSERT_TRUE(index_->remove(std::vector{extents[4].id}, remove_why::lost, start_s, {}));
  const auto m = index_->match(slots_of(chain), UINT64_MAX, true, start_s);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->first_missing, 64u);
  EXPECT_EQ(m->runs.size(), 4u);
}

TEST_P(index_test, match_is_logarithmic) {
  const auto chain = made_chain(draw_, 8192);
  for (size_t at = 0; at < 8192; at += 1024) put(made_extents(chain, at, at + 1024, next_id_));
  const auto m = index_->match(slots_of(chain), UINT64_MAX, false, start_s);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->first_missing, 8192u);
  EXPECT_LE(m->probes, 2u * 10);
}

TEST_P(index_test, an_owner_of_some_slots_answers_for_those) {
  const auto chain = made_chain(draw_, 64);
  put(made_extents(chain, 16, 32, next_id_));
  put(made_extents(chain, 48, 55, next_id_));
  auto slots = slots_of(chain);
  const std::vector<match_slot> mine{slots[1], slots[3]};
  EXPECT_EQ(index_->match(mine, UINT64_MAX, false, start_s)->first_missing, 55u);
  EXPECT_EQ(index_->match(mine, 50, false, start_s)->first_missing, 50u);
  EXPECT_EQ(index_->match(mine, 20, false, start_s)->first_missing, 20u);
  const std::vector<match_slot> wrong{slots[3], slots[1]};
  EXPECT_EQ(index_->match(wrong, 20, false, start_s).error().code, errc::invalid_argument);
}

// Against a plain model: a set of blocks. Chains fork anywhere, are written from wherever they are missing, with
// extents of any size within a slot, and now and then lose a tail.
TEST_P(index_test, match_is_the_longest_stored_prefix) {
  const uint64_t seed = 5;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  rng draw(seed);
  std::vector<std::vector<block_hash>> chains;
  std::map<block_hash, extent_id> stored;
  std::map<extent_id, extent_info> extents;
  for (int round = 0; round < 150; ++round) {
    std::vector<block_hash> chain;
    if (chains.empty() || draw.below(4) == 0) {
      chain = made_chain(draw, 1 + draw.below(80));
    } else {
      const auto& old = chains[draw.below(chains.size())];
      const size_t shared = draw.below(old.size() + 1);
      chain = made_chain(draw, shared + draw.below(40), old, shared);
    }
    if (chain.empty()) continue;
    chains.push_back(chain);
    size_t expected = 0;
    while (expected < chain.size() && stored.contains(chain[expected])) ++expected;
    ASSERT_EQ(matched(chain), expected);
    std::vector<extent_info> fresh;
    for (size_t at = expected; at < chain.size();) {
      const size_t room = std::min(chain.size() - at, slot_blocks - at % slot_blocks);
      const auto count = static_cast<uint32_t>(1 + draw.below(room));
      fresh.push_back(made_extent_of(chain, at, count, next_id_++));
      at += count;
    }
    const auto r = put(fresh);
    for (size_t i = 0; i < fresh.size(); ++i) {
      EXPECT_TRUE(r.recorded[i]);
      extents[fresh[i].id] = fresh[i];
      for (const auto& h : fresh[i].hashes) stored.emplace(h, fresh[i].id);
    }
    ASSERT_EQ(matched(chain), chain.size());
    if (draw.below(3) == 0) {  // evict the deepest extents of this chain
      const size_t keep = draw.below(chain.size());
      std::vector<extent_id> out;
      for (const auto& [id, e] : extents)
        for (const auto& c : chains)
          if (c == chain && e.first >= keep && e.first < c.size() && c[e.first] == e.hashes[0]) out.push_back(id);
      // Only leaves: whatever hangs on one of them must go too.
      for (bool more = true; more;) {
        more = false;
        for (const auto& [id, e] : extents)
          if (std::find(out.begin(), out.end(), id) == out.end())
            for (const auto& gone : out)
              if (std::find(extents[gone].hashes.begin(), extents[gone].hashes.end(), e.parent) !=
                  extents[gone].hashes.end()) {
                out.push_back(id), more = true;
                break;
              }
      }
      ASSERT_TRUE(index_->remove(out, remove_why::evicted, start_s, {}));
      for (const auto& id : out) {
        std::erase_if(stored, [&](const auto& s) { return s.second == id; });
        extents.erase(id);
      }
    }
    const auto s = index_->stats(start_s);
    ASSERT_EQ(s.blocks, stored.size());
    ASSERT_EQ(s.extents, extents.size());
  }
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, a_second_owner_follows_and_a_new_one_takes_over) {
  const auto chain = made_chain(draw_, 100);
  const auto fork = made_chain(draw_, 100, chain, 40);
  memory_db copy_db, new_db;
  auto copy = open_index(copy_db, {.hold_after_open = false});
  const auto follow = [&](const std::vector<index_change>& changes) {
    for (int twice = 0; twice < 2; ++twice) ASSERT_TRUE(copy->apply(changes));
  };
  follow(put(made_extents(chain, 0, 100, next_id_)).changes);
  follow(put(made_extents(fork, 32, 100, next_id_, traffic_class::chatbot)).changes);
  const int64_t later = start_s + 5'000;
  follow(index_->touch(chain, policies::ttl_touch::read, traffic_class::chatbot, later)->changes);
  follow(index_->remove(std::vector{extent_id{42, 7}}, remove_why::evicted, later, {})->changes);
  // Old extents expire; a new writer takes their blocks over.
  const int64_t much_later = start_s + 8 * 86'400;
  follow(put(made_extents(fork, 0, 64, next_id_), much_later).changes);
  auto taken = open_index(new_db, {.hold_after_open = false});
  index_cursor at;
  size_t seen = 0;
  while (!at.done) {
    const auto part = index_->export_extents(at, 3, [](const block_hash&) { return true; });
    ASSERT_TRUE(part);
    seen += part->size();
    ASSERT_TRUE(taken->apply(*part));
  }
  EXPECT_GT(seen, 10u);
  for (auto* other : {copy.get(), taken.get()}) {
    for (const int64_t now : {start_s, much_later}) {
      for (const auto& c : {chain, fork}) EXPECT_EQ(*other->lookup(c, now), *index_->lookup(c, now));
      const auto a = index_->stats(now), b = other->stats(now);
      EXPECT_EQ(a.blocks, b.blocks);
      EXPECT_EQ(a.extents, b.extents);
      EXPECT_EQ(a.expired_bytes, b.expired_bytes);
    }
    EXPECT_EQ(findings(*other), std::vector<std::string>{});
  }
  at = {};
  const auto none = index_->export_extents(at, 1'000, [](const block_hash&) { return false; });
  EXPECT_TRUE(none->empty() && at.done);
}

TEST_P(index_test, a_repair_moves_shards_but_brings_nothing_back) {
  const auto chain = made_chain(draw_, 20);
  auto extents = made_extents(chain, 0, 20, next_id_);
  put(extents);
  ASSERT_TRUE(index_->remove(std::vector{extents[1].id}, remove_why::evicted, start_s, {}));
  std::vector<index_change> moves;
  for (auto& e : extents) {
    e.targets = {target_id{1}, target_id{7}, target_id{3}};
    e.epoch = storage_epoch{9};
    moves.push_back({index_change::kind_t::move, e, 0, 0});
  }
  const auto before = index_->extent(extents[0].id, start_s);
  for (int twice = 0; twice < 2; ++twice) ASSERT_TRUE(index_->apply(moves));
  const auto after = index_->extent(extents[0].id, start_s);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(after->info, extents[0]);
  EXPECT_EQ(after->expiry_s, before->expiry_s);
  EXPECT_EQ(after->owned, before->owned);
  EXPECT_EQ(index_->extent(extents[1].id, start_s).error().code, errc::not_found);
  EXPECT_EQ(matched(chain), 16u);
  moves[0].info.targets.pop_back();
  EXPECT_EQ(index_->apply(moves).error().code, errc::invalid_argument);
  EXPECT_EQ(index_->stats(start_s).extents, 1u);
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, an_index_comes_back_from_the_extents_found_on_targets) {
  const auto chain = made_chain(draw_, 64);
  const auto fork = made_chain(draw_, 64, chain, 24);
  auto all = made_extents(chain, 0, 64, next_id_);
  for (auto& e : made_extents(fork, 16, 64, next_id_)) all.push_back(e);
  put(all);
  all.push_back(made_extent_of(chain, 16, 4, next_id_++));  // a loser whose shards were not freed yet
  for (const auto f : {family::block, family::extent, family::expiry}) ASSERT_TRUE(db_->clear(f));
  index_ = open_index(*db_, {.hold_after_open = false});
  EXPECT_EQ(index_->stats(start_s).extents, 0u);
  const int64_t now = start_s + 30 * 86'400;
  auto orphans = index_->restore(all, now);
  ASSERT_TRUE(orphans);
  EXPECT_EQ(*orphans, std::vector{all.back().id});
  EXPECT_EQ(matched(chain, UINT64_MAX, now), 64u);
  EXPECT_EQ(matched(fork, UINT64_MAX, now), 64u);
  EXPECT_EQ(matched(fork, UINT64_MAX, now + 3'600), 64u);  // an hour at least
  EXPECT_EQ(matched(fork, UINT64_MAX, now + 7'300), 0u);
  EXPECT_EQ(*index_->restore(all, now), std::vector{all.back().id});
  EXPECT_EQ(findings(*index_), std::vector<std::string>{});
}

TEST_P(index_test, reopening_counts_the_same) {
  const auto chain = made_chain(draw_, 200);
  for (size_t at = 0; at < 200; at += 50) put(made_extents(chain, at, at + 50, next_id_));
  ASSERT_TRUE(index_->remove(std::vector{extent_id{42, 13}}, remove_why::evicted, start_s, {}));
  ASSERT_TRUE(index_->touch(std::span(chain).first(70), policies::ttl_touch::read, traffic_class::chatbot, start_s));
  for (const int64_t now : {start_s, start_s + 4 * 86'400}) {
    const auto before = index_->stats(now);
    const auto after = open_index(*db_, {}, now)->stats(now);
    EXPECT_EQ(before.extents, after.extents);
    EXPECT_EQ(before.blocks, after.blocks);
    EXPECT_EQ(before.bytes, after.bytes);
    EXPECT_EQ(before.expired_blocks, after.expired_blocks);
  }
}

}  // namespace
}  // namespace troupe::kv
