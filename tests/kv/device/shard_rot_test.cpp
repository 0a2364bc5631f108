// One byte wrong anywhere: detected, or harmless. And rebuilding the records from what is on the disk.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kv/device/aligned_buffer.hpp"
#include "kv/device/shard_record.hpp"
#include "tests/kv/device/crash_world.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

struct shard_rot : ::testing::Test {
  memory_disk device;
  memory_db records;
  std::unique_ptr<shard_store> store = opened(device, records);
  void put(const made_shard& s) {
    const auto r = store->put(s.extent, s.shard, s.payload);
    ASSERT_TRUE(r) << r.error().message;
  }
  // As after the loss of the database.
  std::unique_ptr<shard_store> rebuilt(memory_db& fresh) {
    store.reset();
    return opened(device, fresh);
  }
};

TEST_F(shard_rot, every_byte_of_a_shard_on_the_disk) {
  const made_shard s = make_shard(1, 1, 1'000, 1);  // one run: payload, padding, footer
  put(s);
  const shard_footer f = *store->stat(s.extent.id, 1);
  ASSERT_EQ(f.runs, 1u);
  const size_t image = encode(f).size();
  std::vector<std::byte> out(s.payload.size());
  const size_t stride = std::getenv("TROUPE_LONG") ? 1 : 13;
  for (uint64_t at = 0; at < run_bytes; ++at) {
    const uint64_t where = uint64_t{f.first_run} * run_bytes + at;
    const bool in_payload = at < s.payload.size();
    ASSERT_TRUE(device.flip(f.chunk, where, 0x04));
    const auto checked = store->check(s.extent.id, 1);
    ASSERT_FALSE(checked) << at;
    ASSERT_EQ(checked.error().code, errc::corrupt);
    const auto read = store->read(s.extent.id, 1, 0, out);
    if (in_payload) {
      ASSERT_FALSE(read) << at;
      ASSERT_EQ(read.error().code, errc::corrupt);
    } else {
      ASSERT_TRUE(read && out == s.payload) << at;
    }
    if (at % stride == 0) {
      memory_db fresh;
      const auto same_disk = device.copy();
      const auto other = opened(*same_disk, fresh);
      const bool in_padding = !in_payload && at < run_bytes - footer_bytes;
      ASSERT_EQ(all_of(*other).size(), in_padding ? 1u : 0u) << at;
      const bool magic = at >= run_bytes - footer_bytes && at < run_bytes - footer_bytes + 8;
      ASSERT_EQ(other->report().rotten, in_padding || magic ? 0u : 1u) << at << " of " << image;
    }
    ASSERT_TRUE(device.flip(f.chunk, where, 0x04));
  }
  EXPECT_TRUE(holds(*store, s));
}

TEST_F(shard_rot, only_the_granules_that_are_read_must_hold) {
  const made_shard s = make_shard(1, 0, 20'000);
  put(s);
  const shard_footer f = *store->stat(s.extent.id, 0);
  ASSERT_TRUE(device.flip(f.chunk, uint64_t{f.first_run} * run_bytes + 9'000, 1));
  std::vector<std::byte> out(4'096);
  EXPECT_TRUE(store->read(s.extent.id, 0, 0, out));
  EXPECT_TRUE(store->read(s.extent.id, 0, 4'096, out));
  EXPECT_EQ(store->read(s.extent.id, 0, 4'097, out).error().code, errc::corrupt);
  EXPECT_TRUE(store->read(s.extent.id, 0, 12'288, out));
  // Put again, as a repair does: everything holds, the space is the same.
  const uint64_t taken = store->usage().allocated;
  put(s);
  EXPECT_TRUE(holds(*store, s));
  EXPECT_EQ(store->usage().allocated, taken);
}

TEST_F(shard_rot, every_byte_of_a_chunk_header_with_and_without_the_database) {
  const made_shard s = make_shard(1, 0, 5'000);
  put(s);
  EXPECT_EQ(*store->check_headers(), 0u);
  for (uint64_t at = 0; at < run_bytes; at += at < 64 ? 1 : 97) {
    ASSERT_TRUE(device.flip(0, at, 0x40));
    ASSERT_EQ(*store->check_headers(), 1u) << at;
    ASSERT_EQ(*store->check_headers(), 0u);
    ASSERT_TRUE(device.flip(0, at, 0x40));
    store.reset();
    store = opened(device, records);
    ASSERT_EQ(store->report().repaired_headers, 1u);
    ASSERT_TRUE(holds(*store, s));
    // The database is lost too: the footers still name the device.
    ASSERT_TRUE(device.flip(0, at, 0x40));
    memory_db fresh;
    const auto other = rebuilt(fresh);
    ASSERT_TRUE(other->report().rebuilt);
    ASSERT_EQ(other->report().repaired_headers, 1u);
    ASSERT_TRUE(holds(*other, s));
    store = opened(device, records);
  }
}

TEST_F(shard_rot, every_byte_of_a_record) {
  const made_shard s = make_shard(1, 0, 5'000), other = make_shard(2, 0, 5'000);
  put(s);
  put(other);
  const std::string key = shard_record_key(target_id{1}, s.key());
  std::string value;
  ASSERT_TRUE(*records.get(family::shard, key, value));
  std::vector<std::byte> out(10);
  for (size_t at = 0; at < value.size(); ++at) {
    ASSERT_TRUE(records.flip(family::shard, key, at, 0x02));
    ASSERT_EQ(store->stat(s.extent.id, 0).error().code, errc::corrupt);
    ASSERT_EQ(store->read(s.extent.id, 0, 0, out).error().code, errc::corrupt);
    uint64_t corrupt = 0;
    ASSERT_EQ(store->list(std::nullopt, 100, &corrupt)->size(), 1u);
    ASSERT_EQ(corrupt, 1u);
    ASSERT_TRUE(records.flip(family::shard, key, at, 0x02));
  }
  ASSERT_TRUE(records.flip(family::shard, key, 100, 0x02));
  store.reset();
  store = opened(device, records);
  EXPECT_EQ(store->report().dropped_records, 1u);
  EXPECT_EQ(store->stat(s.extent.id, 0).error().code, errc::not_found);
  expect_exact(*store);
  EXPECT_TRUE(holds(*store, other));
  // The shard itself is still on the disk.
  const auto report = store->rebuild();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->shards, 2u);
  EXPECT_TRUE(holds(*store, s));
  EXPECT_TRUE(holds(*store, other));
  expect_exact(*store);
}

TEST_F(shard_rot, a_rotten_record_can_be_replaced_and_removed) {
  const made_shard s = make_shard(1, 0, 5'000);
  put(s);
  const std::string key = shard_record_key(target_id{1}, s.key());
  ASSERT_TRUE(records.flip(family::shard, key, 50, 1));
  put(s);
  EXPECT_TRUE(holds(*store, s));
  EXPECT_EQ(store->usage().shards, 1u);
  EXPECT_EQ(store->usage().payload, s.payload.size());
  ASSERT_TRUE(records.flip(family::shard, key, 50, 1));
  EXPECT_EQ(*store->remove(s.extent.id, 0), 1u);
  EXPECT_EQ(store->stat(s.extent.id, 0).error().code, errc::not_found);
  EXPECT_EQ(store->usage().shards, 0u);
  store.reset();
  store = opened(device, records);
  EXPECT_EQ(store->usage().allocated, 0u);
  EXPECT_EQ(store->usage().payload, 0u);
  expect_exact(*store);
}

TEST_F(shard_rot, the_record_of_the_device_is_made_again) {
  const made_shard s = make_shard(1, 0, 5'000);
  put(s);
  const device_uuid before = store->device();
  ASSERT_TRUE(records.flip(family::meta, device_record_key(target_id{1}), 3, 1));
  store.reset();
  store = opened(device, records);
  EXPECT_TRUE(store->report().rebuilt);
  EXPECT_EQ(store->device(), before);
  EXPECT_TRUE(holds(*store, s));
}

TEST_F(shard_rot, a_blank_disk_under_old_records_is_refused_unless_it_is_said_to_be_new) {
  const made_shard s = make_shard(1, 0, 5'000);
  put(s);
  store.reset();
  memory_disk blank;
  const auto refused = shard_store::open(blank, records, small_device());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::unavailable);
  EXPECT_NE(refused.error().message.find("mounted"), std::string::npos) << refused.error().message;
  // Mounted after all: nothing is missing.
  store = opened(device, records);
  EXPECT_TRUE(holds(*store, s));
  store.reset();
  shard_store_options o = small_device();
  o.accept_blank_disk = true;
  store = opened(blank, records, o);
  EXPECT_EQ(store->report().dropped_records, 1u);
  EXPECT_EQ(store->usage().allocated, 0u);
  put(s);
  EXPECT_TRUE(holds(*store, s));
  store.reset();
  // A rebuild that was cut has removed the records already: still no blank disk.
  cutter hook(2);
  o = small_device();
  o.crash = &hook;
  store = opened(blank, records, o);
  EXPECT_THROW((void)store->rebuild(), cut_here);
  store.reset();
  memory_disk other;
  EXPECT_EQ(shard_store::open(other, records, small_device()).error().code, errc::unavailable);
  store = opened(blank, records);
  EXPECT_TRUE(store->report().rebuilt);
  EXPECT_TRUE(holds(*store, s));
}

TEST_F(shard_rot, a_device_that_never_held_a_shard_opens_whatever_happened) {
  ASSERT_TRUE(store->rebuild());
  EXPECT_TRUE(store->report().rebuilt);
  store.reset();
  store = opened(device, records);
  ASSERT_TRUE(store);
  EXPECT_EQ(store->usage().shards, 0u);
}

TEST_F(shard_rot, a_chunk_of_another_device_is_refused) {
  put(make_shard(1, 0, 5'000));
  memory_disk other_device;
  memory_db other_records;
  shard_store_options o = small_device();
  o.new_device.fill(0xd2);
  {
    auto other = opened(other_device, other_records, o);
    const made_shard s = make_shard(2, 0, 5'000);
    ASSERT_TRUE(other->put(s.extent, 0, s.payload));
  }
  // Both disks in one directory, as after a careless copy.
  ASSERT_TRUE(other_device.create(9, 1 << 20));
  const aligned_buffer chunk(1 << 20);
  ASSERT_TRUE(device.read(0, 0, chunk.bytes()) && other_device.write(9, 0, chunk.bytes()));
  for (memory_db fresh; db * d : {static_cast<db*>(&other_records), static_cast<db*>(&fresh)}) {
    const auto r = shard_store::open(other_device, *d, o);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, errc::unavailable) << r.error().message;
  }
}

TEST_F(shard_rot, a_write_that_the_disk_lost_is_noticed) {
  const made_shard a = make_shard(1, 0, 9'000), b = make_shard(2, 0, 9'000);
  put(a);
  device.lose_next(0);
  put(b);  // the disk says that all is well
  std::vector<std::byte> out(10);
  EXPECT_EQ(store->read(b.extent.id, 0, 0, out).error().code, errc::corrupt);
  EXPECT_EQ(store->check(b.extent.id, 0).error().code, errc::corrupt);
  EXPECT_TRUE(holds(*store, a));
}

// A removal whose wipe failed leaves its footer. What a newer shard left of the payload decides.
TEST_F(shard_rot, remains_of_older_shards_are_not_taken_for_shards) {
  const made_shard old = make_shard(1, 0, 9'000), newer = make_shard(2, 0, 500, 1);
  put(old);
  ASSERT_EQ(store->stat(old.extent.id, 0)->first_run, 1u);
  device.fail_writes(error{errc::io, "made to fail"});
  ASSERT_TRUE(store->remove(old.extent.id, 0));
  device.fail_writes(std::nullopt);
  {
    // Nothing has touched it yet: a rebuild finds it again, whole.
    memory_db fresh;
    const auto same_disk = device.copy();
    const auto found = opened(*same_disk, fresh);
    EXPECT_EQ(found->report().shards, 1u);
  }
  store.reset();
  store = opened(device, records);
  put(newer);  // over the first run of the old one
  ASSERT_EQ(store->stat(newer.extent.id, 0)->first_run, 1u);
  {
    memory_db fresh;
    auto found = rebuilt(fresh);
    EXPECT_EQ(found->report().superseded, 1u);
    EXPECT_EQ(found->report().shards, 1u);
    EXPECT_TRUE(holds(*found, newer));
    expect_exact(*found);
  }
  store = opened(device, records);
  ASSERT_TRUE(store->remove(newer.extent.id, 0));
  memory_db fresh;
  auto found = rebuilt(fresh);
  EXPECT_EQ(found->report().rotten, 1u);
  EXPECT_EQ(found->report().shards, 0u);
  EXPECT_EQ(found->usage().allocated, 0u);
}

TEST_F(shard_rot, of_two_versions_of_a_shard_the_newer_one_is_found) {
  made_shard s = make_shard(1, 0, 9'000);
  put(s);
  // Another chunk for the second version: the first one is filled up.
  for (uint64_t i = 10; store->usage().chunks < 2; ++i) put(make_shard(i, 0, 100'000));
  s.extent.epoch = storage_epoch{50};
  const uint64_t before = device.writes();
  device.lose_next(1);  // the wipe of the old footer
  put(s);
  ASSERT_EQ(device.writes(), before + 2);
  const auto listed = all_of(*store);
  memory_db fresh;
  auto found = rebuilt(fresh);
  EXPECT_EQ(found->report().superseded, 1u);
  EXPECT_TRUE(holds(*found, s));
  EXPECT_EQ(all_of(*found), listed);
  expect_exact(*found);
  // The loser's footer is gone: the next rebuild has nothing to choose.
  ASSERT_TRUE(found->rebuild());
  EXPECT_EQ(found->report().superseded, 0u);
  EXPECT_EQ(all_of(*found), listed);
}

TEST_F(shard_rot, of_two_records_for_the_same_runs_the_newer_one_stays) {
  const made_shard a = make_shard(1, 0, 9'000), b = make_shard(2, 0, 9'000), c = make_shard(3, 0, 9'000);
  put(a);
  std::string stale;
  ASSERT_TRUE(*records.get(family::shard, shard_record_key(target_id{1}, a.key()), stale));
  ASSERT_TRUE(store->remove(a.extent.id, 0));
  store.reset();
  store = opened(device, records);
  put(b);
  put(c);
  ASSERT_EQ(store->stat(b.extent.id, 0)->first_run, 1u);
  write_batch batch;
  batch.put(family::shard, shard_record_key(target_id{1}, a.key()), stale);
  ASSERT_TRUE(records.write(batch, sync_write::no));
  store.reset();
  store = opened(device, records);
  EXPECT_EQ(store->report().dropped_records, 1u);
  EXPECT_EQ(store->stat(a.extent.id, 0).error().code, errc::not_found);
  EXPECT_TRUE(holds(*store, b));
  EXPECT_TRUE(holds(*store, c));
  expect_exact(*store);
}

// A disk that cannot read some bytes until they are written again.
struct scratched_disk final : disk {
  memory_disk& d;
  uint64_t from, bytes;
  scratched_disk(memory_disk& x, uint64_t f, uint64_t n) : d(x), from(f), bytes(n) {}
  result<std::vector<uint32_t>> chunks() override { return d.chunks(); }
  result<void> create(uint32_t c, uint64_t b) override { return d.create(c, b); }
  result<uint64_t> size(uint32_t c) override { return d.size(c); }
  result<void> write(uint32_t c, uint64_t o, std::span<const std::byte> b) override {
    if (o <= from && from + bytes <= o + b.size()) bytes = 0;
    return d.write(c, o, b);
  }
  result<void> read(uint32_t c, uint64_t o, std::span<std::byte> b) override {
    if (o < from + bytes && from < o + b.size()) return fail(errc::io, "unreadable");
    return d.read(c, o, b);
  }
  result<void> sync(uint32_t c) override { return d.sync(c); }
  result<void> remove(uint32_t c) override { return d.remove(c); }
  std::string name() const override { return "scratched"; }
};

// A chunk file that somebody cut: whole again after one open, its shards rotten, all others untouched.
TEST(shard_rot_files, a_cut_chunk_file_gets_its_size_back_once) {
  for (const bool with_records : {true, false}) {
    for (const uint64_t left : {0, 100, 4'096, 5'000, 8'192, 500'000}) {
      SCOPED_TRACE(fmt::format("{} bytes left, records {}", left, with_records));
      std::string dir = (std::filesystem::temp_directory_path() / "troupe-rot-XXXXXX").string();
      ASSERT_NE(::mkdtemp(dir.data()), nullptr);
      memory_db records, none;
      const made_shard first = make_shard(1, 0, 200'000), second = make_shard(2, 0, 900'000);
      {
        auto d = *open_file_disk(dir);
        auto store = opened(*d, records);
        for (const made_shard* s : {&first, &second}) ASSERT_TRUE(store->put(s->extent, s->shard, s->payload));
        ASSERT_EQ(store->stat(first.extent.id, 0)->chunk, 0u);
        ASSERT_EQ(store->stat(second.extent.id, 0)->chunk, 1u);
      }
      std::filesystem::resize_file(dir + "/chunk-00000000", left);
      db& database = with_records ? static_cast<db&>(records) : none;
      for (const uint64_t repaired : {1, 0}) {
        auto d = *open_file_disk(dir);
        auto store = opened(*d, database);
        ASSERT_TRUE(store);
        EXPECT_EQ(store->report().repaired_headers, repaired);
        EXPECT_EQ(*d->size(0), 1u << 20);
        EXPECT_TRUE(holds(*store, second));
        const auto checked = store->check(first.extent.id, 0);
        if (left >= 300'000) {
          EXPECT_TRUE(holds(*store, first));
          continue;
        }
        ASSERT_FALSE(checked);
        EXPECT_EQ(checked.error().code, with_records ? errc::corrupt : errc::not_found);
        if (repaired == 1) continue;
        ASSERT_TRUE(store->put(first.extent, 0, first.payload));  // what scrub does
        EXPECT_TRUE(holds(*store, first));
        expect_exact(*store);
      }
      std::filesystem::remove_all(dir);
    }
  }
}

TEST_F(shard_rot, an_unreadable_header_is_written_again) {
  const made_shard s = make_shard(1, 0, 5'000);
  put(s);
  store.reset();
  scratched_disk bad(device, 0, run_bytes);
  store = opened(bad, records);
  ASSERT_TRUE(store);
  EXPECT_EQ(store->report().repaired_headers, 1u);
  EXPECT_TRUE(holds(*store, s));
  store.reset();
  scratched_disk again(device, 0, run_bytes);
  memory_db fresh;
  auto found = opened(again, fresh);
  ASSERT_TRUE(found);
  EXPECT_TRUE(holds(*found, s));
}

TEST_F(shard_rot, unreadable_places_cost_only_their_own_shards) {
  std::vector<made_shard> all;
  for (uint64_t i = 0; i < 40; ++i) all.push_back(make_shard(i, 0, 9'000));
  for (const made_shard& s : all) put(s);
  const shard_footer bad = *store->stat(all[7].extent.id, 0);
  scratched_disk scratched(device, uint64_t{bad.first_run} * run_bytes, run_bytes);
  store.reset();
  memory_db fresh;
  auto found = opened(scratched, fresh);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->report().shards, 39u);
  for (size_t i = 0; i < all.size(); ++i)
    if (i != 7) {
      EXPECT_TRUE(holds(*found, all[i])) << i;
    }
  EXPECT_EQ(found->stat(all[7].extent.id, 0).error().code, errc::not_found);
}

}  // namespace
}  // namespace troupe::kv
