// Same tokens, any layout, over processes: one engine alone against groups of 2 and 4 engines in processes of their
// own, over UCX shared memory and TCP, with the experts placed in a seeded order, once or with redundant copies.
#include <gtest/gtest.h>

#include <sstream>

#include "runtime/base/rng.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/identity_workload.hpp"
#include "tests/support/child_process.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

struct layout {
  uint32_t ranks;
  const char* mode;
  uint32_t copies;
  const char* threads;
  const char* isa;
};

/// Output of each prompt, as text, from a group of processes.
std::vector<std::string> outputs(const layout& l, uint64_t seed, size_t count) {
  std::vector<troupe::testing_support::child_process> ranks;
  std::vector<std::string> addresses;
  for (uint32_t r = 0; r < l.ranks; ++r)
    ranks.emplace_back(std::vector<std::string>{TROUPE_ENGINE_RANK, std::to_string(r + 1), l.mode, l.threads, l.isa});
  for (auto& r : ranks) {
    std::istringstream in(r.line());
    std::string word, address;
    in >> word >> address;
    EXPECT_EQ(word, "address") << address;
    addresses.push_back(address);
  }
  for (uint32_t r = 0; r < l.ranks; ++r) {
    std::string line = fmt::format("group 1 {} {} {} {}", r, seed, l.copies, l.ranks);
    for (uint32_t m = 0; m < l.ranks; ++m) line += fmt::format(" {} {}", addresses[m], m + 1);
    ranks[r].say(line);
  }
  for (auto& r : ranks) EXPECT_EQ(r.line(), "grouped");
  for (auto& r : ranks) r.say(fmt::format("run {}", count));
  std::vector<std::string> out(count);
  for (auto& r : ranks)
    for (std::string line = r.line(); line != "done"; line = r.line()) {
      std::istringstream in(line);
      size_t index = count;
      in >> index;
      if (index >= count) {
        ADD_FAILURE() << "unexpected line: " << line;
        break;
      }
      std::getline(in >> std::ws, out[index]);
    }
  return out;
}

TEST(ep_identity, groups_of_processes_give_the_bytes_of_one_engine) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  const size_t count = std::getenv("TROUPE_LONG") ? 64 : 24;
  std::vector<std::string> want;
  {
    cpu_engine_config c;
    c.weights = identity_model();
    c.limits = identity_limits(1, 512);
    engine_driver alone(std::move(c));
    for (const prompt& p : mixed_prompts(count)) want.push_back(text_of(alone.complete({p}, 0)[0]));
  }
  const layout layouts[] = {{1, "shm", 1, "1", ""}, {2, "shm", 1, "1", ""},     {2, "tcp", 1, "2", "avx2"},
                            {2, "shm", 2, "1", ""}, {4, "shm", 1, "1", "avx2"}, {4, "tcp", 2, "1", ""}};
  for (const layout& l : layouts) {
    const auto got = outputs(l, seed, count);
    for (size_t i = 0; i < count; ++i)
      EXPECT_EQ(got[i], want[i]) << "prompt " << i << ", " << l.ranks << " ranks over " << l.mode << ", " << l.copies
                                 << " copies, " << l.threads << " threads, seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::kernels
