// The contract of the database, on both implementations; then what only a directory can suffer.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/stat.h>

#include <fstream>

#include "kv/index/memory_db.hpp"
#include "kv/index/rocks_db.hpp"
#include "tests/kv/index/made_chain.hpp"
#include "tests/support/child_process.hpp"

namespace troupe::kv {
namespace {

using testing_support::temp_dir;
using troupe::testing_support::child_process;

class db_test : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "memory") {
      db_ = std::make_unique<memory_db>();
    } else {
      auto r = open_rocks_db(
          {.path = dir_.path() + "/db", .wal = std::string(GetParam()) == "rocks" ? wal_mode::on : wal_mode::off});
      ASSERT_TRUE(r) << r.error().message;
      db_ = std::move(*r);
    }
  }
  std::string get(family f, std::string_view key) {
    std::string v;
    const auto r = db_->get(f, key, v);
    EXPECT_TRUE(r);
    return r && *r ? v : "(none)";
  }
  std::string all(family f, std::string_view from = "") {
    std::string out;
    auto at = db_->scan(f, from);
    EXPECT_TRUE(at);
    for (; (*at)->valid(); (*at)->next()) out += std::string((*at)->key()) + "=" + std::string((*at)->value()) + " ";
    EXPECT_TRUE((*at)->status());
    return out;
  }
  temp_dir dir_;
  std::unique_ptr<db> db_;
};

INSTANTIATE_TEST_SUITE_P(dbs, db_test, ::testing::Values("memory", "rocks", "rocks_without_wal"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(db_test, batches_and_families) {
  write_batch b;
  b.put(family::block, "k", "1");
  b.put(family::block, "k", "2");  // the later one wins
  b.put(family::extent, "k", "x");
  b.put(family::block, "gone", "1");
  b.erase(family::block, "gone");
  b.erase(family::meta, "never there");
  b.put(family::shard, "", "empty key");
  b.put(family::shard, "v", "");
  EXPECT_EQ(b.size(), 8u);
  ASSERT_TRUE(db_->write(b, sync_write::yes));
  EXPECT_EQ(get(family::block, "k"), "2");
  EXPECT_EQ(get(family::extent, "k"), "x");
  EXPECT_EQ(get(family::block, "gone"), "(none)");
  EXPECT_EQ(get(family::meta, "k"), "(none)");
  EXPECT_EQ(get(family::shard, "v"), "");
  EXPECT_EQ(all(family::shard), "=empty key v= ");
  const std::vector<std::string_view> keys{"k", "nothing", "k"};
  std::vector<std::optional<std::string>> values;
  ASSERT_TRUE(db_->multi_get(family::block, keys, values));
  EXPECT_EQ(values, (std::vector<std::optional<std::string>>{"2", std::nullopt, "2"}));
  ASSERT_TRUE(db_->sync());
}

TEST_P(db_test, a_walk_is_in_the_order_of_unsigned_bytes_and_survives_changes) {
  write_batch b;
  for (const std::string& key :
       {std::string("\xff"), std::string("\x7f"), std::string("\0", 1), std::string("a"), std::string("b")})
    b.put(family::meta, key, "1");
  ASSERT_TRUE(db_->write(b, sync_write::no));
  EXPECT_EQ(all(family::meta), std::string("\0=1 a=1 b=1 \x7f=1 \xff=1 ", 20));
  EXPECT_EQ(all(family::meta, "aa"), "b=1 \x7f=1 \xff=1 ");
  auto at = db_->scan(family::meta, "a");
  ASSERT_TRUE(at);
  write_batch more;
  more.erase(family::meta, "a");
  more.put(family::meta, "b0", "new");
  ASSERT_TRUE(db_->write(more, sync_write::no));
  EXPECT_EQ((*at)->key(), "a");
  (*at)->next();
  EXPECT_EQ((*at)->key(), "b");
  while ((*at)->valid()) (*at)->next();
  EXPECT_TRUE((*at)->status());
}

TEST_P(db_test, clear_takes_one_family) {
  write_batch b;
  for (int i = 0; i < 300; ++i)
    b.put(family::expiry, std::string(28, static_cast<char>(i)), "1"), b.put(family::shard, fmt::format("{}", i), "1");
  b.put(family::expiry, std::string(40, '\xff'), "1");
  ASSERT_TRUE(db_->write(b, sync_write::no));
  ASSERT_TRUE(db_->clear(family::expiry));
  EXPECT_EQ(all(family::expiry), "");
  EXPECT_EQ(get(family::shard, "7"), "1");
  write_batch again;
  again.put(family::expiry, "k", "1");
  ASSERT_TRUE(db_->write(again, sync_write::no));
  ASSERT_TRUE(db_->compact(family::expiry));
  EXPECT_EQ(all(family::expiry), "k=1 ");
}

TEST(memory_db_test, power_loss_takes_a_suffix_of_whole_batches) {
  for (size_t keep = 0; keep <= 3; ++keep) {
    memory_db database;
    const auto write = [&](const char* v, sync_write sync) {
      write_batch b;
      b.put(family::block, "a", v), b.put(family::block, v, v);
      ASSERT_TRUE(database.write(b, sync));
    };
    write("0", sync_write::yes);
    for (const char* v : {"1", "2", "3"}) write(v, sync_write::no);
    EXPECT_EQ(database.unsynced(), 3u);
    database.power_loss(keep);
    std::string v;
    ASSERT_TRUE(*database.get(family::block, "a", v));
    EXPECT_EQ(v, std::to_string(keep));
    for (size_t i = 0; i <= 3; ++i) EXPECT_EQ(*database.get(family::block, std::to_string(i), v), i <= keep);
    EXPECT_EQ(database.unsynced(), 0u);
  }
}

TEST(rocks_test, a_directory_that_is_in_use_is_refused) {
  temp_dir dir;
  const rocks_options o{.path = dir.path() + "/db"};
  auto first = open_rocks_db(o);
  ASSERT_TRUE(first);
  const auto second = open_rocks_db(o);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, errc::unavailable);
  EXPECT_NE(second.error().message.find("stop the process"), std::string::npos) << second.error().message;
  first->reset();
  EXPECT_TRUE(open_rocks_db(o));
}

TEST(rocks_test, options_and_places_that_cannot_work_are_refused) {
  temp_dir dir;
  EXPECT_EQ(open_rocks_db({}).error().code, errc::invalid_argument);
  EXPECT_EQ(open_rocks_db({.path = dir.path() + "/db", .background_jobs = 0}).error().code, errc::invalid_argument);
  EXPECT_EQ(open_rocks_db({.path = dir.path() + "/db", .block_cache_bytes = 5}).error().code, errc::invalid_argument);
  std::ofstream(dir.path() + "/file") << "x";
  EXPECT_EQ(open_rocks_db({.path = dir.path() + "/file"}).error().code, errc::io);
}

TEST(rocks_test, a_disk_without_room_refuses_writing_and_opening_but_not_reading) {
  temp_dir dir;
  const std::string path = dir.path() + "/db";
  write_batch b;
  b.put(family::block, "k", "1");
  {
    auto first = open_rocks_db({.path = path});
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE((*first)->write(b, sync_write::no));
  }
  {
    auto full = open_rocks_db({.path = path, .least_room_to_write = UINT64_MAX});
    ASSERT_TRUE(full) << full.error().message;
    const auto refused = (*full)->write(b, sync_write::no);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, errc::exhausted);
    EXPECT_NE(refused.error().message.find("make room"), std::string::npos) << refused.error().message;
    EXPECT_FALSE((*full)->clear(family::block));
    std::string v;
    const auto got = (*full)->get(family::block, "k", v);
    ASSERT_TRUE(got);
    EXPECT_TRUE(*got);
    EXPECT_EQ(v, "1");
  }
  for (const std::string& where : {path, dir.path() + "/new"}) {
    const auto refused = open_rocks_db({.path = where, .least_room_to_open = UINT64_MAX});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, errc::exhausted) << refused.error().message;
  }
  EXPECT_TRUE(open_rocks_db({.path = path}));
}

TEST(rocks_test, a_newer_version_is_not_opened) {
  temp_dir dir;
  const std::string path = dir.path() + "/db";
  { ASSERT_TRUE(open_rocks_db({.path = path})); }
  {
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, path, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const auto& n : names) families.emplace_back(n, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, path, families, &handles, &raw).ok());
    const std::unique_ptr<rocksdb::DB> database(raw);
    rocksdb::ColumnFamilyHandle* extra = nullptr;
    ASSERT_TRUE(database->CreateColumnFamily({}, "tomorrow", &extra).ok());
    handles.push_back(extra);
    for (auto* h : handles) ASSERT_TRUE(database->DestroyColumnFamilyHandle(h).ok());
  }
  const auto r = open_rocks_db({.path = path});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::unsupported);
  EXPECT_NE(r.error().message.find("tomorrow"), std::string::npos);
}

std::vector<std::filesystem::path> files(const std::string& dir, const std::string& part) {
  std::vector<std::filesystem::path> out;
  for (const auto& f : std::filesystem::directory_iterator(dir))
    if (f.path().filename().string().find(part) != std::string::npos) out.push_back(f.path());
  return out;
}

void flip(const std::filesystem::path& file, std::streamoff at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  char c = 0;
  f.get(c);
  f.seekp(at);
  f.put(static_cast<char>(c ^ 4));
  ASSERT_TRUE(f.good());
}

TEST(rocks_test, a_damaged_table_is_reported_and_its_records_are_missing) {
  using namespace testing_support;
  temp_dir dir;
  const std::string path = dir.path() + "/db";
  rng draw(6);
  const auto chain = made_chain(draw, 640);
  uint64_t id = 1;
  const auto extents = made_extents(chain, 0, 640, id);
  {
    auto database = open_rocks_db({.path = path});
    ASSERT_TRUE(database);
    ASSERT_TRUE(open_index(**database)->put(extents, start_s));
    for (const auto f : {family::block, family::extent, family::expiry}) ASSERT_TRUE((*database)->compact(f));
  }
  size_t damaged = 0;
  for (const auto& f : files(path, ".sst")) flip(f, 100), ++damaged;  // in the first data block of each
  EXPECT_GE(damaged, 3u);
  {
    auto database = open_rocks_db({.path = path});
    ASSERT_TRUE(database) << database.error().message;
    auto index = block_index::open(**database, {.hold_after_open = false}, start_s, {});
    // The expiry family cannot be counted: the index says so instead of starting with wrong numbers.
    ASSERT_FALSE(index);
    EXPECT_EQ(index.error().code, errc::corrupt);
    EXPECT_NE(index.error().message.find("rebuilt from the shards"), std::string::npos) << index.error().message;
  }
  // What one does then.
  std::filesystem::remove_all(path);
  auto database = open_rocks_db({.path = path});
  ASSERT_TRUE(database);
  auto index = open_index(**database);
  ASSERT_TRUE(index->restore(extents, start_s));
  EXPECT_EQ(index->match(slots_of(chain), UINT64_MAX, true, start_s)->first_missing, 640u);
}

TEST(rocks_test, a_damaged_part_of_a_family_does_not_hide_the_rest) {
  using namespace testing_support;
  temp_dir dir;
  const std::string path = dir.path() + "/db";
  rng draw(6);
  const auto chain = made_chain(draw, 640);
  uint64_t id = 1;
  {
    auto database = open_rocks_db({.path = path});
    ASSERT_TRUE(database);
    ASSERT_TRUE(open_index(**database)->put(made_extents(chain, 0, 640, id), start_s));
    ASSERT_TRUE((*database)->compact(family::block));
    const auto tables = files(path, ".sst");
    ASSERT_EQ(tables.size(), 1u);  // the other families are in the log
    flip(tables[0], 100);
  }
  auto database = open_rocks_db({.path = path});
  ASSERT_TRUE(database) << database.error().message;
  auto index = open_index(**database);
  const auto places = index->lookup(chain, start_s);
  ASSERT_TRUE(places);
  const auto found = std::count_if(places->begin(), places->end(), [](const auto& p) { return p.has_value(); });
  EXPECT_GT(found, 300);
  EXPECT_GT(index->stats(start_s).corrupt, 0u);
  index_cursor at{family::block, "", false};
  EXPECT_EQ(index->check(at, 1'000, false, start_s).error().code, errc::corrupt);
}

TEST(rocks_test, a_damaged_manifest_is_an_error_that_says_what_to_do) {
  temp_dir dir;
  const std::string path = dir.path() + "/db";
  {
    auto database = open_rocks_db({.path = path});
    ASSERT_TRUE(database);
    write_batch b;
    b.put(family::block, "k", "v");
    ASSERT_TRUE((*database)->write(b, sync_write::yes));
  }
  for (const auto& f : files(path, "MANIFEST")) flip(f, 20);
  const auto r = open_rocks_db({.path = path});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::corrupt) << r.error().message;
  EXPECT_NE(r.error().message.find("delete the directory"), std::string::npos);
}

// The process dies at any moment: with a log every acknowledged batch is there; without one a prefix is; and each is
// whole.
TEST(rocks_test, a_killed_process_leaves_whole_batches) {
  for (const bool wal : {true, false}) {
    SCOPED_TRACE(wal ? "log" : "no log");
    temp_dir dir;
    const std::string path = dir.path() + "/db";
    uint64_t acknowledged = 0;
    {
      child_process writer({TROUPE_ROCKS_WRITER, path, wal ? "on" : "off"});
      for (int i = 0; i < 20'000; ++i) {
        const auto line = writer.line(std::chrono::seconds(60));
        ASSERT_FALSE(line.empty());
        acknowledged = std::stoull(line) + 1;
      }
      writer.kill();
    }
    auto database = open_rocks_db({.path = path, .wal = wal ? wal_mode::on : wal_mode::off});
    ASSERT_TRUE(database) << database.error().message;
    uint64_t counts[2] = {0, 0};
    for (const family f : {family::block, family::extent}) {
      auto at = (*database)->scan(f, "");
      ASSERT_TRUE(at);
      for (; (*at)->valid(); (*at)->next()) {
        uint64_t n = 0;
        for (const char c : (*at)->key()) n = n << 8 | static_cast<uint8_t>(c);
        ASSERT_EQ(n, counts[static_cast<size_t>(f)]++);  // a prefix, without holes
      }
    }
    EXPECT_EQ(counts[0], counts[1]);
    EXPECT_GT(counts[0], 0u);
    if (wal) {
      EXPECT_GE(counts[0], acknowledged);
    }
  }
}

}  // namespace
}  // namespace troupe::kv
