// Loss and damage: what is left is served, nothing wrong is, and scrub makes it whole again.
#include <gtest/gtest.h>

#include <set>

#include "kv/index/keys.hpp"
#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
constexpr int64_t repair_start = 1'800'000'000;

struct repair_fixture {
  manual_unix_clock wall{repair_start};
  twin_world world;
  twin_options options;
  std::unique_ptr<twin_store> store;
  std::vector<made_chain> chains;
  explicit repair_fixture(twin_options o = {}, size_t targets = 12, size_t owners = 2, uint64_t disk = 1ull << 40)
      : world(targets, owners, disk), options(o) {
    open();
  }
  void open() {
    store.reset();
    ++options.seed;  // every life draws ids of its own
    store = std::make_unique<twin_store>(world, options, wall);
  }
  void fill(size_t count = 4, size_t block_bytes = 500) {
    rng random(test_seed());
    for (size_t i = 0; i < count; ++i) {
      chains.emplace_back(random.next(), 1 + random.below(40), block_bytes);
      auto r = store->put(chains.back().put());
      ASSERT_TRUE(r) << r.error().message;
    }
  }
  size_t blocks() const {
    size_t n = 0;
    for (const auto& c : chains) n += c.blocks.size();
    return n;
  }
  // All blocks of all chains, byte by byte.
  void expect_all_readable() {
    for (const auto& c : chains) {
      read_back r(*store, c);
      ASSERT_EQ(r.reply.blocks, c.blocks.size()) << (r.reply.stopped ? r.reply.stopped->message : "");
    }
  }
  void expect_clean() {
    auto v = store->scrub(false);
    ASSERT_TRUE(v) << v.error().message;
    EXPECT_TRUE(v->clean()) << (v->notes.empty() ? "no note" : first_note(*v));
    EXPECT_EQ(v->blocks, blocks());
    uint64_t shards = 0;
    for (uint32_t t = 1; t <= world.disks.size(); ++t) {
      if (auto* d = (*store)->device(target_id{t})) shards += d->usage().shards;
    }
    EXPECT_EQ(shards, v->shards) << "every shard is named by the index";
  }
};

TEST(repair, every_pair_of_twelve_targets_may_go) {
  repair_fixture f;
  f.fill(3);
  const twin_world whole = f.world.copy();
  int pairs = 0;
  for (size_t a = 0; a < 12; ++a) {
    for (size_t b = a + 1; b < 12; ++b) {
      SCOPED_TRACE("targets " + std::to_string(a + 1) + " and " + std::to_string(b + 1));
      f.store.reset();
      f.world = whole.copy();
      f.world.disks[a].reset();
      f.world.disks[b].reset();
      f.open();
      f.expect_all_readable();
      // New, empty disks in their place.
      f.store.reset();
      f.world.disks[a] = std::make_unique<memory_disk>(memory_disk_options{.seed = 100 + a});
      f.world.disks[b] = std::make_unique<memory_disk>(memory_disk_options{.seed = 100 + b});
      f.open();
      auto s = f.store->scrub(true);
      ASSERT_TRUE(s) << s.error().message;
      EXPECT_TRUE(s->repaired()) << first_note(*s);
      EXPECT_EQ(s->rebuilt, s->extents * 2);
      f.expect_clean();
      f.expect_all_readable();
      ++pairs;
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(pairs, 66);
}

TEST(repair, three_lost_targets_are_an_error_and_nothing_wrong_is_served) {
  repair_fixture f;
  f.fill();
  f.store.reset();
  std::vector<std::unique_ptr<memory_disk>> away;
  for (size_t t : {2, 5, 9}) away.push_back(std::move(f.world.disks[t]));
  f.open();
  size_t served = 0, refused = 0;
  for (const auto& c : f.chains) {
    read_back r(*f.store, c);  // checks what is served
    served += r.reply.blocks;
    if (r.reply.blocks == c.blocks.size()) continue;
    ++refused;
    ASSERT_TRUE(r.reply.stopped);
    EXPECT_EQ(r.reply.stopped->code, errc::unavailable);
    EXPECT_NE(r.reply.stopped->message.find("9 of 12 shards can be read, 10 are needed"), std::string::npos)
        << r.reply.stopped->message;
  }
  EXPECT_GT(refused, 0u);
  // While they are only away nothing is dropped.
  auto s = f.store->scrub(true);
  ASSERT_TRUE(s);
  EXPECT_FALSE(s->repaired());
  EXPECT_EQ(s->dropped, 0u);
  f.store.reset();
  size_t i = 0;
  for (size_t t : {2, 5, 9}) f.world.disks[t] = std::move(away[i++]);
  f.open();
  f.expect_all_readable();
  f.expect_clean();
  // With new disks the loss is for good: the blocks go, the rest of the store is in order.
  f.store.reset();
  for (size_t t : {2, 5, 9}) f.world.disks[t] = std::make_unique<memory_disk>(memory_disk_options{.seed = 50 + t});
  f.open();
  auto kept = f.store->scrub(true, false, false);  // not unless asked to
  ASSERT_TRUE(kept);
  EXPECT_FALSE(kept->repaired());
  EXPECT_EQ(kept->dropped, 0u);
  EXPECT_EQ(kept->lost, kept->extents);
  EXPECT_EQ(kept->lost_blocks, kept->blocks);
  auto dropped = f.store->scrub(true);
  ASSERT_TRUE(dropped);
  EXPECT_TRUE(dropped->repaired());
  EXPECT_EQ(dropped->dropped, dropped->extents);
  f.chains.clear();
  f.expect_clean();
}

TEST(repair, spare_targets_take_over_and_writes_go_on) {
  repair_fixture f({.data = 4, .parity = 2}, 9);
  f.fill();
  f.store.reset();
  f.world.disks[1].reset();
  f.world.disks[7].reset();
  f.open();
  f.chains.emplace_back(test_seed() + 77, 20, 500);
  ASSERT_TRUE(f.store->put(f.chains.back().put()));
  auto s = f.store->scrub(true);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->waiting, 0u) << first_note(*s);
  f.expect_all_readable();
  auto v = f.store->scrub(false);
  ASSERT_TRUE(v);
  EXPECT_EQ(v->missing + v->rotten + v->strays + v->lost, 0u);
  EXPECT_EQ(v->absent.size(), 2u);
  // When the old disks come back, what they still hold is not wanted any more.
}

TEST(repair, a_disk_that_comes_back_after_its_shards_were_made_again) {
  repair_fixture f({.data = 4, .parity = 2}, 9);
  f.fill();
  f.store.reset();
  auto away = std::move(f.world.disks[3]);
  f.open();
  ASSERT_TRUE(f.store->scrub(true));
  f.store.reset();
  f.world.disks[3] = std::move(away);
  f.open();
  auto s = f.store->scrub(true);
  ASSERT_TRUE(s);
  EXPECT_GT(s->removed_strays, 0u);
  f.expect_clean();
  f.expect_all_readable();
}

TEST(repair, a_lost_index_is_rebuilt_from_the_shards) {
  repair_fixture f;
  f.fill(6);
  f.store.reset();
  f.world.records = std::make_unique<memory_db>();
  for (auto& o : f.world.owners) o = std::make_unique<memory_db>();
  f.open();
  for (const auto& c : f.chains) EXPECT_EQ(f.store->match(c.hashes).value_or(99), 0u);
  auto s = f.store->scrub(true, true);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_TRUE(s->repaired());
  EXPECT_EQ(s->restored, s->extents);
  for (const auto& c : f.chains) EXPECT_EQ(f.store->match(c.hashes).value_or(0), c.hashes.size());
  f.expect_all_readable();
  f.expect_clean();
}

TEST(repair, a_lost_index_and_two_lost_targets) {
  repair_fixture f;
  f.fill(4);
  f.store.reset();
  f.world.records = std::make_unique<memory_db>();
  for (auto& o : f.world.owners) o = std::make_unique<memory_db>();
  f.world.disks[0] = std::make_unique<memory_disk>(memory_disk_options{.seed = 70});
  f.world.disks[11] = std::make_unique<memory_disk>(memory_disk_options{.seed = 71});
  f.open();
  auto s = f.store->scrub(true, true);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_TRUE(s->repaired()) << first_note(*s);
  f.expect_all_readable();
  f.expect_clean();
}

// One byte of a shard anywhere: found, served from the others, repaired.
TEST(repair, a_flipped_byte_in_a_shard) {
  repair_fixture f({.data = 3, .parity = 2}, 6);
  f.fill(2);
  rng random(test_seed());
  int found = 0;
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto t = static_cast<uint32_t>(random.below(6) + 1);
    auto page = (*f.store)->device(target_id{t})->list(std::nullopt, 100);
    ASSERT_TRUE(page);
    if (page->empty()) continue;
    const auto& footer = (*page)[random.below(page->size())];
    const uint64_t offset = uint64_t{footer.first_run} * run_bytes + random.below(uint64_t{footer.runs} * run_bytes);
    ASSERT_TRUE(f.world.disks[t - 1]->flip(footer.chunk, offset, static_cast<uint8_t>(1 + random.below(255))));
    f.expect_all_readable();
    auto v = f.store->scrub(false);
    ASSERT_TRUE(v);
    if (v->rotten == 0) {
      // Zeros between payload and footer, or behind it, belong to nothing.
      const uint64_t inside = offset - uint64_t{footer.first_run} * run_bytes;
      ASSERT_GE(inside, footer.payload_bytes) << "rot in the payload was not found";
    } else {
      ++found;
    }
    auto s = f.store->scrub(true);
    ASSERT_TRUE(s);
    ASSERT_TRUE(s->repaired());
    f.expect_clean();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(found, 20);
}

TEST(repair, a_flipped_byte_in_a_chunk_header) {
  repair_fixture f({.data = 3, .parity = 2}, 6);
  f.fill(2);
  rng random(test_seed());
  for (int round = 0; round < 20; ++round) {
    f.store.reset();
    auto& d = *f.world.disks[random.below(6)];
    auto chunks = d.chunks();
    ASSERT_TRUE(chunks);
    if (!chunks->empty()) {
      ASSERT_TRUE(d.flip((*chunks)[0], random.below(40), 1));
    }
    f.open();
    f.expect_all_readable();
    f.expect_clean();
  }
}

// One byte of any value of the index: taken for missing at most, put right by scrub.
TEST(repair, a_flipped_byte_in_an_index_value) {
  repair_fixture f({.data = 3, .parity = 2}, 6, 1);
  f.fill(2, 100);
  rng random(test_seed());
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    auto& d = *f.world.owners[0];
    const auto family_of = static_cast<family>(random.below(3));
    const auto keys = d.keys(family_of);
    ASSERT_FALSE(keys.empty());
    const auto& key = keys[random.below(keys.size())];
    std::string value;
    ASSERT_TRUE(d.get(family_of, key, value));
    if (value.empty()) continue;
    ASSERT_TRUE(d.flip(family_of, key, random.below(value.size()), static_cast<uint8_t>(1 + random.below(255))));
    f.open();
    for (const auto& c : f.chains) read_back(*f.store, c);  // checks the bytes of whatever is served
    auto v = f.store->scrub(false);
    ASSERT_TRUE(v) << v.error().message;
    EXPECT_GT(v->index_findings, 0u);
    auto s = f.store->scrub(true);
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_TRUE(s->repaired());
    f.open();
    f.expect_all_readable();
    f.expect_clean();
    if (HasFatalFailure()) return;
  }
}

TEST(repair, shards_without_a_record_go_when_they_are_old_enough) {
  repair_fixture f({.data = 3, .parity = 2}, 6, 1);
  f.fill(2);
  f.store.reset();
  twin_world before = f.world.copy();
  f.open();
  f.chains.emplace_back(test_seed() + 5, 10, 300);
  ASSERT_TRUE(f.store->put(f.chains.back().put()));
  f.store.reset();
  f.world.owners = std::move(before.owners);  // the index as it was before the last put: its shards are orphans
  f.chains.pop_back();
  f.open();
  scrub_options o;
  o.repair = true;
  o.orphan_grace_s = 600;
  auto young = f.store->wait<scrub_report>([&](reply<scrub_report> back) { (*f.store)->scrub(o, back); });
  ASSERT_TRUE(young);
  EXPECT_EQ(young->young_orphans, 5u);
  EXPECT_EQ(young->removed_orphans, 0u);
  EXPECT_TRUE(young->clean());
  f.wall.advance(601);
  auto old = f.store->wait<scrub_report>([&](reply<scrub_report> back) { (*f.store)->scrub(o, back); });
  ASSERT_TRUE(old);
  EXPECT_EQ(old->removed_orphans, 5u);
  f.expect_clean();
}

TEST(repair, a_full_disk_is_an_error_and_reads_go_on) {
  repair_fixture f({.data = 3, .parity = 2, .capacity_bytes = 4 << 20}, 5, 1);
  rng random(test_seed());
  std::optional<error> full;
  while (!full) {
    made_chain c(random.next(), 16, 20'000);
    auto r = f.store->put(c.put());
    if (r)
      f.chains.push_back(std::move(c));
    else
      full = r.error();
    ASSERT_LT(f.chains.size(), 100u);
  }
  EXPECT_EQ(full->code, errc::exhausted) << full->message;
  f.store->settle();
  f.expect_all_readable();
  f.expect_clean();  // the failed put left nothing behind
  f.open();
  f.expect_all_readable();
}

TEST(repair, eviction_at_the_high_mark_takes_what_expires_first) {
  repair_fixture f({.data = 3, .parity = 2, .capacity_bytes = 8 << 20, .high = 0.6, .low = 0.4}, 5, 1);
  rng random(test_seed());
  const auto share = [&] {
    const auto u = (*f.store)->device(target_id{1})->usage();
    return static_cast<double>(u.allocated) / static_cast<double>(u.capacity);
  };
  while (share() <= 0.6) {
    f.chains.emplace_back(random.next(), 16, 20'000);
    ASSERT_TRUE(f.store->put(f.chains.back().put()));
    f.wall.advance(3600);
    ASSERT_LT(f.chains.size(), 200u);
  }
  read_back(*f.store, f.chains[0]);  // the oldest is used again: it stays
  auto r = f.store->maintain();
  ASSERT_TRUE(r);
  EXPECT_GT(r->evicted, 0u);
  EXPECT_EQ(r->short_bytes, 0u);
  EXPECT_LE(share(), 0.4);
  EXPECT_GT(share(), 0.25) << "far more than needed went";
  EXPECT_EQ(f.store->match(f.chains[0].hashes).value_or(0), 16u);
  EXPECT_EQ(f.store->match(f.chains[1].hashes).value_or(99), 0u);
  EXPECT_EQ(f.store->match(f.chains.back().hashes).value_or(0), 16u);
}

TEST(repair, scrub_can_be_stopped) {
  repair_fixture f;
  f.fill(6);
  scrub_options o;
  o.stop = std::make_shared<std::atomic<bool>>(false);
  o.progress = [&](const scrub_report& r) {
    if (r.extents == 2) *o.stop = true;
  };
  auto r = f.store->wait<scrub_report>([&](reply<scrub_report> back) { (*f.store)->scrub(o, back); });
  ASSERT_TRUE(r);
  EXPECT_TRUE(r->stopped);
  EXPECT_FALSE(r->clean());
}

}  // namespace
}  // namespace troupe::kv
