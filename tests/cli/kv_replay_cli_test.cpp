// troupe kv replay from the shell: JSON to stdout, mistakes that say what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class kv_replay : public ::testing::Test {
 protected:
  kv_replay() {
    write_file(trace_,
               "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
               "{\"timestamp\": 60000, \"input_length\": 1536, \"output_length\": 5, \"hash_ids\": [0, 1, 3]}\n");
  }
  std::vector<std::string> with(std::vector<std::string> more) const {
    std::vector<std::string> all{"kv", "replay", "--trace", trace_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  temporary_folder folder_;
  const std::string trace_ = folder_.path + "/trace.jsonl";
};

TEST_F(kv_replay, says_what_a_trace_would_have_found) {
  auto p = troupe(with({}));
  ASSERT_EQ(p.code, 0) << p.err;
  auto j = json::parse(p.out);
  EXPECT_EQ(j["unique_blocks"], 4);
  EXPECT_NEAR(j["block_hit_rate"].get<double>(), 2.0 / 6, 1e-5);
  EXPECT_NEAR(j["token_hit_rate"].get<double>(), 1024.0 / 2836, 1e-5);
  j = json::parse(troupe(with({"--ttl", "59"})).out);
  EXPECT_EQ(j["hit_blocks"], 0);
  j = json::parse(troupe(with({"--lru", "2"})).out);
  EXPECT_EQ(j["hit_blocks"], 0);
  p = troupe(with({"--block-tokens", "128"}));
  ASSERT_EQ(p.code, 0) << p.err;
  j = json::parse(p.out);
  EXPECT_EQ(j["blocks"], 10 + 12);
  EXPECT_EQ(j["hit_blocks"], 8);
  EXPECT_EQ(j["per_block_hit_rate"], j["block_hit_rate"]);
  EXPECT_EQ(j["extents"], 2);
}

TEST_F(kv_replay, mistakes_are_named) {
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"kv"}, "subcommand is required"},
      {{"kv", "replay"}, "--trace is required"},
      {{"kv", "replay", "--trace", "/nonexistent"}, "/nonexistent: cannot be read"},
      {with({"--ttl", "5", "--lru", "5"}), "choose one"},
      {with({"--ttl", "-1"}), "--ttl"},
      {with({"--block-tokens", "100"}), "--block-tokens"},
      {with({"--block-tokens", "128", "--ec", "ten"}), "--ec ten"},
  };
  for (const auto& [args, want] : rows) {
    const auto p = troupe(args);
    EXPECT_EQ(p.code, 2) << want;
    EXPECT_THAT(p.err, HasSubstr(want));
  }
}

}  // namespace
}  // namespace troupe::tests
