// A store in a directory over time: an older index put back, targets that come and go, a file system that cannot be
// written.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "kv/index/rocks_db.hpp"
#include "kv/store/directory_members.hpp"
#include "runtime/base/clock.hpp"
#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

struct cut final : crash_hook {
  std::string at;
  struct cut_here {};
  void reach(std::string_view point) override {
    if (point == at) throw cut_here{};
  }
};

struct upkeep_fixture : ::testing::Test {
  std::string top = fs::temp_directory_path() / ("troupe-kv-upkeep-" + std::to_string(getpid()));
  std::string dir = top + "/store";
  std::vector<made_chain> chains;
  upkeep_fixture() {
    fs::remove_all(top);
    fs::create_directories(top);
  }
  ~upkeep_fixture() override { fs::remove_all(top); }
  directory_options options(bool create = false) const {
    directory_options o;
    o.dir = dir;
    o.create = create;
    o.chunk_bytes = 1 << 20;
    o.capacity_bytes = 64 << 20;
    o.io_threads = 2;
    return o;
  }
  std::unique_ptr<directory_store> open(bool read_only = false) {
    auto o = options(chains.empty());
    o.read_only = read_only;
    auto s = directory_store::open(o);
    EXPECT_TRUE(s) << s.error().message;
    return s ? std::move(*s) : nullptr;
  }
  void put(directory_store& s, size_t blocks = 20) {
    chains.emplace_back(test_seed() + chains.size(), blocks, 3000);
    const auto r = s.put(chains.back().put());
    ASSERT_TRUE(r) << r.error().message;
  }
  void put(size_t blocks = 20) { put(*open(), blocks); }
  void expect_all(directory_store& s) {
    for (const auto& c : chains) {
      get_chain_request r;
      std::vector<std::vector<std::byte>> memory;
      for (const auto& b : c.blocks) memory.emplace_back(b.size());
      r.chain = c.hashes;
      for (auto& m : memory) r.into.emplace_back(m);
      auto got = s.get(std::move(r));
      ASSERT_TRUE(got);
      ASSERT_EQ(got->blocks, c.blocks.size()) << (got->stopped ? got->stopped->message : "");
      ASSERT_TRUE(memory == c.blocks);
    }
  }
  scrub_report scrub(directory_store& s, bool repair = false) {
    scrub_options o;
    o.repair = repair;
    o.orphan_grace_s = 0;
    auto r = s.scrub(o);
    EXPECT_TRUE(r) << r.error().message;
    return r.value_or(scrub_report{});
  }
  void expect_clean() {
    auto s = open(true);
    const auto r = scrub(*s);
    EXPECT_TRUE(r.clean()) << first_note(r);
    expect_all(*s);
  }
  std::string note_of(directory_store& s) { return s.notes().empty() ? "" : s.notes().front(); }
};
using upkeep = upkeep_fixture;

TEST_F(upkeep, an_older_index_that_is_put_back_is_noticed_and_rebuilt) {
  put();
  fs::copy(dir + "/index", top + "/old", fs::copy_options::recursive);
  put();
  put();
  fs::remove_all(dir + "/index");
  fs::copy(top + "/old", dir + "/index", fs::copy_options::recursive);
  auto o = options();
  o.read_only = true;
  auto look = directory_store::open(o);  // changes nothing, so it says so
  ASSERT_FALSE(look);
  EXPECT_EQ(look.error().code, errc::stale);
  EXPECT_NE(look.error().message.find("older copy"), std::string::npos) << look.error().message;
  {
    auto s = open();
    EXPECT_NE(note_of(*s).find("older copy"), std::string::npos) << note_of(*s);
    ASSERT_TRUE(s->rebuilt());
    expect_all(*s);
    // One that is taken while the store is open.
    fs::copy(dir + "/index", top + "/open", fs::copy_options::recursive);
    put(*s);
  }
  expect_clean();
  fs::remove_all(dir + "/index");
  fs::copy(top + "/open", dir + "/index", fs::copy_options::recursive);
  EXPECT_TRUE(open()->rebuilt());
  expect_clean();
  EXPECT_FALSE(open()->rebuilt());
  // A target of another store does not make this index old.
  const std::string other = top + "/other";
  auto strange = options(true);
  strange.dir = other;
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(directory_store::open(strange));
  fs::copy_file(other + "/target-0001/generation", dir + "/target-0001/generation",
                fs::copy_options::overwrite_existing);
  EXPECT_FALSE(open()->rebuilt());
}

// A store that is open for long: its targets move on, so that an index from a minute ago is an older one.
TEST_F(upkeep, the_step_count_grows_while_the_store_is_open) {
  auto o = options(true);
  o.maintain_every = std::chrono::milliseconds(1);
  auto s = directory_store::open(o);
  ASSERT_TRUE(s) << s.error().message;
  const auto mark = [&] { return generations::in_folder(dir + "/target-0003").value_or(0); };
  const auto begin = mark();
  const auto until = steady_clock().now() + std::chrono::seconds(30);
  while (mark() < begin + 3 && steady_clock().now() < until) std::this_thread::yield();
  EXPECT_GE(mark(), begin + 3);
}

TEST_F(upkeep, an_older_disk_that_is_put_back_is_noticed_and_filled) {
  put();
  fs::copy(dir + "/target-0002", top + "/old", fs::copy_options::recursive);
  put();
  put();
  EXPECT_TRUE(open()->notes().empty());
  fs::remove_all(dir + "/target-0002");
  fs::copy(top + "/old", dir + "/target-0002", fs::copy_options::recursive);
  {
    auto s = open();
    EXPECT_NE(note_of(*s).find("its disk is an older copy"), std::string::npos) << note_of(*s);
    expect_all(*s);
    EXPECT_GT(scrub(*s, true).rebuilt, 0u);
  }
  expect_clean();
  EXPECT_TRUE(open()->notes().empty());
}

// A damaged record goes before its extent comes back from the shards. Stopped in between, the store knows that.
TEST_F(upkeep, a_repair_of_the_index_that_is_cut_goes_on) {
  for (int i = 0; i < 3; ++i) put(5);
  {
    rocks_options r;
    r.path = dir + "/index";
    auto d = open_rocks_db(r);
    ASSERT_TRUE(d) << d.error().message;
    std::string key, value;
    auto at = (*d)->scan(family::extent, "");
    ASSERT_TRUE(at);
    for (; (*at)->valid(); (*at)->next()) key = (*at)->key(), value = (*at)->value();  // the last one of the walk
    value[value.size() / 2] = static_cast<char>(value[value.size() / 2] ^ 1);
    write_batch b;
    b.put(family::extent, key, value);
    ASSERT_TRUE((*d)->write(b, sync_write::yes));
  }
  {
    auto s = open();
    scrub_options o;
    o.repair = true;
    o.orphan_grace_s = 0;
    o.window = 1;  // one extent after the other
    o.stop = std::make_shared<std::atomic<bool>>(false);
    o.progress = [&](const scrub_report&) { *o.stop = true; };
    const auto r = s->scrub(o);
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_TRUE(r->stopped);
    EXPECT_GT(r->index_findings, 0u);
    EXPECT_EQ(r->restored, 0u);
  }
  auto s = open();
  ASSERT_TRUE(s->rebuilt());
  EXPECT_EQ(s->rebuilt()->restored, 1u);
  expect_all(*s);
  s.reset();
  expect_clean();
}

// What the records do not name is found by reading: here the records of one target are of another time.
TEST_F(upkeep, shards_outside_of_all_records_are_found_and_taken_in) {
  put();
  {
    auto s = open();
    ASSERT_TRUE(s->forget(target_id{2}));  // as if the database had lost them; the device is still known below
  }
  // Its records are made again at the open, so the loss is undone: nothing to find.
  {
    auto s = open();
    scrub_options how;
    auto found = s->find_unrecorded(false, how);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->shards, 0u);
  }
  // An index as it was before the second put, in which the marks cannot help.
  fs::copy(dir + "/index", top + "/old", fs::copy_options::recursive);
  put();
  fs::remove_all(dir + "/index");
  fs::copy(top + "/old", dir + "/index", fs::copy_options::recursive);
  for (const char* t : {"1", "2", "3"}) fs::remove(dir + "/target-000" + t + "/generation");
  auto o = options();
  o.maintain_every = nanoseconds{0};
  auto s = directory_store::open(o);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_FALSE((*s)->rebuilt());
  EXPECT_TRUE(scrub(**s).clean()) << "a scrub reads what is recorded";
  scrub_options how;
  how.orphan_grace_s = 0;
  auto found = (*s)->find_unrecorded(false, how);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->shards, 6u);
  EXPECT_FALSE(found->repaired);
  found = (*s)->find_unrecorded(true, how);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->repaired->restored, 2u);
  expect_all(**s);
  s->reset();
  expect_clean();
}

TEST_F(upkeep, a_store_that_cannot_be_written_can_be_read) {
  put();
  put(3);
  const auto lock = [&](bool on) {
    for (const auto& f : fs::recursive_directory_iterator(dir))
      fs::permissions(
          f, f.is_directory() ? (on ? fs::perms(0555) : fs::perms(0755)) : (on ? fs::perms(0444) : fs::perms(0644)));
    fs::permissions(dir, on ? fs::perms(0555) : fs::perms(0755));
  };
  std::map<std::string, fs::file_time_type> before;
  for (const auto& f : fs::recursive_directory_iterator(dir)) before[f.path()] = f.last_write_time();
  lock(true);
  {
    auto s = open(true);
    ASSERT_TRUE(s);
    expect_all(*s);
    EXPECT_EQ(s->match(chains[0].hashes).value_or(0), 20u);
    EXPECT_TRUE(scrub(*s).clean());
    made_chain more(test_seed() + 90, 2, 100);
    auto refused = s->put(more.put());
    ASSERT_FALSE(refused);
    auto second = open(true);  // several may look at once
    ASSERT_TRUE(second);
    expect_all(*second);
  }
  lock(false);
  for (const auto& f : fs::recursive_directory_iterator(dir)) {
    ASSERT_TRUE(before.contains(f.path())) << f.path() << " is new";
    EXPECT_EQ(before[f.path()], f.last_write_time()) << f.path();
  }
  auto writer = open();
  auto o = options();
  o.read_only = true;
  auto look = directory_store::open(o);
  ASSERT_FALSE(look);
  EXPECT_EQ(look.error().code, errc::unavailable);
}

TEST_F(upkeep, targets_are_added_drained_and_removed) {
  put();
  put(40);
  ASSERT_FALSE(drain_targets(dir, {target_id{2}}, true)) << "three targets are what 2+1 needs";
  auto added = add_targets(dir, 2);
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(*added, (std::vector<target_id>{target_id{4}, target_id{5}}));
  put(60);
  EXPECT_EQ(remove_target(options(), target_id{2}).error().code, errc::invalid_argument);
  ASSERT_TRUE(drain_targets(dir, {target_id{2}}, true));
  {
    auto s = open();
    EXPECT_EQ(s->layout().epoch, storage_epoch{3});
    EXPECT_GT(s->usage(target_id{4})->shards + s->usage(target_id{5})->shards, 0u);
    const uint64_t there = s->usage(target_id{2})->shards;
    EXPECT_GT(there, 0u);
    EXPECT_EQ(scrub(*s).draining, there);
    EXPECT_TRUE(scrub(*s).clean()) << "being drained is no fault";
  }
  EXPECT_EQ(remove_target(options(), target_id{2}).error().code, errc::invalid_argument) << "it has shards";
  {
    auto s = open();
    const auto moved = scrub(*s, true);
    EXPECT_TRUE(moved.repaired()) << first_note(moved);
    EXPECT_GT(moved.relocated, 0u);
    EXPECT_EQ(s->usage(target_id{2})->shards, 0u);
    put(*s, 30);
    EXPECT_EQ(s->usage(target_id{2})->shards, 0u) << "gets nothing new";
    expect_all(*s);
  }
  expect_clean();
  const auto gone = remove_target(options(), target_id{2});
  ASSERT_TRUE(gone) << gone.error().message;
  EXPECT_FALSE(fs::exists(dir + "/target-0002"));
  expect_clean();
  EXPECT_EQ(remove_target(options(), target_id{2}).error().code, errc::invalid_argument);
  EXPECT_EQ(remove_target(options(), target_id{9}).error().code, errc::invalid_argument);
  // A number is not used again, and the index finds its shards without the one that went.
  EXPECT_EQ(add_targets(dir, 1).value_or(std::vector<target_id>{}), std::vector<target_id>{target_id{6}});
  fs::remove_all(dir + "/index");
  open();
  expect_clean();
}

// Cut after every step of each change: what is there is a whole store, before or after it, and the change can be made.
TEST_F(upkeep, a_change_of_targets_that_is_cut_can_be_made_again) {
  put();
  const auto cut_at = [&](std::string_view point, auto change) {
    cut c;
    c.at = point;
    EXPECT_THROW((void)change(&c), cut::cut_here) << point;
    SCOPED_TRACE(std::string(point));
    expect_clean();
  };
  const auto count = [&] { return open(true)->layout().targets; };
  cut_at("members.folders_made", [&](crash_hook* h) { return add_targets(dir, 1, h).has_value(); });
  EXPECT_EQ(count(), 3u);
  cut_at("members.layout_written", [&](crash_hook* h) { return add_targets(dir, 1, h).has_value(); });
  EXPECT_EQ(count(), 4u);
  cut_at("members.layout_written",
         [&](crash_hook* h) { return drain_targets(dir, {target_id{1}}, true, h).has_value(); });
  EXPECT_TRUE(open(true)->layout().members()[0].draining);
  ASSERT_TRUE(scrub(*open(), true).repaired());
  cut_at("members.layout_written",
         [&](crash_hook* h) { return remove_target(options(), target_id{1}, h).has_value(); });
  EXPECT_EQ(count(), 3u);
  cut_at("members.forgotten", [&](crash_hook* h) { return remove_target(options(), target_id{1}, h).has_value(); });
  EXPECT_TRUE(fs::exists(dir + "/target-0001"));
  EXPECT_TRUE(remove_target(options(), target_id{1}));
  EXPECT_FALSE(fs::exists(dir + "/target-0001"));
  expect_clean();
}

// Folders in each other's places, or an empty one: refused, until told to take them as they are.
TEST_F(upkeep, folders_can_be_taken_as_they_are) {
  put();
  const auto swap = [&] {
    fs::rename(dir + "/target-0001", top + "/x");
    fs::rename(dir + "/target-0002", dir + "/target-0001");
    fs::rename(top + "/x", dir + "/target-0002");
  };
  swap();
  {
    auto s = open();
    EXPECT_EQ(s->absent().size(), 2u);
    EXPECT_NE(note_of(*s).find("targets renew"), std::string::npos) << note_of(*s);
  }
  auto o = options();
  o.renew = {1, 2};
  {
    auto s = directory_store::open(o);
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_TRUE((*s)->absent().empty()) << note_of(**s);
    const auto r = scrub(**s, true);
    EXPECT_TRUE(r.repaired()) << first_note(r);
    EXPECT_EQ(r.rebuilt, 0u) << "all is there, in other places";
  }
  expect_clean();
  for (const auto& f : fs::directory_iterator(dir + "/target-0003")) fs::remove(f);
  {
    auto s = open();
    EXPECT_EQ(s->absent().size(), 1u);
    EXPECT_NE(note_of(*s).find("targets renew"), std::string::npos) << note_of(*s);
  }
  o.renew = {3};
  {
    auto s = directory_store::open(o);
    ASSERT_TRUE(s);
    EXPECT_TRUE(scrub(**s, true).repaired());
  }
  expect_clean();
}

// The index and more than m targets gone: what is left of the blocks is kept, and is of use when the targets are back.
TEST_F(upkeep, a_lost_index_gives_up_nothing_while_targets_are_away) {
  put();
  put(40);
  fs::remove_all(dir + "/index");
  for (const char* t : {"/target-0001", "/target-0002"}) fs::rename(dir + t, top + t);
  {
    auto s = open();
    ASSERT_TRUE(s->rebuilt());
    EXPECT_EQ(s->rebuilt()->lost_blocks, 60u);
    EXPECT_EQ(s->rebuilt()->removed_orphans, 0u);
  }
  for (int i = 0; i < 2; ++i) {
    auto o = options();
    o.remake_missing = true;  // only as many as the code can do without, which two are not
    auto s = std::move(*directory_store::open(o));
    EXPECT_FALSE(s->rebuilt()) << "not again at every open";
    EXPECT_EQ(s->absent().size(), 2u);
    const auto r = scrub(*s, true);
    EXPECT_FALSE(r.repaired());
    EXPECT_EQ(r.removed_orphans, 0u);
    EXPECT_EQ(r.lost_blocks, 60u);
  }
  fs::rename(top + "/target-0001", dir + "/target-0001");
  EXPECT_TRUE(open()->rebuilt());  // one is back, which is enough
  expect_all(*open());
  fs::rename(top + "/target-0002", dir + "/target-0002");
  EXPECT_TRUE(scrub(*open(), true).repaired());
  expect_clean();
  // With new disks in their place the loss is for good, but only when that is said.
  fs::remove_all(dir + "/index");
  for (const char* t : {"/target-0001", "/target-0002"}) fs::remove_all(dir + t);
  auto o = options();
  o.remake_missing = o.give_up_missing = true;
  auto s = directory_store::open(o);
  ASSERT_TRUE(s);
  const auto kept = scrub(**s, true);
  EXPECT_EQ(kept.removed_orphans, 0u);
  EXPECT_FALSE(kept.repaired());
  scrub_options drop;
  drop.repair = drop.drop_lost = true;
  drop.orphan_grace_s = 0;
  const auto dropped = (*s)->scrub(drop);
  ASSERT_TRUE(dropped);
  EXPECT_TRUE(dropped->repaired()) << first_note(*dropped);
  EXPECT_GT(dropped->dropped, 0u);
  chains.clear();
  EXPECT_TRUE(scrub(**s).clean());
}

}  // namespace
}  // namespace troupe::kv
