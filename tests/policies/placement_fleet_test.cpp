// Placement on a fleet in cost-model time, on the chat trace where TROUPE_TRACES names its folder, else on a generated
// one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/policies/placement_sim.hpp"

namespace troupe::policies::sim {
namespace {

constexpr uint64_t seed = 7;

// At the load (requests in flight per rank) where round robin first reaches 80 % of the bound, ours reaches 95 %.
void compare(const char* what, run_report (*run)(const std::vector<trace_request>&, const run_options&),
             uint32_t most_in_group) {
  std::string name;
  const auto trace = load_trace(name, seed);
  fmt::print("{} on {}, seed {}\n", what, name, seed);
  for (uint32_t ranks : {8u, 64u, 512u}) {
    run_options o;
    o.ranks = ranks, o.group = std::min(most_in_group, ranks), o.by = placer::round_robin, o.seed = seed;
    o.in_flight = find_load(trace, o, 0.8, run);
    o.requests = std::max<uint64_t>(20ull * o.in_flight, 3 * trace.size());
    fmt::print("{:4} ranks, groups of {:2}, {:3} requests in flight per rank:", ranks, o.group, o.in_flight / ranks);
    double achieved[4];
    for (placer p : {placer::round_robin, placer::least_requests, placer::two_choices, placer::ours}) {
      o.by = p;
      const auto r = run(trace, o);
      achieved[static_cast<size_t>(p)] = r.of_bound;
      fmt::print("  {} {:.1f} %", to_string(p), 100 * r.of_bound);
      if (r.short_p99 > 0) fmt::print(" (short prompts p99 {:.2f} s)", r.short_p99);
      EXPECT_LE(r.of_bound, 1 + 1e-9);
      EXPECT_GT(r.done, 0u);
    }
    fmt::print("\n");
    EXPECT_NEAR(achieved[0], 0.80, 0.04) << ranks;
    EXPECT_GE(achieved[3], 0.95) << ranks << " ranks, seed " << seed;
    for (int i = 0; i < 3; ++i) EXPECT_GT(achieved[3], achieved[i]) << ranks;
  }
}

TEST(placement_fleet, prefill) { compare("prefill", run_prefill, 4); }

TEST(placement_fleet, decode) { compare("decode", run_decode, 64); }

// One prompt in 400 has a million tokens: 40 % of all work. Short prompts stay about as fast as without them.
TEST(placement_fleet, short_prompts_do_not_wait_behind_million_token_ones) {
  std::string name;
  const auto plain = load_trace(name, seed);
  auto mixed = plain;
  for (size_t i = 0; i < mixed.size(); i += 400) mixed[i].input = mixed[i].fresh = 1'000'000;
  run_options o;
  o.ranks = 64, o.group = 4, o.seed = seed, o.by = placer::round_robin;
  o.in_flight = find_load(plain, o, 0.8, run_prefill);  // as in the comparison above
  o.requests = 3 * plain.size(), o.by = placer::ours;
  const auto without = run_prefill(plain, o), with = run_prefill(mixed, o);
  o.by = placer::round_robin;
  const auto other = run_prefill(mixed, o);
  fmt::print("{}, seed {}: short prompts p99 {:.2f} s, with million-token ones {:.2f} s (round robin {:.2f} s)\n", name,
             seed, without.short_p99, with.short_p99, other.short_p99);
  EXPECT_LE(with.short_p99, 1.25 * without.short_p99);
  EXPECT_GE(other.short_p99, 1.8 * with.short_p99);
  EXPECT_GE(with.of_bound, 0.95);
}

}  // namespace
}  // namespace troupe::policies::sim
