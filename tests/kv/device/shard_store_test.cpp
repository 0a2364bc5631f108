#include "kv/device/shard_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "kv/device/aligned_buffer.hpp"
#include "tests/kv/device/shard_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

struct shard_store_test : ::testing::Test {
  memory_disk device;
  memory_db records;
  std::unique_ptr<shard_store> store = opened(device, records);
  void reopen(const shard_store_options& o = small_device()) {
    store.reset();
    store = opened(device, records, o);
    ASSERT_TRUE(store);
  }
  void put(const made_shard& s) {
    const auto r = store->put(s.extent, s.shard, s.payload);
    ASSERT_TRUE(r) << r.error().message;
  }
};

TEST_F(shard_store_test, puts_and_reads_every_range) {
  const made_shard s = make_shard(1, 0, 9'000);
  put(s);
  EXPECT_TRUE(holds(*store, s));
  rng draw(5);
  for (int i = 0; i < 500; ++i) {
    const uint64_t offset = draw.below(s.payload.size() + 1), n = draw.below(s.payload.size() - offset + 1);
    std::vector<std::byte> out(n);
    ASSERT_TRUE(store->read(s.extent.id, 0, offset, out));
    ASSERT_TRUE(std::equal(out.begin(), out.end(), s.payload.begin() + static_cast<ptrdiff_t>(offset)))
        << offset << " " << n;
    int calls = 0;
    ASSERT_TRUE(store->read(s.extent.id, 0, offset, n, [&](std::span<const std::byte> got) {
      ++calls;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), out.begin(), out.end()));
    }));
    ASSERT_EQ(calls, 1);
  }
  const aligned_buffer aligned(4'096);
  ASSERT_TRUE(store->read(s.extent.id, 0, 4'096, aligned.bytes()));
  EXPECT_EQ(std::memcmp(aligned.data(), s.payload.data() + 4'096, 4'096), 0);
}

TEST_F(shard_store_test, a_room_is_written_without_a_copy_and_reads_back) {
  const made_shard s = make_shard(1, 2, 9'000);
  const aligned_buffer room(shard_buffer_bytes(s.payload.size()));
  std::memset(room.data(), 0xee, room.size());
  std::memcpy(room.data(), s.payload.data(), s.payload.size());
  shard_put p{&s.extent, 2, room.bytes().first(s.payload.size()), room.bytes()};
  ASSERT_TRUE(store->put({&p, 1}));
  EXPECT_TRUE(holds(*store, s));
  p.room = room.bytes().first(4'096);
  EXPECT_EQ(store->put({&p, 1}).error().code, errc::invalid_argument);
  p.payload = p.payload.subspan(64);
  EXPECT_EQ(store->put({&p, 1}).error().code, errc::invalid_argument);
}

TEST_F(shard_store_test, survives_reopening_with_the_same_accounting) {
  std::vector<made_shard> all;
  for (uint64_t i = 0; i < 30; ++i) {
    all.push_back(make_shard(i, i % 3, static_cast<uint32_t>(1 + i * 997)));
    put(all.back());
  }
  ASSERT_TRUE(store->remove(all[3].extent.id, all[3].shard));
  const shard_usage before = store->usage();
  const auto listed = all_of(*store);
  EXPECT_EQ(listed.size(), 29u);
  expect_exact(*store);
  reopen();
  const shard_usage after = store->usage();
  EXPECT_EQ(before.allocated, after.allocated);
  EXPECT_EQ(before.payload, after.payload);
  EXPECT_EQ(before.shards, after.shards);
  EXPECT_EQ(before.capacity, after.capacity);
  EXPECT_EQ(before.largest_free, after.largest_free);
  EXPECT_EQ(all_of(*store), listed);
  EXPECT_EQ(store->report().shards, 29u);
  EXPECT_EQ(store->report().dropped_records, 0u);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 3) continue;
    EXPECT_TRUE(holds(*store, all[i])) << i;
  }
  EXPECT_EQ(store->stat(all[3].extent.id, all[3].shard).error().code, errc::not_found);
}

TEST_F(shard_store_test, many_shards_share_one_commit) {
  std::vector<made_shard> all;
  std::vector<shard_put> puts;
  for (uint64_t i = 0; i < 12; ++i) all.push_back(make_shard(i, 0, 5'000));
  for (const made_shard& s : all) puts.push_back(s.put());
  const size_t before = records.unsynced();
  ASSERT_TRUE(store->put(puts));
  EXPECT_EQ(records.unsynced(), before + 1);
  for (const made_shard& s : all) EXPECT_TRUE(holds(*store, s));
  std::vector<shard_key> keys;
  for (const made_shard& s : all) keys.push_back(s.key());
  keys.push_back(keys.front());
  keys.push_back(shard_key{{7, 7}, 0});
  keys.push_back(shard_key{all[0].extent.id, 256});  // one byte of the key would make it shard 0
  const auto removed = store->remove(keys);
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, 12u);
  EXPECT_EQ(*store->remove(keys), 0u);
  EXPECT_EQ(store->usage().allocated, 0u);
  expect_exact(*store);
}

TEST_F(shard_store_test, wrong_input_changes_nothing) {
  const made_shard s = make_shard(1, 0, 5'000);
  const auto refused = [&](shard_put p) {
    const auto r = store->put({&p, 1});
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, errc::invalid_argument) << r.error().message;
  };
  refused({nullptr, 0, s.payload, {}});
  refused({&s.extent, 3, s.payload, {}});
  refused({&s.extent, 0, std::span(s.payload).first(64), {}});
  extent_info bad = s.extent;
  bad.count = 0;
  refused({&bad, 0, s.payload, {}});
  const shard_put twice[] = {s.put(), s.put()};
  EXPECT_EQ(store->put(twice).error().code, errc::invalid_argument);
  EXPECT_TRUE(store->put(std::span<const shard_put>{}));
  EXPECT_EQ(store->usage().allocated, 0u);
  EXPECT_EQ(device.writes(), 0u);

  put(s);
  std::vector<std::byte> out(10);
  EXPECT_EQ(store->read(s.extent.id, 1, 0, out).error().code, errc::not_found);
  EXPECT_EQ(store->read(s.extent.id, 99, 0, out).error().code, errc::not_found);
  EXPECT_EQ(store->read(s.extent.id, 256, 0, out).error().code, errc::not_found);
  EXPECT_EQ(store->read({1, 1}, 0, 0, out).error().code, errc::not_found);
  EXPECT_EQ(store->read(s.extent.id, 0, s.payload.size() - 9, out).error().code, errc::invalid_argument);
  EXPECT_EQ(store->read(s.extent.id, 0, UINT64_MAX, out).error().code, errc::invalid_argument);
  EXPECT_EQ(store->check(s.extent.id, 1).error().code, errc::not_found);
}

TEST_F(shard_store_test, a_replacement_writes_new_runs_and_frees_the_old_ones) {
  made_shard s = make_shard(1, 0, 9'000);
  put(s);
  const shard_footer before = *store->stat(s.extent.id, 0);
  s.extent.epoch = storage_epoch{9};
  put(s);
  const shard_footer after = *store->stat(s.extent.id, 0);
  EXPECT_NE(before.first_run, after.first_run);
  EXPECT_GT(after.sequence, before.sequence);
  EXPECT_EQ(after.extent.epoch, storage_epoch{9});
  EXPECT_TRUE(holds(*store, s));
  EXPECT_EQ(store->usage().shards, 1u);
  expect_exact(*store);
}

TEST_F(shard_store_test, a_full_device_says_so_changes_nothing_and_reads_on) {
  std::vector<made_shard> all;
  result<void> last;
  for (uint64_t i = 0; last; ++i) {
    made_shard s = make_shard(i, 0, 100'000);
    last = store->put(s.extent, 0, s.payload);
    if (last) all.push_back(std::move(s));
  }
  EXPECT_EQ(last.error().code, errc::exhausted) << last.error().message;
  EXPECT_EQ(store->usage().chunks, 4u);
  EXPECT_GT(all.size(), 30u);
  expect_exact(*store);
  // A batch of which only the first fits: nothing of it becomes visible, nothing stays taken.
  const uint64_t taken = store->usage().allocated;
  const made_shard small = make_shard(1'000, 0, 1), large = make_shard(1'001, 0, 100'000);
  const shard_put both[] = {small.put(), large.put()};
  EXPECT_EQ(store->put(both).error().code, errc::exhausted);
  EXPECT_EQ(store->usage().allocated, taken);
  EXPECT_EQ(store->stat(small.extent.id, 0).error().code, errc::not_found);
  for (const made_shard& s : all) EXPECT_TRUE(holds(*store, s));
  ASSERT_TRUE(store->remove(all.back().extent.id, 0));
  EXPECT_TRUE(store->put(large.extent, 0, large.payload));
  EXPECT_TRUE(holds(*store, large));
}

TEST_F(shard_store_test, a_disk_that_refuses_is_an_error_and_no_loss) {
  const made_shard a = make_shard(1, 0, 9'000), b = make_shard(2, 0, 9'000);
  put(a);
  const uint64_t taken = store->usage().allocated;
  device.fail_writes(error{errc::io, "made to fail"});
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::io);
  device.fail_writes(error{errc::exhausted, "no space left on device"});
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::exhausted);
  device.fail_writes(std::nullopt);
  EXPECT_EQ(store->usage().allocated, taken);
  EXPECT_TRUE(holds(*store, a));
  put(b);
  device.set_gone(true);
  std::vector<std::byte> out(10);
  EXPECT_EQ(store->read(a.extent.id, 0, 0, out).error().code, errc::io);
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::io);
  device.set_gone(false);
  EXPECT_TRUE(holds(*store, a));
  EXPECT_TRUE(holds(*store, b));
  expect_exact(*store);
}

TEST_F(shard_store_test, after_a_failed_commit_nothing_is_written_until_the_next_open) {
  const made_shard a = make_shard(1, 0, 9'000), b = make_shard(2, 0, 9'000);
  put(a);
  records.fail_writes(error{errc::io, "made to fail"});
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::io);
  records.fail_writes(std::nullopt);
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::io);
  EXPECT_EQ(store->remove(a.extent.id, 0).error().code, errc::io);
  EXPECT_TRUE(holds(*store, a));
  reopen();
  expect_exact(*store);
  put(b);
  EXPECT_TRUE(holds(*store, a));
  EXPECT_TRUE(holds(*store, b));
}

TEST_F(shard_store_test, a_database_without_room_refuses_and_then_goes_on) {
  const made_shard a = make_shard(1, 0, 9'000), b = make_shard(2, 0, 9'000);
  put(a);
  const uint64_t taken = store->usage().allocated;
  records.fail_writes(error{errc::exhausted, "made to be full"});
  EXPECT_EQ(store->put(b.extent, 0, b.payload).error().code, errc::exhausted);
  EXPECT_EQ(store->remove(a.extent.id, 0).error().code, errc::exhausted);
  EXPECT_EQ(store->usage().allocated, taken);
  EXPECT_TRUE(holds(*store, a));
  records.fail_writes(std::nullopt);
  put(b);
  EXPECT_TRUE(holds(*store, b));
  expect_exact(*store);
}

TEST_F(shard_store_test, targets_share_a_database_without_meeting) {
  memory_disk other_device;
  shard_store_options o = small_device();
  o.target = target_id{2};
  o.new_device.fill(0xd2);
  auto other = opened(other_device, records, o);
  const made_shard a = make_shard(1, 0, 5'000), b = make_shard(2, 1, 5'000);
  put(a);
  ASSERT_TRUE(other->put(b.extent, 1, b.payload));
  EXPECT_EQ(all_of(*store).size(), 1u);
  EXPECT_EQ(all_of(*other).size(), 1u);
  EXPECT_EQ(other->stat(a.extent.id, 0).error().code, errc::not_found);
  ASSERT_TRUE(store->rebuild());
  EXPECT_TRUE(holds(*other, b));
  EXPECT_TRUE(holds(*store, a));
  // Disks swapped: refused, both devices named.
  other.reset();
  const auto swapped = shard_store::open(device, records, o);
  ASSERT_FALSE(swapped);
  EXPECT_EQ(swapped.error().code, errc::unavailable);
  EXPECT_NE(swapped.error().message.find("d2d2"), std::string::npos) << swapped.error().message;
  EXPECT_NE(swapped.error().message.find("d1d1"), std::string::npos) << swapped.error().message;
}

TEST_F(shard_store_test, options_out_of_range_are_refused) {
  const auto refused = [&](auto change) {
    shard_store_options o = small_device();
    change(o);
    memory_db fresh;
    memory_disk empty;
    const auto r = shard_store::open(empty, fresh, o);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, errc::invalid_argument) << r.error().message;
  };
  refused([](auto& o) { o.target = target_id{0}; });
  refused([](auto& o) { o.chunk_bytes = 4'096; });
  refused([](auto& o) { o.chunk_bytes = (1 << 20) + 1; });
  refused([](auto& o) { o.new_device = {}; });
  const made_shard large = make_shard(1, 0, 2'000'000);
  EXPECT_EQ(store->put(large.extent, 0, large.payload).error().code, errc::invalid_argument);
}

TEST_F(shard_store_test, runs_of_a_removed_shard_wait_for_its_readers) {
  const made_shard s = make_shard(1, 0, 9'000);
  put(s);
  const uint64_t taken = store->usage().allocated;
  ASSERT_TRUE(store->read(s.extent.id, 0, 0, s.payload.size(), [&](std::span<const std::byte> got) {
    ASSERT_TRUE(store->remove(s.extent.id, 0));
    EXPECT_EQ(store->stat(s.extent.id, 0).error().code, errc::not_found);
    EXPECT_EQ(store->usage().allocated, taken);  // still being read
    EXPECT_EQ(store->usage().shards, 0u);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), s.payload.begin()));
  }));
  EXPECT_EQ(store->usage().allocated, 0u);
}

// Writers replace and remove shards while readers read: a read gives the right bytes or not_found, nothing else.
TEST_F(shard_store_test, threads_read_write_and_remove_the_same_shards) {
  constexpr uint64_t shards = 6;
  std::vector<made_shard> all;
  for (uint64_t i = 0; i < shards; ++i) all.push_back(make_shard(i, 0, 6'000));
  std::atomic<uint64_t> reads{0}, missing{0}, wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      rng draw(9, t);
      std::vector<std::byte> out(all[0].payload.size());
      for (int i = 0; i < 400; ++i) {
        const made_shard& s = all[draw.below(shards)];
        if (t < 2) {
          const auto r =
              draw.below(3) ? store->put(s.extent, 0, s.payload) : store->remove(s.extent.id, 0).map([](size_t) {});
          wrong += !r;
        } else if (const auto r = store->read(s.extent.id, 0, 0, out); r) {
          ++reads;
          wrong += out != s.payload;
        } else {
          ++missing;
          wrong += r.error().code != errc::not_found;
        }
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(reads + missing, 0u);
  expect_exact(*store);
  reopen();
  expect_exact(*store);
}

}  // namespace
}  // namespace troupe::kv
