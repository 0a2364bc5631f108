// Rows of the published rule and of the exact replay, and a validator that counts tokens one by one.
#include "policies/hit_length.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "policies/registry.hpp"
#include "policies/resume.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

hit_length_input bounded(uint32_t prompt, uint32_t hit, std::vector<uint32_t> snapshots) {
  hit_length_input in;
  in.prompt_tokens = prompt, in.block_hit_tokens = hit, in.snapshots = std::move(snapshots);
  return in;
}

TEST(hit_length, bounded_table) {
  struct row {
    uint32_t prompt, hit;
    std::vector<uint32_t> snapshots;
    uint32_t reuse, replay;
  };
  const row table[] = {
      {50'000, 49'920, {49'792}, 49'792, 0},    // the published example with a window snapshot
      {50'000, 49'920, {}, 49'664, 128},        // and without
      {50'000, 49'920, {49'920}, 49'664, 128},  // a snapshot behind the limit is of no use
      {50'000, 49'920, {128}, 49'664, 128},     // nor one that is older than one block
      {50'000, 0, {128}, 0, 0},                 // nothing stored
      {50'000, 256, {256, 128}, 256, 0},
      {50'000, 256, {}, 128, 128},
      {50'000, 128, {}, 0, 0},  // one block, no snapshot: nothing would be left
      {50'000, 128, {128}, 128, 0},
      {134, 128, {128}, 0, 0},  // the last 134 tokens are always run
      {261, 256, {128}, 0, 0},
      {262, 256, {128}, 128, 0},  // 262 - 134 = 128
      {300, 256, {128}, 128, 0},  // the worked example of resume
      {300, 256, {}, 0, 0},
      {0, 0, {}, 0, 0},
      {1, 0, {}, 0, 0},
      {4'294'967'295, 4'294'967'168, {}, 4'294'966'912, 128},
  };
  for (const auto& r : table) {
    auto plan = plan_hit_length(bounded(r.prompt, r.hit, r.snapshots));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->reuse, r.reuse) << r.prompt << " " << r.hit << ": " << plan->reason;
    EXPECT_EQ(plan->replay, r.replay) << r.prompt << " " << r.hit << ": " << plan->reason;
    EXPECT_FALSE(plan->reason.empty());
  }
}

TEST(hit_length, exact_table) {
  struct row {
    uint32_t prompt, hit;
    std::vector<uint32_t> snapshots;
    uint32_t reuse, replay;
  };
  const row table[] = {
      {50'000, 49'920, {}, 47'104, 2'688},    // 21 blocks rebuild the windows of 20 layers and layer 20
      {50'000, 49'920, {49'792}, 49'792, 0},  // a snapshot at the end: nothing to rebuild
      {50'000, 49'920, {49'664, 30'000 / 128 * 128}, 49'664, 128},  // the newest one before the end
      {50'000, 49'920, {256}, 47'104, 2'688},                       // too old to help
      {50'000, 2'688, {}, 0, 0},                                    // no more stored than the replay needs
      {50'000, 2'816, {}, 128, 2'688},
      {50'000, 2'688, {128}, 128, 2'560},  // a snapshot saves the short hit
      {300, 256, {}, 0, 0},
      {300, 256, {128}, 128, 0},
  };
  for (const auto& r : table) {
    auto in = bounded(r.prompt, r.hit, r.snapshots);
    in.exact = true;
    auto plan = plan_hit_length(in);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->reuse, r.reuse) << r.prompt << " " << r.hit << ": " << plan->reason;
    EXPECT_EQ(plan->replay, r.replay) << r.prompt << " " << r.hit << ": " << plan->reason;
  }
}

TEST(hit_length, impossible_input) {
  EXPECT_FALSE(plan_hit_length(bounded(50'000, 100, {})));     // no whole blocks
  EXPECT_FALSE(plan_hit_length(bounded(100, 128, {})));        // more stored than asked for
  EXPECT_FALSE(plan_hit_length(bounded(50'000, 128, {130})));  // a snapshot inside a block
  auto in = bounded(50'000, 128, {});
  in.block = 0;
  EXPECT_FALSE(plan_hit_length(in));
}

TEST(hit_length, a_resume_limits_the_hit) {
  // 300 prompt tokens, 10 sampled ones, crash: the tail from d = 172 is run again, so at most 128 tokens are reused.
  auto resume = plan_resume({300, 309, 128, 20});
  auto in = bounded(309, 256, {128, 256});
  in.hit_limit = resume.hit_limit;
  auto plan = plan_hit_length(in);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->reuse, 128u);
  in.hit_limit = 0;
  EXPECT_EQ(plan_hit_length(in)->reuse, 0u);
}

// The rules as sentences over single tokens; shares nothing with the planner.
std::string broken_rule(const hit_length_input& in, const hit_length_plan& plan) {
  uint64_t read = uint64_t{plan.reuse} + plan.replay;
  if (plan.reuse % in.block || plan.replay % in.block) return "parts of blocks";
  if (plan.reuse == 0 && plan.replay != 0) return "replays without reusing anything";
  if (read > in.block_hit_tokens) return "reads blocks that are not stored";
  if (!in.hit_limit && read > 0 && read + in.block + in.backtrack > in.prompt_tokens)
    return "reuses the tail that must be run";
  if (in.hit_limit && read > *in.hit_limit) return "reuses more than the resume allows";
  uint64_t need = in.exact ? uint64_t{in.block} * (in.encoder_layers + 1) : in.block;
  bool snapshot = false;
  for (uint32_t s : in.snapshots) snapshot |= s == plan.reuse;
  if (plan.reuse > 0 && !snapshot && plan.replay < need) return "windows are not rebuilt";
  return "";
}

TEST(hit_length, random_inputs_keep_the_rules_and_nothing_better_does) {
  const uint64_t seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random{seed};
  for (int i = 0; i < 20'000; ++i) {
    hit_length_input in;
    in.block = static_cast<uint32_t>(1 + random.below(20));
    in.backtrack = static_cast<uint32_t>(random.below(8));
    in.prompt_tokens = static_cast<uint32_t>(random.below(400));
    in.block_hit_tokens = static_cast<uint32_t>(random.below(in.prompt_tokens / in.block + 1)) * in.block;
    in.exact = random.below(2);
    in.encoder_layers = static_cast<uint32_t>(random.below(5));
    if (random.below(3) == 0) in.hit_limit = static_cast<uint32_t>(random.below(20) * in.block);
    for (uint64_t n = random.below(4); n > 0; --n)
      in.snapshots.push_back(static_cast<uint32_t>(1 + random.below(30)) * in.block);
    auto plan = plan_hit_length(in);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_EQ(broken_rule(in, *plan), "") << plan->reason;
    // Exhaustive: no legal plan reuses more.
    for (uint32_t reuse = plan->reuse + in.block; reuse <= in.block_hit_tokens; reuse += in.block) {
      for (uint32_t replay = 0; reuse + replay <= in.block_hit_tokens; replay += in.block) {
        ASSERT_NE(broken_rule(in, {reuse, replay, {}}), "")
            << "reuse " << reuse << " was possible, planned " << plan->reuse;
      }
    }
  }
}

TEST(hit_length, from_the_shell) {
  const auto* p = find_policy("hit_length");
  ASSERT_TRUE(p);
  auto run = [&](const char* text) { return p->run(nlohmann::json::parse(text)); };
  EXPECT_EQ(
      (*run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"snapshot":true,"block":128,"backtrack":6})"))["reuse"],
      49792);
  EXPECT_EQ(
      (*run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"snapshot":false,"block":128,"backtrack":6})"))["reuse"],
      49664);
  EXPECT_EQ((*run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"snapshots":[128,49792]})"))["reuse"], 49792);
  EXPECT_EQ((*run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"exact":true})"))["replay"], 2688);
  EXPECT_FALSE(run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"snapshot":"yes"})"));
  EXPECT_FALSE(run(R"({"prompt_tokens":50000,"block_hit_tokens":49920,"snapshots":[-1]})"));
  EXPECT_FALSE(run(R"({"prompt_tokens":5000000000,"block_hit_tokens":0})"));
}

}  // namespace
}  // namespace troupe::policies
