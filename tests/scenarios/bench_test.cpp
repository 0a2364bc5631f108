// `troupe bench serve` against a real cluster: its sums hold, its errors have names, Ctrl-C brings the report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/cli/http_client.hpp"
#include "tests/scenarios/live_cluster.hpp"
#include "tests/support/child_process.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::HasSubstr;

class bench_serve : public testing::Test {
 protected:
  static void SetUpTestSuite() { cluster_ = new live_cluster({"front.count=2", "front.max_requests=48"}, true, 6); }
  static void TearDownTestSuite() {
    EXPECT_EQ(cluster_->stop(SIGTERM), 0) << cluster_->output();
    delete cluster_;
  }
  void SetUp() override { ASSERT_TRUE(cluster_->ready) << cluster_->output(); }

  static std::vector<std::string> words(std::vector<std::string> more) {
    std::vector<std::string> out{"bench", "serve", "--run-dir", cluster_->run_dir()};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  static json status() { return json::parse(troupe({"status", "--run-dir", cluster_->run_dir(), "--json"}).out); }

  // A counter of a front, summed over its labels.
  static double counter(const std::string& front, const std::string& name) {
    cli::http_request q;
    q.server = *config::parse_address(front);
    q.target = "/metrics";
    const auto m = cli::fetch(q);
    double sum = 0;
    for (size_t at = 0; m && (at = m->body.find("\n" + name + "{", at)) != std::string::npos; ++at)
      sum += std::stod(m->body.substr(m->body.find("} ", at) + 2));
    return sum;
  }

  // All ranks: every page is free, no slot is open, nobody waits.
  static void expect_idle() {
    std::string left;
    const auto deadline = steady_clock().now() + 60s;
    do {
      left.clear();
      for (const auto& n : status()["nodes"])
        for (const auto& r : n["roles"]) {
          if (!r.contains("rank")) continue;
          const auto& k = r["rank"];
          EXPECT_EQ(k["pages_free"].get<int>() + k["pages_owned"].get<int>(), k["pages_total"].get<int>());
          if (k["pages_owned"] != 0 || k["slots_open"] != 0 || r["leased"] != 0 || r["waiting"] != 0)
            left += r.dump() + "\n";
        }
    } while (!left.empty() && steady_clock().now() < deadline);
    EXPECT_EQ(left, "");
  }

  static live_cluster* cluster_;
};
live_cluster* bench_serve::cluster_ = nullptr;

uint64_t number(const json& j, const char* group, const char* name) { return j[group][name].get<uint64_t>(); }

void expect_sums(const json& j) {
  EXPECT_EQ(number(j, "requests", "sent"), number(j, "requests", "finished") + number(j, "requests", "left") +
                                               number(j, "requests", "interrupted") + number(j, "requests", "failed"));
  uint64_t errors = 0;
  for (const auto& [kind, n] : j["errors"].items()) errors += n.get<uint64_t>();
  EXPECT_EQ(errors, number(j, "requests", "failed"));
  EXPECT_EQ(number(j, "tokens", "prompt"), number(j, "tokens", "asked_prompt"));
  EXPECT_EQ(number(j, "tokens", "completion"), number(j, "tokens", "asked_completion"));
  EXPECT_GE(number(j, "tokens", "received"), number(j, "tokens", "completion"));
  EXPECT_LE(number(j, "tokens", "cached"), number(j, "tokens", "prompt"));
  for (const char* name : {"ttft_ms", "tpot_ms", "inter_token_ms", "end_to_end_ms"}) {
    const auto& l = j[name];
    EXPECT_LE(l["p50"], l["p90"]) << name;
    EXPECT_LE(l["p90"], l["p99"]) << name;
    EXPECT_LE(l["p99"], l["max"]) << name;
  }
  EXPECT_LE(j["ttft_ms"]["max"], j["end_to_end_ms"]["max"]);
  const double seconds = j["seconds"];
  EXPECT_NEAR(j["per_second"]["output_tokens"].get<double>() * seconds,
              static_cast<double>(number(j, "tokens", "received")), 1);
  ASSERT_TRUE(j["cluster"].is_object());
  uint64_t sampled = 0;
  for (const auto& r : j["cluster"]["ranks"]) {
    double shares = 0;
    for (const auto& [part, share] : r["share"].items()) shares += share.get<double>();
    EXPECT_NEAR(shares, 1, 0.01) << r.dump();
    sampled += r["tokens"].get<uint64_t>();
    EXPECT_LE(r["gap"]["steps"], r["steps"]);
  }
  EXPECT_GE(sampled, number(j, "tokens", "received")) << "every token was sampled by some rank";
}

TEST_F(bench_serve, the_sums_of_64_streams_hold) {
  const auto p =
      troupe(words({"--limit-requests", "150", "--concurrency", "64", "--input-tokens", "1-60", "--output-tokens",
                    "4-24", "--cancel-share", "0.2", "--slow-client-share", "0.1", "--seed", "5"}));
  ASSERT_EQ(p.code, 0) << p.err;
  const json j = json::parse(p.out);
  expect_sums(j);
  EXPECT_EQ(number(j, "requests", "sent"), 150u);
  EXPECT_EQ(number(j, "requests", "most_at_once"), 64u);
  EXPECT_GT(number(j, "requests", "left"), 10u);
  EXPECT_LE(number(j, "requests", "left"), number(j, "requests", "to_be_left"));
  EXPECT_GT(number(j, "requests", "slow_clients"), 5u);
  EXPECT_LT(j["ttft_ms"]["count"], j["requests"]["finished"]) << "slow clients are left out";
  EXPECT_GT(j["ttft_ms"]["count"], 60);
  EXPECT_GT(j["cluster"]["roles"]["decode"]["gap"]["steps"], 10);
  EXPECT_GT(j["cluster"]["roles"]["decode"]["ms"]["experts"], 0.0);
  EXPECT_GT(j["cluster"]["roles"]["prefill"]["prompt_rows"], 1000);
  EXPECT_THAT(p.err, HasSubstr("seed 5"));
  EXPECT_EQ(j["servers"].size(), 2u);
  for (const auto& front : cluster_->facts.fronts) EXPECT_GT(counter(front, "vllm:prompt_tokens_total"), 500) << front;
  expect_idle();
}

TEST_F(bench_serve, refusals_have_a_name_and_a_code) {
  const auto p = troupe(words({"--limit-requests", "220", "--concurrency", "220", "--output-tokens", "200", "--seed",
                               "1", "--input-tokens", "5"}));
  EXPECT_EQ(p.code, 1) << p.err;
  const json j = json::parse(p.out);
  expect_sums(j);
  EXPECT_GE(number(j, "requests", "failed"), 20u);
  EXPECT_EQ(j["errors"]["http 429: overloaded"], j["requests"]["failed"]) << j["errors"].dump();
  expect_idle();
}

TEST_F(bench_serve, a_trace_is_played_with_its_times_and_prefixes) {
  temporary_folder f;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += json({{"timestamp", 100 * i},
                   {"input_length", 1100},
                   {"output_length", 64},
                   {"hash_ids", {0, 1 + i % 4, 100 + i}}})
                 .dump() +
             "\n";
  lines += R"({"timestamp": 4000, "input_length": 512, "output_length": 1000000000, "hash_ids": [7]})"
           "\n";
  write_file(f.path + "/trace.jsonl", lines);
  const auto p =
      troupe(words({"--trace", f.path + "/trace.jsonl", "--scale", "8", "--block-tokens", "16", "--seed", "3"}));
  ASSERT_EQ(p.code, 0) << p.err;
  const json j = json::parse(p.out);
  expect_sums(j);
  EXPECT_EQ(number(j, "requests", "finished"), 40u);
  EXPECT_EQ(number(j, "requests", "skipped_too_long"), 1u);
  EXPECT_EQ(number(j, "tokens", "prompt"), 40u * 35) << "1,100 * 16 / 512, rounded up";
  EXPECT_EQ(number(j, "tokens", "completion"), 40u * 2);
  EXPECT_GT(j["seconds"], 0.48) << "39 * 100 ms, 8 times as fast";
  EXPECT_EQ(j["start_lag_ms"]["count"], 40) << "the first one too";

  write_file(f.path + "/bad.jsonl", "{\"timestamp\": 1}\n");
  const auto bad = troupe(words({"--trace", f.path + "/bad.jsonl"}));
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.jsonl:1: input_length"));
  EXPECT_EQ(bad.out, "");
}

TEST_F(bench_serve, ctrl_c_ends_it_in_order) {
  std::vector<std::string> args{troupe_path()};
  for (auto& w : words({"--duration", "600", "--concurrency", "8", "--output-tokens", "400"})) args.push_back(w);
  testing_support::child_process p(args);
  const auto running = [&] { return counter(cluster_->facts.http, "vllm:num_requests_running") >= 3; };
  const auto deadline = steady_clock().now() + 60s;
  while (!running() && steady_clock().now() < deadline) sched_yield();
  p.signal(SIGINT);
  std::string out;
  for (std::string line = p.line(); !line.empty(); line = p.line()) out += line + "\n";
  EXPECT_EQ(p.join(), 130);
  const json j = json::parse(out, nullptr, false);
  ASSERT_TRUE(j.is_object()) << out;
  expect_sums(j);
  EXPECT_TRUE(j["stopped"]);
  EXPECT_EQ(number(j, "requests", "interrupted"), 8u);
  EXPECT_EQ(number(j, "requests", "failed"), 0u);
  expect_idle();
}

// With one prefill and one decode rank: what lies between two steps of the decode rank while work waits, waits for a
// core left out, as a share of the steps' time; with the next step planned while one runs, and after its result.
TEST(bench_gap, the_next_step_is_there_when_one_ends) {
  double best[2] = {1, 1};
  for (const bool ahead : {true, false}) {
    live_cluster c({std::string("model.path=") + TROUPE_SOURCE_DIR + "/configs/models/mini", "decode.ranks=1",
                    "decode.ep=1", std::string("engine.plan_ahead=") + (ahead ? "true" : "false")},
                   true, 4);
    ASSERT_TRUE(c.ready) << c.output();
    for (int run = 0; run < 3; ++run) {
      const auto p = troupe({"bench", "serve", "--run-dir", c.run_dir(), "--limit-requests", "16", "--concurrency", "8",
                             "--input-tokens", "64", "--output-tokens", "48", "--seed", "1"});
      ASSERT_EQ(p.code, 0) << p.err;
      const json gap = json::parse(p.out)["cluster"]["roles"]["decode"]["gap"];
      EXPECT_GT(gap["steps"], 20);
      best[ahead ? 1 : 0] = std::min(best[ahead ? 1 : 0], gap["share_of_steps"].get<double>());
    }
    EXPECT_EQ(c.stop(SIGTERM), 0) << c.output();
  }
  std::printf("gap: %.2f %% of the steps' time planned ahead, %.2f %% planned late\n", 100 * best[1], 100 * best[0]);
  EXPECT_LT(best[1], 0.05);
  EXPECT_LT(best[1], best[0]);
}

}  // namespace
}  // namespace troupe::tests
