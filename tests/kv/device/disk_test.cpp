#include "kv/device/disk.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kv/device/aligned_buffer.hpp"
#include "kv/device/memory_disk.hpp"

namespace troupe::kv {
namespace {

// A directory that goes away with the test.
struct scratch {
  std::string path;
  scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-disk-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

aligned_buffer filled(size_t bytes, int value) {
  aligned_buffer b(bytes);
  std::memset(b.data(), value, b.size());
  return b;
}

bool all_are(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

struct disk_test : ::testing::TestWithParam<bool> {
  scratch dir;
  std::unique_ptr<disk> d = GetParam() ? std::move(*open_file_disk(dir.path + "/kv")) : std::make_unique<memory_disk>();
};

TEST_P(disk_test, keeps_what_is_written) {
  std::printf("%s\n", d->name().c_str());
  EXPECT_TRUE(d->chunks()->empty());
  ASSERT_TRUE(d->create(7, 1 << 20));
  ASSERT_TRUE(d->create(2, 64 << 10));
  EXPECT_EQ(*d->chunks(), (std::vector<uint32_t>{2, 7}));
  EXPECT_EQ(*d->size(7), 1u << 20);
  const auto page = filled(8'192, 0x5a);
  const aligned_buffer out(1 << 20);
  ASSERT_TRUE(d->read(7, 0, out.bytes()));
  EXPECT_TRUE(all_are(out.bytes(), 0));
  ASSERT_TRUE(d->write(7, 12'288, page.bytes()));
  ASSERT_TRUE(d->sync(7));
  ASSERT_TRUE(d->read(7, 0, out.bytes()));
  EXPECT_TRUE(all_are(out.bytes().first(12'288), 0));
  EXPECT_TRUE(all_are(out.bytes().subspan(12'288, 8'192), 0x5a));
  EXPECT_TRUE(all_are(out.bytes().subspan(12'288 + 8'192), 0));
  ASSERT_TRUE(d->write(7, (1 << 20) - 4'096, page.bytes().first(4'096)));
  ASSERT_TRUE(d->remove(7));
  EXPECT_EQ(d->size(7).error().code, errc::not_found);
  EXPECT_EQ(*d->chunks(), (std::vector<uint32_t>{2}));
}

TEST_P(disk_test, refuses_what_its_contract_excludes) {
  ASSERT_TRUE(d->create(0, 64 << 10));
  const auto page = filled(8'192, 1);
  const auto code = [](const auto& r) { return r ? errc{} : r.error().code; };
  EXPECT_EQ(code(d->create(0, 64 << 10)), errc::invalid_argument);
  EXPECT_EQ(code(d->create(1, 0)), errc::invalid_argument);
  EXPECT_EQ(code(d->create(1, 5'000)), errc::invalid_argument);
  EXPECT_EQ(code(d->write(0, 512, page.bytes())), errc::invalid_argument);
  EXPECT_EQ(code(d->write(0, 0, page.bytes().first(512))), errc::invalid_argument);
  EXPECT_EQ(code(d->write(0, 0, page.bytes().subspan(512, 4'096))), errc::invalid_argument);
  EXPECT_EQ(code(d->write(0, (64 << 10) - 4'096, page.bytes())), errc::invalid_argument);
  EXPECT_EQ(code(d->read(0, (64 << 10) - 4'096, page.bytes())), errc::invalid_argument);
  EXPECT_EQ(code(d->read(0, uint64_t{1} << 40, page.bytes())), errc::invalid_argument);
  EXPECT_EQ(code(d->write(5, 0, page.bytes())), errc::not_found);
  EXPECT_EQ(code(d->read(5, 0, page.bytes())), errc::not_found);
  EXPECT_EQ(code(d->sync(5)), errc::not_found);
  EXPECT_EQ(code(d->remove(5)), errc::not_found);
  EXPECT_EQ(*d->size(0), 64u << 10);
}

TEST_P(disk_test, threads_use_their_own_places) {
  ASSERT_TRUE(d->create(0, 1 << 20));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const aligned_buffer out(4'096);
      for (int i = 0; i < 60; ++i) {
        const auto page = filled(4'096, t * 50 + i);
        const uint64_t at = static_cast<uint64_t>(t * 60 + i) * 4'096;
        EXPECT_TRUE(d->write(0, at, page.bytes()));
        EXPECT_TRUE(d->read(0, at, out.bytes()));
        EXPECT_TRUE(all_are(out.bytes(), t * 50 + i));
      }
    });
  for (auto& t : threads) t.join();
}

INSTANTIATE_TEST_SUITE_P(both, disk_test, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "file" : "memory"; });

TEST(file_disk, a_second_user_of_a_directory_is_refused) {
  scratch dir;
  auto first = open_file_disk(dir.path);
  ASSERT_TRUE(first);
  const auto second = open_file_disk(dir.path);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, errc::unavailable);
  EXPECT_NE(second.error().message.find(dir.path), std::string::npos) << second.error().message;
  first->reset();
  EXPECT_TRUE(open_file_disk(dir.path));
}

TEST(file_disk, a_disk_without_room_says_so_and_keeps_nothing) {
  scratch dir;
  auto d = open_file_disk(dir.path);
  ASSERT_TRUE(d);
  const uint64_t room = std::filesystem::space(dir.path).free;
  const auto r = (*d)->create(0, (room + (uint64_t{1} << 30)) / 4'096 * 4'096);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::exhausted) << r.error().message;
  EXPECT_TRUE((*d)->chunks()->empty());
  size_t files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(dir.path)) ++files;
  EXPECT_EQ(files, 1u);  // the lock
  EXPECT_TRUE((*d)->create(0, 1 << 20));
}

TEST(file_disk, files_survive_and_half_made_ones_go) {
  scratch dir;
  const auto page = filled(4'096, 9);
  {
    auto d = open_file_disk(dir.path);
    ASSERT_TRUE(d && (*d)->create(1, 1 << 20) && (*d)->write(1, 4'096, page.bytes()));
  }
  std::filesystem::copy_file(dir.path + "/chunk-00000001", dir.path + "/chunk-00000002.new");
  std::filesystem::copy_file(dir.path + "/lock", dir.path + "/chunk-notes");
  auto d = open_file_disk(dir.path);
  ASSERT_TRUE(d);
  EXPECT_EQ(*(*d)->chunks(), (std::vector<uint32_t>{1}));
  EXPECT_FALSE(std::filesystem::exists(dir.path + "/chunk-00000002.new"));
  const aligned_buffer out(4'096);
  ASSERT_TRUE((*d)->read(1, 4'096, out.bytes()));
  EXPECT_TRUE(all_are(out.bytes(), 9));
}

TEST(file_disk, more_chunks_than_descriptors_are_served) {
  scratch dir;
  auto d = open_file_disk(dir.path);
  ASSERT_TRUE(d);
  const aligned_buffer out(4'096);
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE((*d)->create(static_cast<uint32_t>(i), 8'192));
    ASSERT_TRUE((*d)->write(static_cast<uint32_t>(i), 4'096, filled(4'096, i).bytes()));
  }
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE((*d)->read(static_cast<uint32_t>(i), 4'096, out.bytes()));
    ASSERT_TRUE(all_are(out.bytes(), i));
  }
}

// The open file would take writes for nobody.
TEST(file_disk, a_folder_that_is_deleted_while_it_is_in_use_is_noticed) {
  scratch dir;
  auto d = open_file_disk(dir.path + "/kv");
  ASSERT_TRUE(d);
  ASSERT_TRUE((*d)->create(1, 64 << 10));
  const auto page = filled(run_bytes, 1);
  ASSERT_TRUE((*d)->write(1, 0, page.bytes()));
  std::filesystem::remove_all(dir.path + "/kv");
  const auto written = (*d)->write(1, 0, page.bytes());
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find("was deleted while it was in use"), std::string::npos);
  const aligned_buffer out(run_bytes);
  EXPECT_FALSE((*d)->read(1, 0, out.bytes()));
  EXPECT_FALSE((*d)->create(2, 64 << 10));
}

TEST(file_disk, no_directory_is_an_error_with_its_path) {
  scratch dir;
  const std::string file = dir.path + "/file";
  ASSERT_TRUE(open_file_disk(dir.path + "/made/on/the/way"));
  std::filesystem::copy_file(dir.path + "/made/on/the/way/lock", file);
  const auto r = open_file_disk(file);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::io);
  EXPECT_NE(r.error().message.find(file), std::string::npos) << r.error().message;
}

TEST(memory_disk, power_loss_takes_any_of_what_was_not_synced_and_nothing_else) {
  memory_disk d;
  ASSERT_TRUE(d.create(0, 64 << 10));
  ASSERT_TRUE(d.write(0, 0, filled(16'384, 1).bytes()));
  ASSERT_TRUE(d.sync(0));
  ASSERT_TRUE(d.write(0, 4'096, filled(4'096, 2).bytes()));
  ASSERT_TRUE(d.write(0, 4'096, filled(4'096, 3).bytes()));
  EXPECT_EQ(d.unsynced(), 1u);
  rng draw(3);
  std::array<int, 4> seen{};
  const aligned_buffer out(16'384);
  for (int i = 0; i < 300; ++i) {
    const auto after = d.copy();
    after->power_loss(draw);
    ASSERT_TRUE(after->read(0, 0, out.bytes()));
    ASSERT_TRUE(all_are(out.bytes().first(4'096), 1));
    ASSERT_TRUE(all_are(out.bytes().subspan(8'192), 1));
    const auto value = static_cast<int>(out.data()[4'096]);
    ASSERT_TRUE(value >= 1 && value <= 3);
    ASSERT_TRUE(all_are(out.bytes().subspan(4'096, 4'096), value));
    ++seen[static_cast<size_t>(value)];
  }
  for (int v = 1; v <= 3; ++v) EXPECT_GT(seen[static_cast<size_t>(v)], 50) << v;
  // A copy without power loss has everything; sectors of one write go each their own way.
  ASSERT_TRUE(d.copy()->read(0, 0, out.bytes()));
  EXPECT_EQ(out.data()[4'096], std::byte{3});
  ASSERT_TRUE(d.write(0, 32'768, filled(16'384, 4).bytes()));
  int mixed = 0;
  for (int i = 0; i < 50; ++i) {
    const auto after = d.copy();
    after->power_loss(draw);
    ASSERT_TRUE(after->read(0, 32'768, out.bytes()));
    mixed += !all_are(out.bytes(), 4) && !all_are(out.bytes(), 0);
  }
  EXPECT_GT(mixed, 20);
}

TEST(memory_disk, planned_faults_hit_the_planned_write) {
  memory_disk d;
  ASSERT_TRUE(d.create(0, 64 << 10));
  const auto ones = filled(12'288, 1);
  const aligned_buffer out(12'288);
  d.tear_next(1, 1);
  ASSERT_TRUE(d.write(0, 0, ones.bytes()));
  const auto torn = d.write(0, 16'384, ones.bytes());
  ASSERT_FALSE(torn);
  EXPECT_EQ(torn.error().code, errc::io);
  ASSERT_TRUE(d.read(0, 16'384, out.bytes()));
  EXPECT_TRUE(all_are(out.bytes().first(4'096), 1) && all_are(out.bytes().subspan(4'096), 0));
  d.lose_next(0);
  ASSERT_TRUE(d.write(0, 32'768, ones.bytes()));
  ASSERT_TRUE(d.read(0, 32'768, out.bytes()));
  EXPECT_TRUE(all_are(out.bytes(), 0));
  ASSERT_TRUE(d.flip(0, 32'768 + 5, 0x80));
  ASSERT_TRUE(d.read(0, 32'768, out.bytes()));
  EXPECT_EQ(out.data()[5], std::byte{0x80});
  EXPECT_FALSE(d.flip(0, 64 << 10, 1));
  EXPECT_FALSE(d.flip(1, 0, 1));
}

TEST(memory_disk, drawn_faults_are_the_same_for_the_same_seed) {
  const auto run = [](uint64_t seed) {
    memory_disk d({.seed = seed, .faults = {.lost = 0.2, .torn = 0.2, .rotten = 0.2}});
    EXPECT_TRUE(d.create(0, 1 << 20));
    for (uint64_t i = 0; i < 60; ++i) EXPECT_TRUE(d.write(0, i * 16'384, filled(16'384, 1).bytes()));
    const aligned_buffer out(1 << 20);
    EXPECT_TRUE(d.read(0, 0, out.bytes()));
    return std::string(reinterpret_cast<const char*>(out.data()), out.size());
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(memory_disk, fills_up_and_goes_away) {
  memory_disk d({.capacity_bytes = 2 << 20});
  ASSERT_TRUE(d.create(0, 1 << 20));
  d.set_full(true);
  EXPECT_EQ(d.create(1, 1 << 20).error().code, errc::exhausted);
  d.set_full(false);
  ASSERT_TRUE(d.create(1, 1 << 20));
  EXPECT_EQ(d.create(2, 4'096).error().code, errc::exhausted);
  d.set_gone(true);
  EXPECT_EQ(d.chunks().error().code, errc::io);
  EXPECT_EQ(d.size(0).error().code, errc::io);
  d.set_gone(false);
  EXPECT_EQ(d.chunks()->size(), 2u);
}

}  // namespace
}  // namespace troupe::kv
