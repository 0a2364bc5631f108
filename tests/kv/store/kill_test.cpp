// A real process that writes, evicts and scrubs a store in a directory is killed with SIGKILL at drawn moments. After
// each kill: every acknowledged chain is there byte by byte, nothing is visible without its data, scrub leaves the
// store clean and the accounting exact. A new store every 10 kills, so that it stays small. TROUPE_LONG=1: 200 kills.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "kv/store/directory.hpp"
#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

directory_options options_of(const std::string& dir) {
  directory_options o;
  o.dir = dir;
  o.create = true;
  o.chunk_bytes = 1 << 20;
  o.capacity_bytes = 256 << 20;
  o.io_threads = 3;
  return o;
}

made_chain chain_of(uint64_t seed) { return made_chain(seed, 1 + seed % 40, 500 + seed % 3000); }

// The child: puts chains first, first + 1, … and says so; scrubs in between. Never returns by itself.
int writer(const std::string& dir, uint64_t first) {
  auto store = directory_store::open(options_of(dir));
  if (!store) {
    fprintf(stderr, "%s\n", store.error().message.c_str());
    return 1;
  }
  for (uint64_t seed = first;; ++seed) {
    if (seed % 7 == 3) {
      scrub_options s;
      s.repair = true;
      s.orphan_grace_s = 0;
      if (!(*store)->scrub(s)) return 1;
    }
    auto put = (*store)->put(chain_of(seed).put());
    if (!put) {
      fprintf(stderr, "%s\n", put.error().message.c_str());
      return 1;
    }
    const std::string line = std::to_string(seed) + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) return 1;
  }
}

struct child {
  pid_t pid = -1;
  int out = -1;
  child(const std::string& dir, uint64_t first) {
    int pipe_ends[2];
    EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      setenv("TROUPE_KV_WRITER", dir.c_str(), 1);
      setenv("TROUPE_KV_FIRST", std::to_string(first).c_str(), 1);
      execl("/proc/self/exe", "kv_kill_test", static_cast<char*>(nullptr));
      _exit(127);
    }
    close(pipe_ends[1]);
    out = pipe_ends[0];
  }
  ~child() {
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    if (out >= 0) close(out);
  }
};

// Reads acknowledgements until one more than `after` have come and then for `us` microseconds more.
std::set<uint64_t> acknowledged_until(int fd, size_t after, int us) {
  std::set<uint64_t> acks;
  std::string line;
  bool last = false;
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    timespec t{0, us * 1000L};
    const int ready = last ? ppoll(&p, 1, &t, nullptr) : poll(&p, 1, 20'000);
    if (ready <= 0) return acks;  // the moment has come
    char c;
    if (read(fd, &c, 1) != 1) return acks;
    if (c != '\n') {
      line += c;
      continue;
    }
    acks.insert(std::stoull(line));
    line.clear();
    last = acks.size() > after;
  }
}

void drain(int fd, std::set<uint64_t>& acks) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  size_t at = 0;
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    if (end > at) acks.insert(std::stoull(text.substr(at, end - at)));
}

TEST(kill, a_killed_writer_loses_nothing_and_leaves_nothing) {
  const int kills = long_version() ? 200 : 8;
  rng random(test_seed());
  const std::string dir = fs::temp_directory_path() / ("troupe-kv-kill-" + std::to_string(getpid()));
  fs::remove_all(dir);
  std::set<uint64_t> all;  // acknowledged in the store of now
  size_t total = 0;        // in those before
  uint64_t next = random.below(1'000'000) * 1000;
  for (int k = 0; k < kills; ++k) {
    SCOPED_TRACE("kill " + std::to_string(k));
    const bool fresh = k % 10 == 0, last_of_store = k % 10 == 9 || k + 1 == kills;
    if (fresh) {
      if (k > 0) printf("%d of %d kills\n", k, kills), fflush(stdout);
      fs::remove_all(dir);
      total += all.size();
      all.clear();
    }
    uint64_t first = next;
    {
      child c(dir, first);
      // Up to 12 puts later, somewhere inside the next one.
      auto acks = acknowledged_until(c.out, random.below(12), static_cast<int>(random.below(3000)));
      kill(c.pid, SIGKILL);
      int status = 0;
      waitpid(c.pid, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
      c.pid = -1;
      drain(c.out, acks);  // what it had said before it died
      for (uint64_t a : acks) all.insert(a), next = std::max(next, a + 1);
    }
    auto store = directory_store::open(options_of(dir));
    ASSERT_TRUE(store) << store.error().message;
    const auto expect = [&](uint64_t seed, bool must) {
      const made_chain c = chain_of(seed);
      auto there = (*store)->match(c.hashes);
      ASSERT_TRUE(there);
      if (must) {
        ASSERT_EQ(*there, c.hashes.size()) << "acknowledged chain " << seed << " is lost";
      }
      if (*there == 0) return;
      get_chain_request r;
      std::vector<std::vector<std::byte>> memory(*there, std::vector<std::byte>(c.blocks[0].size()));
      r.chain = c.hashes;
      for (auto& m : memory) r.into.emplace_back(m);
      auto got = (*store)->get(std::move(r));
      ASSERT_TRUE(got);
      ASSERT_EQ(got->blocks, *there) << "visible without data";
      for (size_t i = 0; i < *there; ++i) ASSERT_TRUE(memory[i] == c.blocks[i]);
    };
    // The newest ones and some of the old ones; all at the end of each store.
    for (uint64_t seed : all) {
      if (seed >= first || last_of_store || random.below(10) == 0) expect(seed, true);
      if (HasFatalFailure()) return;
    }
    expect(next, false);  // was under way
    scrub_options s;
    s.repair = true;
    s.orphan_grace_s = 0;
    auto repair = (*store)->scrub(s);
    ASSERT_TRUE(repair && repair->repaired()) << (repair ? first_note(*repair) : repair.error().message);
    s.repair = false;
    auto verify = (*store)->scrub(s);
    ASSERT_TRUE(verify && verify->clean()) << (verify ? first_note(*verify) : verify.error().message);
    const auto u = (*store)->usage();
    ASSERT_EQ(u.shards, verify->shards);
    ASSERT_EQ(u.payload, verify->shard_bytes);
    ++next;
  }
  printf("%d kills, %zu acknowledged chains\n", kills, total + all.size());
  fs::remove_all(dir);
}

}  // namespace
}  // namespace troupe::kv

int main(int argc, char** argv) {
  if (const char* dir = getenv("TROUPE_KV_WRITER"))
    return troupe::kv::writer(dir, std::strtoull(getenv("TROUPE_KV_FIRST"), nullptr, 10));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
