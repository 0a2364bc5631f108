// A cut at every step of put, reclaim, evict, scrub and rebuild where a crash is possible. At each crash point the
// state of disks and databases is copied, as a new process would find it, and a store is opened on the copy: no block
// is visible without its data, no acknowledged one is lost, scrub leaves nothing behind, and the accounting is exact.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
constexpr int64_t crash_start = 1'800'000'000, one_day = 86'400;

// Calls the test at every point while it is armed.
struct cutter final : crash_hook {
  std::function<void(std::string_view)> at;
  std::map<std::string, int, std::less<>> passed;
  void reach(std::string_view point) override {
    if (!at) return;
    ++passed[std::string(point)];
    auto armed = std::move(at);  // what the check itself passes is not cut again
    armed(point);
    at = std::move(armed);
  }
};

struct crash_fixture {
  manual_unix_clock wall{crash_start};
  twin_world world;
  twin_options options;
  cutter cut;
  std::unique_ptr<twin_store> store;
  std::vector<made_chain> acknowledged;  // must be there
  std::vector<made_chain> under_way;     // may be there, whole or from the start on
  bool may_lack = false;                 // acknowledged blocks may be gone (they are being evicted), but never wrong
  int checks = 0;

  explicit crash_fixture(twin_options o = {.data = 3, .parity = 2}, size_t targets = 7, size_t owners = 2)
      : world(targets, owners), options(o) {
    options.crash = &cut;
    open();
  }
  void open() {
    store.reset();
    ++options.seed;
    store = std::make_unique<twin_store>(world, options, wall);
  }
  void arm(bool restore = false) {
    cut.at = [this, restore](std::string_view point) { check(std::string(point), restore); };
  }

  // The state now, as after SIGKILL and as after a power cut is for the device's own tests: here the process dies.
  void check(const std::string& point, bool restore) {
    SCOPED_TRACE("cut at " + point + ", check " + std::to_string(checks));
    if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
    ++checks;
    twin_world found = world.copy();
    twin_options o = options;
    o.crash = nullptr;
    o.seed = 1'000'000 + static_cast<uint64_t>(checks);
    twin_store next(found, o, wall);
    if (restore) {
      auto s = next.scrub(true, true);
      ASSERT_TRUE(s && s->repaired());
    }
    for (const auto& c : acknowledged) {
      const uint64_t there = next.match(c.hashes).value_or(0);
      read_back r(next, c);  // compares bytes
      ASSERT_EQ(r.reply.blocks, there) << "visible without data: " << (r.reply.stopped ? r.reply.stopped->message : "");
      if (!may_lack) {
        ASSERT_EQ(there, c.hashes.size()) << "an acknowledged block is lost";
      }
    }
    for (const auto& c : under_way) {
      const uint64_t there = next.match(c.hashes).value_or(0);
      read_back r(next, c);
      ASSERT_EQ(r.reply.blocks, there) << "visible without data";
    }
    auto s = next.scrub(true);
    ASSERT_TRUE(s) << s.error().message;
    ASSERT_TRUE(s->repaired()) << first_note(*s);
    auto v = next.scrub(false);
    ASSERT_TRUE(v && v->clean()) << first_note(*v);
    uint64_t shards = 0, payload = 0, allocated = 0, listed = 0, runs = 0;
    for (uint32_t t = 1; t <= found.disks.size(); ++t) {
      auto* d = next->device(target_id{t});
      if (!d) continue;
      const auto u = d->usage();
      shards += u.shards, payload += u.payload, allocated += u.allocated;
      auto page = d->list(std::nullopt, 10'000);
      ASSERT_TRUE(page);
      for (const auto& f : *page) ++listed, runs += f.runs;
    }
    ASSERT_EQ(shards, v->shards) << "space that nothing names";
    ASSERT_EQ(payload, v->shard_bytes);
    ASSERT_EQ(shards, listed);
    ASSERT_EQ(allocated, runs * run_bytes);
    // It goes on: what was under way can be put (again).
    for (const auto& c : under_way) {
      auto put = next.put(c.put());
      ASSERT_TRUE(put) << put.error().message;
      read_back r(next, c);
      ASSERT_EQ(r.reply.blocks, c.hashes.size());
    }
  }
  // Every point of `names` was passed and checked.
  void expect_cut_at(std::initializer_list<const char*> names) {
    for (const char* n : names) EXPECT_TRUE(cut.passed.contains(n)) << n << " was never reached";
    printf("%d cuts at %zu points:", checks, cut.passed.size());
    for (const auto& [name, count] : cut.passed) printf(" %s x%d", name.c_str(), count);
    printf("\n");
  }
};

TEST(crash, put) {
  crash_fixture f;
  f.acknowledged.emplace_back(test_seed(), 20, 300);
  ASSERT_TRUE(f.store->put(f.acknowledged[0].put()));
  f.under_way.emplace_back(test_seed() + 1, 37, 300);
  f.arm();
  ASSERT_TRUE(f.store->put(f.under_way[0].put()));
  f.store->settle();
  // A second writer with the same keys: its shards are freed again.
  f.acknowledged.push_back(f.under_way[0]);
  f.expect_cut_at({"put.encoded", "put.shards_written", "put.indexed", "put.replicated"});
}

TEST(crash, a_put_that_completes_a_partial_extent_and_one_that_loses_against_another_writer) {
  crash_fixture f;
  f.acknowledged.emplace_back(test_seed(), 5, 300);
  made_chain whole(test_seed(), 20, 300);
  f.acknowledged[0].hashes.assign(whole.hashes.begin(), whole.hashes.begin() + 5);
  f.acknowledged[0].blocks.assign(whole.blocks.begin(), whole.blocks.begin() + 5);
  ASSERT_TRUE(f.store->put(f.acknowledged[0].put()));
  f.under_way.push_back(whole);
  auto options = (*f.store)->io().options();
  options.seed = 99;
  client second(options, (*f.store)->who(), f.store->home(), f.store->work(), f.wall);
  f.arm();
  int answers = 0;
  (*f.store)->io().put(whole.put(), [&](result<put_chain_reply> r) { answers += r ? 1 : 0; });
  second.put(whole.put(), [&](result<put_chain_reply> r) { answers += r ? 1 : 0; });
  ASSERT_TRUE(f.store->home().run_until([&] { return answers == 2; }));
  f.store->home().run_until([] { return false; });
  f.expect_cut_at({"put.shards_written", "put.indexed", "put.replicated"});
}

TEST(crash, reclaim_of_what_has_expired) {
  crash_fixture f;
  for (int i = 0; i < 3; ++i) {
    made_chain c(test_seed() + i, 20, 200);
    ASSERT_TRUE(f.store->put(c.put()));
  }
  f.wall.advance(2 * one_day);
  f.acknowledged.emplace_back(test_seed() + 10, 20, 200);
  ASSERT_TRUE(f.store->put(f.acknowledged[0].put()));
  f.wall.advance(2 * one_day);  // the first three have expired
  f.arm();
  auto r = f.store->maintain();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->expired, 6u);
  f.expect_cut_at({"reclaim.unindexed", "reclaim.replicated", "reclaim.shards_removed"});
}

TEST(crash, eviction) {
  crash_fixture f({.data = 3, .parity = 2, .capacity_bytes = 2 << 20, .high = 0.3, .low = 0.2}, 5, 1);
  for (int i = 0; i < 14; ++i) {
    f.acknowledged.emplace_back(test_seed() + i, 16, 10'000);
    ASSERT_TRUE(f.store->put(f.acknowledged.back().put()));
    f.wall.advance(3600);
  }
  f.may_lack = true;
  f.arm();
  auto r = f.store->maintain();
  ASSERT_TRUE(r);
  EXPECT_GT(r->evicted, 0u);
  f.expect_cut_at({"reclaim.unindexed", "reclaim.shards_removed"});
}

// Lost targets, rot, orphans and strays at once.
TEST(crash, scrub) {
  crash_fixture f;
  for (int i = 0; i < 3; ++i) {
    f.acknowledged.emplace_back(test_seed() + i, 18, 400);
    ASSERT_TRUE(f.store->put(f.acknowledged.back().put()));
  }
  // Orphans: what the index has forgotten.
  std::vector<std::unique_ptr<memory_db>> before;
  for (auto& o : f.world.owners) before.push_back(copy_of(*o));
  made_chain forgotten(test_seed() + 9, 5, 100);
  ASSERT_TRUE(f.store->put(forgotten.put()));
  f.store->settle();
  f.store.reset();
  f.world.owners = std::move(before);
  // Rot on one target, another one empty.
  rng random(test_seed());
  f.open();
  auto page = (*f.store)->device(target_id{3})->list(std::nullopt, 100);
  ASSERT_TRUE(page);
  for (const auto& footer : *page)
    ASSERT_TRUE(f.world.disks[2]->flip(footer.chunk, uint64_t{footer.first_run} * run_bytes + 5, 4));
  f.store.reset();
  f.world.disks[5] = std::make_unique<memory_disk>(memory_disk_options{.seed = 60});
  f.open();
  f.arm();
  auto s = f.store->scrub(true);
  ASSERT_TRUE(s);
  EXPECT_TRUE(s->repaired());
  EXPECT_GT(s->rebuilt, 0u);
  EXPECT_GT(s->removed_orphans, 0u);
  f.expect_cut_at({"scrub.shards_written", "scrub.orphans_removed"});
}

// A target that stays away: its shards go to others, the index is told.
TEST(crash, scrub_that_moves_shards_and_a_disk_that_comes_back) {
  crash_fixture f({.data = 3, .parity = 2}, 8);
  for (int i = 0; i < 3; ++i) {
    f.acknowledged.emplace_back(test_seed() + i, 18, 400);
    ASSERT_TRUE(f.store->put(f.acknowledged.back().put()));
  }
  f.store.reset();
  auto away = std::move(f.world.disks[1]);
  f.open();
  // With a target away scrub cannot call the store whole, so its cuts are looked at once that is back.
  std::vector<twin_world> found;
  f.cut.at = [&](std::string_view) { found.push_back(f.world.copy()); };
  ASSERT_TRUE(f.store->scrub(true));
  f.cut.at = nullptr;
  f.store.reset();
  ASSERT_GT(found.size(), 3u);
  for (auto& w : found) {
    f.world = std::move(w);
    f.world.disks[1] = away->copy();
    f.open();
    f.check("moved, then back", false);
    if (HasFatalFailure()) return;
  }
  f.arm();
  ASSERT_TRUE(f.store->scrub(true));
  f.expect_cut_at({"scrub.strays_removed"});
}

TEST(crash, scrub_that_empties_a_target) {
  crash_fixture f({.data = 3, .parity = 2}, 7);
  for (int i = 0; i < 3; ++i) {
    f.acknowledged.emplace_back(test_seed() + i, 18, 400);
    ASSERT_TRUE(f.store->put(f.acknowledged.back().put()));
  }
  f.options.draining = 2;
  f.open();
  const uint64_t there = (*f.store)->device(target_id{2})->usage().shards;
  ASSERT_GT(there, 0u);
  f.arm();
  auto s = f.store->scrub(true);
  ASSERT_TRUE(s && s->repaired());
  EXPECT_EQ(s->relocated, there);
  EXPECT_EQ((*f.store)->device(target_id{2})->usage().shards, 0u);
  f.expect_cut_at({"scrub.copied", "scrub.relocated"});
}

TEST(crash, rebuild_of_the_index) {
  crash_fixture f;
  for (int i = 0; i < 4; ++i) {
    f.acknowledged.emplace_back(test_seed() + i, 18, 100);
    ASSERT_TRUE(f.store->put(f.acknowledged.back().put()));
  }
  f.store.reset();
  f.world.records = std::make_unique<memory_db>();
  for (auto& o : f.world.owners) o = std::make_unique<memory_db>();
  f.arm(true);
  f.open();  // the devices make their records again
  auto s = f.store->scrub(true, true);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->restored, s->extents);
  f.expect_cut_at({"scrub.restored"});
}

}  // namespace
}  // namespace troupe::kv
