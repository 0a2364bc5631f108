// Traces: a small one whose answers are counted by hand, and the published one where TROUPE_TRACES names its folder.
#include "kv/replay/replay.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "kv/index/memory_db.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

// Time  blocks          hits without limit
//    0  0 1 2 (partial)  0
// 10 s  0 1 3            2
// 20 s  0 1 3 4          3
// 90 s  0 5              1
// 95 s  0 1 2            3
const char* const small =
    "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
    "{\"timestamp\": 10000, \"input_length\": 1536, \"output_length\": 5, \"hash_ids\": [0, 1, 3]}\n"
    "\n"
    "{\"timestamp\": 20000, \"input_length\": 1600, \"output_length\": 5, \"hash_ids\": [0, 1, 3, 4]}\n"
    "{\"timestamp\": 90000, \"input_length\": 1024, \"output_length\": 5, \"hash_ids\": [0, 5]}\n"
    "{\"timestamp\": 95000, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n";

std::vector<trace_request> small_trace() {
  std::istringstream in(small);
  auto r = read_trace(in, "small");
  EXPECT_TRUE(r) << r.error().message;
  return r ? *r : std::vector<trace_request>();
}

uint64_t hits(const replay_limits& limits) {
  const auto trace = small_trace();
  const auto r = replay_blocks(trace, limits);
  EXPECT_TRUE(r);
  return r ? r->hit_blocks : 0;
}

TEST(replay_test, a_small_trace_counted_by_hand) {
  const auto trace = small_trace();
  const auto r = replay_blocks(trace, {});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->requests, 5u);
  EXPECT_EQ(r->blocks, 15u);
  EXPECT_EQ(r->unique_blocks, 6u);
  EXPECT_EQ(r->hit_blocks, 0u + 2 + 3 + 1 + 3);
  EXPECT_EQ(r->tokens, 1300u + 1536 + 1600 + 1024 + 1300);
  EXPECT_EQ(r->hit_tokens, 2 * 512u + 3 * 512 + 512 + 1300);  // a partial block hits with the tokens it has
  EXPECT_DOUBLE_EQ(r->block_hit_rate(), 9.0 / 15);
}

TEST(replay_test, a_time_to_live_counts_from_the_last_use) {
  EXPECT_EQ(hits({.ttl_ms = 10'000}), 2u + 3 + 0 + 1);
  EXPECT_EQ(hits({.ttl_ms = 9'999}), 0u + 0 + 0 + 1);
  EXPECT_EQ(hits({.ttl_ms = 70'000}), 2u + 3 + 1 + 1);  // block 1 was last used at 20 s
  EXPECT_EQ(hits({.ttl_ms = 75'000}), 2u + 3 + 1 + 2);  // block 2 at 0 s
  EXPECT_EQ(hits({.ttl_ms = 95'000}), 2u + 3 + 1 + 3);
}

TEST(replay_test, a_full_store_forgets_what_was_used_longest_ago) {
  EXPECT_EQ(hits({.lru_blocks = 6}), 9u);
  EXPECT_EQ(hits({.lru_blocks = 5}), 2u + 3 + 1 + 2);  // 2 makes room for 5
  EXPECT_EQ(hits({.lru_blocks = 2}), 0u + 0 + 0 + 1);
  EXPECT_EQ(replay_blocks(small_trace(), {.ttl_ms = 1, .lru_blocks = 1}).error().code, errc::invalid_argument);
}

TEST(replay_test, through_the_index_complete_blocks_hit_as_if_looked_up_alone) {
  const auto trace = small_trace();
  memory_db database;
  const auto index = open_index(database, {.hold_after_open = false});
  const auto r = replay_index(trace, *index, {}, start_s);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->blocks, 10u + 12 + 12 + 8 + 10);
  EXPECT_EQ(r->hit_blocks, 0u + 8 + 12 + 4 + 10);
  EXPECT_EQ(r->per_block_hits, r->hit_blocks);
  EXPECT_EQ(r->unique_blocks, 10u + 4 + 4);
  EXPECT_EQ(r->hit_tokens, 128 * r->hit_blocks);
  EXPECT_EQ(r->extents, 3u);  // 10 blocks, 4 after block 8, 4 after block 4
  EXPECT_EQ(r->extent_reads, 1u + 2 + 1 + 1);
  EXPECT_EQ(r->payload_bytes, 18u * 113'920);
  EXPECT_GT(r->space_over_bytes(), 1.2);
  EXPECT_LT(r->space_over_bytes(), 1.3);
  const auto s = index->stats(start_s);
  EXPECT_EQ(s.blocks, 18u);
  EXPECT_EQ(s.extents, 3u);
  EXPECT_EQ(findings(*index), std::vector<std::string>{});
  EXPECT_EQ(replay_index(trace, *index, {.block_tokens = 100}, start_s).error().code, errc::invalid_argument);
  EXPECT_EQ(replay_index(trace, *index, {.data = 0}, start_s).error().code, errc::invalid_argument);
}

TEST(replay_test, an_index_with_little_room_stays_within_it) {
  const auto trace = small_trace();
  memory_db database;
  const auto index = open_index(database, {.step_s = 1, .hold_after_open = false});
  const auto r = replay_index(trace, *index, {.lru_blocks = 10}, start_s);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_LE(index->stats(start_s).blocks, 10u);
  // Less than without a limit (34, above). The index lets the ends of chains go first and keeps what many begin with;
  // block by block the longest unused goes, which is the beginning.
  EXPECT_LT(r->hit_blocks, 34u);
  EXPECT_GT(r->hit_blocks, r->per_block_hits);
  EXPECT_GT(r->per_block_hits, 0u);
  EXPECT_EQ(findings(*index), std::vector<std::string>{});
}

TEST(replay_test, a_damaged_trace_is_refused_with_its_line) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "holds no request"},
      {"{\"timestamp\": 0, \"input_length\": 10, \"hash_ids\": [1]}\nnonsense", "small:2: not a JSON object"},
      {"{\"timestamp\": 0, \"input_length\": 10", "small:1: not a JSON object"},
      {"{\"input_length\": 10, \"hash_ids\": [1]}", "timestamp"},
      {"{\"timestamp\": -1, \"input_length\": 10, \"hash_ids\": [1]}", "timestamp"},
      {"{\"timestamp\": 1.5, \"input_length\": 10, \"hash_ids\": [1]}", "timestamp"},
      {"{\"timestamp\": 0, \"input_length\": 0, \"hash_ids\": []}", "input_length"},
      {"{\"timestamp\": 0, \"input_length\": 99999999999, \"hash_ids\": [1]}", "input_length"},
      {"{\"timestamp\": 0, \"input_length\": 10, \"hash_ids\": [-1]}", "hash_ids"},
      {"{\"timestamp\": 0, \"input_length\": 10, \"hash_ids\": [1, 2]}", "2 ids for 10 tokens"},
      {"{\"timestamp\": 5, \"input_length\": 1, \"hash_ids\": [1]}\n{\"timestamp\": 4, \"input_length\": 1, "
       "\"hash_ids\": [1]}",
       "small:2: timestamp"},
  };
  for (const auto& [text, word] : rows) {
    std::istringstream in(text);
    const auto r = read_trace(in, "small");
    ASSERT_FALSE(r) << text;
    EXPECT_NE(r.error().message.find(word), std::string::npos) << r.error().message;
  }
  EXPECT_EQ(read_trace_file("/nonexistent").error().code, errc::io);
}

class published_trace : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TROUPE_TRACES");
    if (!folder) GTEST_SKIP() << "set TROUPE_TRACES to the folder of conversation_trace.jsonl";
    auto r = read_trace_file(std::string(folder) + "/conversation_trace.jsonl");
    ASSERT_TRUE(r) << r.error().message;
    trace_ = std::move(*r);
  }
  std::vector<trace_request> trace_;
};

TEST_F(published_trace, hit_rates_are_the_published_ones) {
  const auto all = replay_blocks(trace_, {});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->blocks, 288'500u);
  EXPECT_EQ(all->unique_blocks, 182'790u);
  EXPECT_NEAR(100 * all->block_hit_rate(), 36.64, 0.1);
  EXPECT_NEAR(100 * all->token_hit_rate(), 37.36, 0.1);
  for (const auto& [seconds, percent] : {std::pair{60, 10.3}, {300, 28.8}, {600, 34.3}, {1'800, 36.4}})
    EXPECT_NEAR(100 * replay_blocks(trace_, {.ttl_ms = seconds * 1'000})->block_hit_rate(), percent, 0.1) << seconds;
  for (const auto& [blocks, percent] : {std::pair{10'000u, 21.1}, {30'000u, 32.6}, {50'000u, 35.5}})
    EXPECT_NEAR(100 * replay_blocks(trace_, {.lru_blocks = blocks})->block_hit_rate(), percent, 0.1) << blocks;
}

TEST_F(published_trace, extents_cost_no_hits) {
  memory_db database;
  const auto index = open_index(database, {.hold_after_open = false});
  const auto r = replay_index(trace_, *index, {}, start_s);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_NEAR(100 * r->block_hit_rate(), 37.55, 0.1);
  EXPECT_EQ(r->hit_blocks, r->per_block_hits);
  EXPECT_LT(r->extents_per_16_blocks(), 2);
  EXPECT_LT(r->space_over_bytes(), 1.25);
  EXPECT_EQ(index->stats(start_s).blocks, r->unique_blocks);
  std::printf("extents read per 16 blocks %.3f, space over bytes %.4f, extents %llu\n", r->extents_per_16_blocks(),
              r->space_over_bytes(), static_cast<unsigned long long>(r->extents));
}

}  // namespace
}  // namespace troupe::kv
