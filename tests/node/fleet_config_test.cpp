// configs/v41-flash-128.yaml says what it claims: the published smallest unit of a fleet, with room for its model.
#include <gtest/gtest.h>

#include <map>

#include "kernels/model/config.hpp"
#include "kernels/model/plan.hpp"
#include "runtime/node/local_cluster.hpp"
#include "runtime/node/preflight.hpp"
#include "runtime/node/roles.hpp"

namespace troupe::node {
namespace {

TEST(fleet_config, the_smallest_unit_has_its_published_figures) {
  const std::string file = std::string(TROUPE_SOURCE_DIR) + "/configs/v41-flash-128.yaml";
  const auto s = config::load(file);
  ASSERT_TRUE(s) << s.error().message;
  for (const auto& p : check_files(*s, file)) ADD_FAILURE() << p.text();

  std::map<actors::role, std::vector<uint32_t>> groups;
  for (const auto& g : wanted_groups(*s)) groups[g.what].push_back(g.count);
  EXPECT_EQ(groups[actors::role::prefill], std::vector<uint32_t>(16, 4));
  EXPECT_EQ(groups[actors::role::decode], std::vector<uint32_t>{64});
  EXPECT_EQ(groups[actors::role::storage], std::vector<uint32_t>{12});
  EXPECT_EQ(seats_of(*s).size(), 1u + 1 + 64 + 64 + 12);

  const auto model = kernels::load_config(s->model.path);
  ASSERT_TRUE(model) << model.error().message;
  const auto plan = kernels::make_plan(*model);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->page_bytes, 113'920u);
  EXPECT_EQ(model->n_routed_experts / s->prefill.ep + s->prefill.redundant_experts, 100u);
  EXPECT_EQ(model->n_routed_experts / s->decode.ep + s->decode.redundant_experts, 7u);
  EXPECT_EQ(s->prefill.rebalance_every, 1000u);
  EXPECT_EQ(s->decode.rebalance_every, 10000u);
  EXPECT_EQ(s->engine.max_draft, model->dspark_block_size);
  EXPECT_EQ(s->engine.replay, "bounded");
  EXPECT_EQ(s->storage.data, 10u);
  EXPECT_EQ(s->storage.parity, 2u);
  EXPECT_GE(s->storage.nodes, s->storage.data + s->storage.parity) << "each shard of an extent on a node of its own";
  EXPECT_EQ(s->storage.block_tokens, model->sliding_window);
  EXPECT_EQ(s->storage.agent_ttl, std::chrono::hours(72));
  EXPECT_EQ(s->storage.chatbot_ttl, std::chrono::hours(168));
  // What a rank may fill lies within what the disks hold, at the published 14.4 TB for each of 128 ranks.
  const double disks = 1.0 * s->storage.nodes * s->storage.disks;
  EXPECT_NEAR(disks * 30.72e12 * 10 / 12 / 128, 14.4e12, 1e8);
  EXPECT_LE(static_cast<double>(s->storage.capacity), 30.72e12);
  EXPECT_GE(static_cast<double>(s->storage.capacity), 0.95 * 30.72e12);
  // Every sequence of a full decode rank may be as long as the published benchmark's.
  EXPECT_GE(uint64_t{s->decode.pages} * model->sliding_window, uint64_t{s->decode.slots} * 131'072);
}

TEST(fleet_config, a_pool_that_is_too_small_for_its_model_is_a_mistake) {
  const std::string file = std::string(TROUPE_SOURCE_DIR) + "/configs/v41-flash-128.yaml";
  auto s = config::load(file, {"decode.pages=8191"});
  ASSERT_TRUE(s) << s.error().message;
  const auto problems = check_files(*s, file);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "decode.pages");
}

TEST(fleet_config, what_is_allowed_and_probably_not_meant_is_noted) {
  const std::string file = std::string(TROUPE_SOURCE_DIR) + "/configs/v41-flash-128.yaml";
  const struct {
    std::vector<std::string> overrides;
    std::vector<std::string> notes;  // what each begins with
  } rows[] = {
      {{}, {}},
      {{"storage.nodes=6"}, {}},
      {{"storage.nodes=2"},
       {"storage.nodes: 2 nodes hold up to 6 of an extent's 12 shards",
        "storage.nodes: 12 targets hold extents of 12 shards"}},
      {{"storage.nodes=12", "storage.disks=1"}, {"storage.nodes: 12 targets hold extents of 12 shards"}},
      {{"storage.block_tokens=64"}, {"storage.block_tokens: the store has blocks of 64 tokens"}},
      {{"storage.block_tokens=64", "cache.enabled=false"}, {}},
  };
  for (const auto& row : rows) {
    const auto s = config::load(file, row.overrides);
    ASSERT_TRUE(s) << s.error().message;
    const auto found = notes(*s);
    ASSERT_EQ(found.size(), row.notes.size()) << (found.empty() ? "" : found[0]);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].rfind(row.notes[i], 0), 0u) << found[i];
  }
}

TEST(fleet_config, a_model_that_is_not_there_is_a_mistake) {
  const std::string file = std::string(TROUPE_SOURCE_DIR) + "/configs/v41-flash-128.yaml";
  for (std::string folder : {"/nonexistent/model", "/"}) {
    const auto s = config::load(file, {"model.path=" + folder});
    ASSERT_TRUE(s) << s.error().message;
    const auto problems = check_files(*s, file);
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].key, "model.path");
  }
}

}  // namespace
}  // namespace troupe::node
