// troupe sim from the shell: a cluster, prefix caches without queueing, and two summaries side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class sim_command : public ::testing::Test {
 protected:
  sim_command() {
    write_file(trace_,
               "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
               "{\"timestamp\": 0, \"input_length\": 1536, \"output_length\": 7, \"hash_ids\": [0, 1, 3]}\n"
               "{\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 4]}\n");
  }
  program_result simple(std::vector<std::string> more) const {
    std::vector<std::string> all{"sim", "--simple", "--trace", trace_};
    all.insert(all.end(), more.begin(), more.end());
    return troupe(all);
  }
  temporary_folder folder_;
  const std::string trace_ = folder_.path + "/trace.jsonl";
};

TEST_F(sim_command, the_simple_mode_says_what_caches_would_hit) {
  auto p = simple({});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_EQ(json::parse(p.out)["hit_blocks"], 3);
  p = simple({"--place", "round_robin", "--caches", "2", "--loops", "2"});
  ASSERT_EQ(p.code, 0) << p.err;
  const auto j = json::parse(p.out);
  EXPECT_EQ(j["requests_per_cache"], json({3, 3}));
  EXPECT_EQ(j["blocks"], 16);
  EXPECT_EQ(j["hit_blocks"], 2);
  for (const auto& [arguments, words] :
       {std::pair<std::vector<std::string>, const char*>{{"--place", "prefix_load", "--cache-tokens", "100"},
                                                         "a cache of 100 tokens"},
        {{"--rate", "0"}, "--rate: '0' is no factor"},
        {{"--for", "10"}, "--for: "},
        {{"--loops", "0"}, "has no end"}}) {
    p = simple(arguments);
    EXPECT_EQ(p.code, 2) << p.out;
    EXPECT_THAT(p.err, HasSubstr(words));
    EXPECT_EQ(p.out, "");
  }
  EXPECT_THAT(troupe({"sim", "--simple", "--trace", "none.jsonl"}).err, HasSubstr("none.jsonl"));
}

TEST_F(sim_command, compare_shows_what_changed) {
  const auto a = folder_.path + "/a.json", b = folder_.path + "/b.json";
  write_file(a, R"({"troupe_summary": 1, "ttft_ms": {"p50": 200.0}, "seed": 1})");
  write_file(b, R"({"troupe_summary": 1, "ttft_ms": {"p50": 250.0}, "seed": 1})");
  auto p = troupe({"sim", "compare", a, b});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_EQ(json::parse(p.out)["numbers"]["ttft_ms.p50"]["change"], 0.25);
  EXPECT_THAT(p.err, HasSubstr("+25.0 %"));
  EXPECT_EQ(troupe({"sim", "compare", a, trace_}).code, 2);
  EXPECT_THAT(troupe({"sim", "compare", a, folder_.path + "/none"}).err, HasSubstr("cannot be read"));
}

TEST_F(sim_command, a_cluster_runs_twice_alike_and_what_fails_has_a_reason) {
  const std::string small = std::string(TROUPE_SOURCE_DIR) + "/configs/sim/small.yaml";
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"sim", "-c", small};
    all.insert(all.end(), more.begin(), more.end());
    return troupe(all);
  };
  auto p = run({"--trace", trace_, "--seed", "4"});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_THAT(p.err, testing::StartsWith("seed 4\n"));
  const auto first = json::parse(p.out);
  EXPECT_EQ(first["requests"]["finished"], 3);
  EXPECT_EQ(json::parse(run({"--trace", trace_, "--seed", "4"}).out)["event_log_hash"], first["event_log_hash"]);
  EXPECT_NE(json::parse(run({"--trace", trace_, "--seed", "5"}).out)["event_log_hash"], first["event_log_hash"]);

  const auto long_one = folder_.path + "/long.jsonl";
  std::string ids;
  for (int i = 0; i < 100; ++i) ids += (i ? "," : "") + std::to_string(i);
  write_file(long_one,
             "{\"timestamp\": 0, \"input_length\": 51200, \"output_length\": 5, \"hash_ids\": [" + ids + "]}\n");
  p = run({"--trace", long_one, "--set", "prefill.max_context=4096"});
  EXPECT_THAT(p.err, HasSubstr("1 of 1 requests failed; the first, request 0 of 51200 prompt tokens: ")) << p.out;
  for (const auto& wrong : {std::vector<std::string>{"--repeat", "0"},
                            {"--jobs", "2"},
                            {"--seed", "-1"},
                            {"--for", "1m", "--faults", "none.yaml"},
                            {"--faults", "swarm"}}) {
    p = run(wrong);
    EXPECT_EQ(p.code, 2) << wrong[0] << ": " << p.err;
    EXPECT_EQ(p.out, "");
  }
}

}  // namespace
}  // namespace troupe::tests
