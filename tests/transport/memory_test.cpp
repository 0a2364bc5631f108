// Shared memory: what a peer maps is what the key names, or it is refused; what transports leave behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/transport/memory.hpp"
#include "runtime/transport/process_transport.hpp"
#include "runtime/transport/ucx_wire.hpp"

namespace troupe::transport {
namespace {

std::set<int> descriptors() {
  std::set<int> all;
  for (const auto& f : std::filesystem::directory_iterator("/proc/self/fd"))
    all.insert(std::stoi(f.path().filename().string()));
  std::erase_if(all, [](int fd) { return fcntl(fd, F_GETFD) < 0; });  // that of the iteration
  return all;
}

/// Descriptors of shared memory that are open now and were not before.
std::set<int> new_shared(const std::set<int>& before) {
  std::set<int> found;
  for (const int fd : descriptors()) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone).string();
    if (!before.contains(fd) && target.find("shm") != std::string::npos) found.insert(fd);
  }
  return found;
}

class shared_memory : public testing::Test {
 protected:
  static constexpr size_t size = 1 << 20;
  /// Puts an unrelated file of `bytes` at the number of a memory that has gone, and tries to map that memory.
  void reuse(size_t bytes) {
    const auto before = descriptors();
    auto mine = *memory::allocate(size);
    const auto made = new_shared(before);
    ASSERT_EQ(made.size(), 1u) << "a memory is reached by one descriptor";
    const std::string key = mine->key();
    {
      auto map = mapping::open(key);
      ASSERT_TRUE(map) << map.error().message;
      EXPECT_EQ((*map)->size(), size);
      mine->bytes()[size - 1] = std::byte{7};
      EXPECT_EQ((*map)->data()[size - 1], std::byte{7});
    }
    mine.reset();
    ASSERT_FALSE(descriptors().contains(*made.begin()));
    FILE* file = tmpfile();
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(ftruncate(fileno(file), static_cast<off_t>(bytes)), 0);
    const int taken = *made.begin();  // the file may have got it already
    ASSERT_EQ(dup2(fileno(file), taken), taken);
    auto map = mapping::open(key);
    EXPECT_FALSE(map);
    if (!map) {
      EXPECT_EQ(map.error().code, errc::stale) << map.error().message;
    }
    if (taken != fileno(file)) close(taken);
    fclose(file);
  }
};

TEST_F(shared_memory, a_number_reused_by_a_shorter_file_is_refused) {
  reuse(0);
  reuse(100);
}

TEST_F(shared_memory, a_number_reused_by_a_longer_file_is_refused) { reuse(4 * size); }

TEST_F(shared_memory, a_number_reused_by_other_memory_is_refused) {
  auto mine = *memory::allocate(size);
  const std::string key = mine->key();
  mine.reset();
  mine = *memory::allocate(size);
  auto map = mapping::open(key);
  ASSERT_FALSE(map);
  EXPECT_EQ(map.error().code, errc::stale);
}

TEST_F(shared_memory, memory_that_is_gone_is_refused_after_one_that_was_mapped) {
  for (int i = 0; i < 20; ++i) {
    auto mine = *memory::allocate(size);
    const std::string key = mine->key();
    auto map = mapping::open(key);
    ASSERT_TRUE(map);
    mine.reset();
    EXPECT_EQ((*map)->data()[0], std::byte{0}) << "what is mapped stays";
    map = fail(errc::internal, "none");
    const auto again = mapping::open(key);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, errc::stale) << again.error().message;
  }
}

TEST_F(shared_memory, keys_that_no_memory_gave_are_refused) {
  auto mine = *memory::allocate(size);
  for (const std::string& key : {std::string(), mine->key().substr(0, 24), std::string(60, 'x')}) {
    auto map = mapping::open(key);
    ASSERT_FALSE(map);
    EXPECT_EQ(map.error().code, errc::corrupt);
  }
  auto map = mapping::open(mine->key());
  ASSERT_TRUE(map);
  EXPECT_TRUE(std::all_of((*map)->data(), (*map)->data() + size, [](std::byte b) { return b == std::byte{0}; }));
}

size_t resident_kib() {
  std::ifstream in("/proc/self/statm");
  size_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

class left_behind : public testing::TestWithParam<message_path> {};
INSTANTIATE_TEST_SUITE_P(paths, left_behind, testing::Values(message_path::sockets, message_path::ucx),
                         [](const auto& i) { return std::string(i.param == message_path::ucx ? "ucx" : "sockets"); });

// UCX's worker for messages stays until the process ends (see ucx::node); nothing else does.
TEST_P(left_behind, a_destroyed_transport_leaves_the_stated_descriptors_and_memory) {
  const auto cycle = [](int n) {
    options o;
    o.messages = GetParam();
    for (int i = 0; i < n; ++i) {
      auto a = *make_process_transport(o), b = *make_process_transport(o);
      auto ra = *a->allocate(1 << 20), rb = *b->allocate(1 << 20);
      std::memset(ra->bytes().data(), 1, ra->bytes().size());
      const peer_id peer = *a->add_peer(b->address());
      pending p;
      ASSERT_TRUE(a->get(peer, ra, 0, rb->descriptor(), 0, 1 << 20, p.callback()));
      ASSERT_TRUE(p.wait(std::chrono::seconds(20)));
      ASSERT_TRUE(p.value());
    }
  };
  cycle(2);
  const auto files = descriptors().size(), memory = resident_kib();
  const int n = 10;
  cycle(n);
  const bool ucx = GetParam() == message_path::ucx;
  const double files_each = (static_cast<double>(descriptors().size()) - static_cast<double>(files)) / (2 * n);
  const double kib_each = (static_cast<double>(resident_kib()) - static_cast<double>(memory)) / (2 * n);
  printf("a destroyed transport leaves %.1f descriptors and %.0f KiB\n", files_each, kib_each);
  EXPECT_LE(files_each, ucx ? left_descriptors : 0);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LE(kib_each, ucx ? left_kib : 100);
#endif
}

}  // namespace
}  // namespace troupe::transport
