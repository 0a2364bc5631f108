// Every place where a crash can leave something behind is cut, on the memory twins.
#include <gtest/gtest.h>

#include "tests/kv/device/crash_world.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

constexpr uint64_t seed = 4'711;

// The store works on after whatever happened: a put, a removal, and the same set once more after another open.
void expect_usable(crash_world& w, std::unique_ptr<shard_store> store) {
  const made_shard one = make_shard(900, 1, 20'000), two = make_shard(901, 0, 3'000);
  ASSERT_TRUE(store->put(one.extent, one.shard, one.payload));
  ASSERT_TRUE(store->put(two.extent, two.shard, two.payload));
  ASSERT_TRUE(store->remove(two.extent.id, two.shard));
  expect_exact(*store);
  const auto before = all_of(*store);
  const shard_usage usage = store->usage();
  store = w.reopen();
  ASSERT_TRUE(store);
  EXPECT_EQ(all_of(*store), before);
  EXPECT_EQ(store->usage().allocated, usage.allocated);
  EXPECT_TRUE(holds(*store, one));
}

void expect_whole(crash_world& w, const std::string& where) {
  SCOPED_TRACE(where);
  auto store = w.reopen();
  ASSERT_TRUE(store);
  EXPECT_TRUE(w.kept_its_word(*store));
  expect_exact(*store);
  expect_usable(w, std::move(store));
}

TEST(shard_crash, without_a_cut_the_workload_leaves_what_it_says) {
  for (const durability d : {durability::process, durability::power}) {
    cutter never(UINT64_MAX);
    crash_world w(d, &never);
    ASSERT_TRUE(w.run(workload()));
    expect_whole(w, "no cut");
  }
}

// The process dies: whatever the mode, nothing acknowledged is lost.
TEST(shard_crash, the_process_dies_at_every_point) {
  const auto ops = workload();
  std::set<std::string> seen;
  for (const durability d : {durability::process, durability::power})
    for (uint64_t at = 0;; ++at) {
      cutter hook(at);
      crash_world w(d, &hook);
      const bool complete = w.run(ops);
      seen.insert(hook.seen.begin(), hook.seen.end());
      if (complete) {
        std::printf("%llu places cut\n", static_cast<unsigned long long>(at));
        EXPECT_GT(at, 50u);
        break;
      }
      expect_whole(w, fmt::format("cut at pass {} ({})", at, hook.last));
      if (HasFailure()) return;
    }
  // "open.loaded" is passed by a second open only: cut_opens_are_opened_again.
  for (const std::string_view point : shard_store::crash_points())
    EXPECT_TRUE(point == "open.loaded" || seen.contains(std::string(point))) << point << " was never passed";
}

// Power fails, in the mode that survives it: the same promise.
TEST(shard_crash, power_fails_at_every_point_in_power_mode) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto ops = workload();
  bool complete = false;
  for (uint64_t at = 0; !complete; ++at)
    for (uint64_t variant = 0; variant < 4; ++variant) {
      cutter hook(at);
      crash_world w(durability::power, &hook);
      complete = w.run(ops);
      rng draw(seed, at * 16 + variant);
      w.device.power_loss(draw);
      w.records.power_loss(draw.below(w.records.unsynced() + 1));
      expect_whole(w, fmt::format("seed {} cut at pass {} ({}) variant {}", seed, at, hook.last, variant));
      if (HasFailure()) return;
    }
}

// Power fails in the mode that does not survive it: the last puts may be gone or rotten, but nothing wrong is served
// and the accounting is that of the records.
TEST(shard_crash, power_fails_at_every_point_in_process_mode) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto ops = workload();
  bool complete = false;
  for (uint64_t at = 0; !complete; ++at)
    for (uint64_t variant = 0; variant < 4; ++variant) {
      cutter hook(at);
      crash_world w(durability::process, &hook);
      complete = w.run(ops);
      rng draw(seed, at * 16 + variant);
      w.device.power_loss(draw);
      w.records.power_loss(draw.below(w.records.unsynced() + 1));
      SCOPED_TRACE(fmt::format("seed {} cut at pass {} ({}) variant {}", seed, at, hook.last, variant));
      auto store = w.reopen();
      ASSERT_TRUE(store);
      EXPECT_TRUE(crash_world::serves_nothing_wrong(*store, ops));
      expect_exact(*store);
      expect_usable(w, std::move(store));
      if (HasFailure()) return;
    }
}

// A write is cut in its middle: after none, some or all of its sectors.
TEST(shard_crash, every_write_is_torn_at_every_kind_of_place) {
  const auto ops = workload();
  uint64_t cuts = 0;
  for (const uint64_t sectors : {0u, 1u, 2u, 100u, 1'000u})
    for (uint64_t write = 0;; ++write) {
      cutter hook(UINT64_MAX);
      crash_world w(durability::process, &hook);
      w.device.tear_next(write, sectors);
      if (w.run(ops)) break;
      ++cuts;
      expect_whole(w, fmt::format("write {} torn after {} sectors", write, sectors));
      if (HasFailure()) return;
    }
  EXPECT_GT(cuts, 100u);
}

// The crash is followed by crashes while opening again.
TEST(shard_crash, cut_opens_are_opened_again) {
  const auto ops = workload();
  std::set<std::string> seen;
  for (uint64_t at = 0;; at += 3) {
    uint64_t nested = 0;
    bool complete = false;
    for (bool opened_whole = false; !opened_whole; ++nested) {
      cutter hook(at);
      crash_world w(durability::process, &hook);
      complete = w.run(ops);
      cutter second(nested);
      w.options.crash = &second;
      opened_whole = true;
      try {
        EXPECT_TRUE(shard_store::open(w.device, w.records, w.options));
      } catch (const cut_here&) {
        opened_whole = false;
      }
      seen.insert(second.seen.begin(), second.seen.end());
      expect_whole(w, fmt::format("cut at pass {} ({}), then at pass {} of the open", at, hook.last, nested));
      if (HasFailure()) return;
    }
    if (complete) break;
  }
  EXPECT_TRUE(seen.contains("open.loaded") && seen.contains("rebuild.chunk"));
}

// The database is gone after a crash: all that was acknowledged is found in the shards.
TEST(shard_crash, the_database_is_lost_at_every_point) {
  const auto ops = workload();
  for (uint64_t at = 0;; ++at) {
    cutter hook(at);
    crash_world w(durability::process, &hook);
    const bool complete = w.run(ops);
    SCOPED_TRACE(fmt::format("cut at pass {} ({})", at, hook.last));
    memory_db fresh;
    shard_store_options o = w.options;
    o.crash = nullptr;
    auto store = opened(w.device, fresh, o);
    ASSERT_TRUE(store);
    EXPECT_TRUE(w.kept_at_least(*store));
    expect_exact(*store);
    // Where no removal was cut before its wipe, the set is the same.
    if (complete) {
      EXPECT_TRUE(crash_world::is(*store, w.committed));
    }
    // Cut while it is being rebuilt, and opened again.
    for (uint64_t nested = 0; nested < 12; nested += 3) {
      memory_db again;
      cutter second(nested);
      o.crash = &second;
      try {
        (void)shard_store::open(w.device, again, o);
      } catch (const cut_here&) {
      }
      o.crash = nullptr;
      auto reopened = opened(w.device, again, o);
      ASSERT_TRUE(reopened);
      EXPECT_TRUE(w.kept_at_least(*reopened));
      expect_exact(*reopened);
    }
    if (complete || HasFailure()) break;
  }
}

}  // namespace
}  // namespace troupe::kv
