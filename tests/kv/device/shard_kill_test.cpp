// A real process on real files, killed with SIGKILL at drawn crash points. TROUPE_LONG=1: 200 of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/kv/device/kill_workload.hpp"
#include "tests/support/child_process.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

TEST(shard_kill, nothing_acknowledged_is_lost_and_the_accounting_is_exact) {
  const uint64_t seed = std::getenv("TROUPE_SEED") ? std::strtoull(std::getenv("TROUPE_SEED"), nullptr, 0) : 77;
  std::printf("seed %llu (TROUPE_SEED changes it)\n", static_cast<unsigned long long>(seed));
  const uint64_t rounds = std::getenv("TROUPE_LONG") ? 200 : 6;
  rng draw(seed);
  std::string dir = (std::filesystem::temp_directory_path() / "troupe-kill-XXXXXX").string();
  ASSERT_TRUE(::mkdtemp(dir.data()));
  uint64_t killed = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t run = draw.next(), at = draw.below(300);
    SCOPED_TRACE(fmt::format("seed {} round {}: victim {} killed at pass {}", seed, round, run, at));
    const std::string here = fmt::format("{}/{}", dir, round);
    std::filesystem::create_directory(here);
    uint64_t done = 0;
    {
      ::troupe::testing_support::child_process victim({SHARD_VICTIM, here, std::to_string(run), std::to_string(at)});
      for (std::string line; !(line = victim.line()).empty(); ++done) ASSERT_EQ(line, std::to_string(done));
      if (const int status = victim.join(); status != 0) {
        ASSERT_EQ(status, -1) << "the victim could not work";
        ++killed;
      } else {
        ASSERT_EQ(done, kill_operations);
      }
    }
    shard_set committed;
    for (uint64_t n = 0; n < done; ++n) committed = after(std::move(committed), kill_operation(run, n));
    auto s = open_real(here, nullptr);
    ASSERT_TRUE(s) << s.error().message;
    const bool before = static_cast<bool>(crash_world::is(*s->store, committed));
    if (!before) {
      EXPECT_TRUE(crash_world::is(*s->store, after(committed, kill_operation(run, done))));
    }
    expect_exact(*s->store);
    if (round % 3 == 0) {
      // The database is lost as well: everything is found in the shards. Where the kill came between a write and its
      // commit, that newer version of the shard is found.
      const auto listed = all_of(*s->store);
      memory_db fresh;
      s->store.reset();
      auto found = opened(*s->files, fresh);
      ASSERT_TRUE(found);
      const auto again = all_of(*found);
      for (const auto& [k, f] : listed) {
        ASSERT_TRUE(again.contains(k)) << to_string(k.extent);
        EXPECT_TRUE(again.at(k) == f || again.at(k).sequence > f.sequence) << to_string(k.extent);
        EXPECT_TRUE(found->check(k.extent, k.shard));
      }
      expect_exact(*found);
    }
    s = fail(errc::cancelled, "closed");
    std::filesystem::remove_all(here);
    if (HasFailure()) break;
  }
  std::printf("%llu of %llu victims were killed before their end\n", static_cast<unsigned long long>(killed),
              static_cast<unsigned long long>(rounds));
  EXPECT_GT(killed, 0u);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace troupe::kv
