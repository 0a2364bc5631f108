// A small cluster of the real actors in virtual time: the same seed gives the same run, and what breaks in between
// changes no answer.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/config/cost_file.hpp"
#include "runtime/sim/run.hpp"

namespace troupe::sim {
namespace {

run_options small(uint64_t seed, uint64_t requests) {
  static const bool quiet = (log::init("test", std::getenv("TROUPE_TEST_LOG") ? "debug" : "off"), true);
  (void)quiet;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  run_options o;
  auto s = config::load(std::string(TROUPE_SOURCE_DIR) + "/configs/sim/small.yaml");
  if (!s) ADD_FAILURE() << s.error().message;
  o.settings = *s;
  o.seed = seed;
  auto cost = config::load_cost_model(o.settings.sim.cost);
  if (!cost) ADD_FAILURE() << cost.error().message;
  o.cost = *cost;
  o.workload.seed = 7;  // the requests are the same whatever the seed of the run
  o.workload.first = requests;
  o.workload.generator.arrivals.per_hour = 7200;
  o.workload.generator.max_context = 16'000;
  o.workload.generator.max_answer = 200;
  o.workload.generator.chat.gap = std::chrono::seconds(5);
  return o;
}

run_report run(run_options o) {
  const auto seed = o.seed;
  auto r = run_simulation(std::move(o));
  if (!r) {
    ADD_FAILURE() << "seed " << seed << ": " << r.error().message;
    return {};
  }
  EXPECT_EQ(r->violation, "") << "seed " << seed;
  return std::move(*r);
}

std::map<uint64_t, uint64_t> answers(const run_report& r) {
  std::map<uint64_t, uint64_t> out;
  for (const auto& q : r.requests) {
    EXPECT_TRUE(q.finished) << "request " << q.index << " failed after " << q.attempts << " attempts";
    EXPECT_TRUE(out.emplace(q.index, q.tokens_hash).second) << "request " << q.index << " ended twice";
  }
  return out;
}

fault kill(const std::string& target, nanoseconds at, nanoseconds lasts) {
  fault f;
  f.kind = fault_kind::kill;
  f.name = "kill " + target;
  f.when.at = at;
  f.target = *parse_target(target);
  f.lasts = lasts;
  return f;
}

TEST(sim_world, the_same_seed_gives_the_same_run) {
  const auto first = run(small(1, 24));
  ASSERT_EQ(first.requests.size(), 24u);
  // What lies where in memory changes nothing.
  std::vector<std::unique_ptr<char[]>> scrambled;
  rng sizes(99);
  for (int i = 0; i < 20'000; ++i) scrambled.push_back(std::make_unique<char[]>(1 + sizes.below(3000)));
  for (size_t i = 0; i < scrambled.size(); i += 1 + sizes.below(4)) scrambled[i] = nullptr;
  const auto again = run(small(1, 24));
  EXPECT_EQ(first.event_log_hash, again.event_log_hash);
  EXPECT_EQ(first.scheduler_hash, again.scheduler_hash);
  EXPECT_EQ(first.requests, again.requests);
  const auto other = run(small(2, 24));
  EXPECT_NE(first.event_log_hash, other.event_log_hash);
}

TEST(sim_world, a_lost_rank_and_a_lost_storage_node_change_no_answer) {
  auto calm = answers(run(small(3, 40)));
  ASSERT_EQ(calm.size(), 40u);
  auto o = small(3, 40);
  o.plan.name = "kills";
  o.plan.faults.push_back(kill("decode/1", std::chrono::seconds(4), std::chrono::seconds(3)));
  o.plan.faults.push_back(kill("storage/2", std::chrono::seconds(5), std::chrono::seconds(4)));
  auto report = run(std::move(o));
  EXPECT_TRUE(report.summary.without_effect.empty());
  EXPECT_EQ(answers(report), calm);
}

// Every kind of fault that can be drawn, from many seeds: whatever breaks, every request ends once, with its own
// tokens, epochs grow, and the cluster serves again.
TEST(sim_world, drawn_faults_break_no_promise) {
  const char* wanted = std::getenv("TROUPE_LONG");
  const uint64_t seeds = wanted && *wanted == '1' ? 1'000 : 20;
  for (uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    auto o = small(seed, 0);
    o.workload.seed = seed;
    o.workload.duration = std::chrono::seconds(seeds > 20 ? 120 : 30);
    o.length = o.workload.duration;
    o.swarm = true;
    (void)run(std::move(o));
  }
}

// The plans that come with Troupe do what they say: every fault is seen to take effect, and nothing is broken by it.
TEST(sim_world, plans_that_come_with_it_take_effect) {
  for (const auto& file : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/configs/faults")) {
    SCOPED_TRACE(file.path());
    auto plan = load_fault_plan(file.path());
    ASSERT_TRUE(plan) << plan.error().message;
    auto o = small(3, 0);
    o.workload.duration = o.length = std::chrono::seconds(120);
    o.plan = *plan;
    const auto report = run(std::move(o));
    EXPECT_EQ(report.summary.without_effect, std::vector<std::string>{});
  }
}

TEST(sim_world, blocks_of_earlier_turns_are_hit) {
  auto o = small(5, 60);
  const auto report = run(std::move(o));
  EXPECT_GT(report.summary.hit_tokens, 0u);
}

}  // namespace
}  // namespace troupe::sim
