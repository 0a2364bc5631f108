// The prefix cache of a cluster of processes: a conversation over HTTP reuses exactly what is stored, with the window
// snapshots that there are, also after a restart, when those are gone; without the stored data, or with storage nodes
// that hang, the answers are the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "policies/hit_length.hpp"
#include "runtime/cli/http_client.hpp"
#include "runtime/gateway/keys.hpp"
#include "runtime/recipe/recipe.hpp"
#include "tests/scenarios/live_cluster.hpp"

namespace troupe::tests::prefix_cases {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const bool whole = std::getenv("TROUPE_LONG") != nullptr;  // mini on the processes of configs/fleet-local.yaml

struct answer {
  uint32_t prompt = 0, cached = 0, expected = 0, completion = 0;
  uint32_t replayed = 0;  // that would be expected without snapshots
  std::string text;
};

class prefix : public testing::Test {
 protected:
  std::unique_ptr<live_cluster> start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> o{"storage.path=" + store_,      "storage.nodes=3",
                               "storage.chunk=1MiB",          "storage.capacity=256MiB",
                               "cluster.lost_after=120s",     "cluster.connection_timeout=120s",
                               "cache.match_timeout=5s",      "cache.read_at_least=5s",
                               "transport.peer_deadline=60s", "transport.step_deadline=60s"};
    if (whole)
      o.insert(o.end(), {"model.path=" TROUPE_SOURCE_DIR "/configs/models/mini", "prefill.ranks=2", "decode.ranks=4",
                         "decode.ep=4"});
    o.insert(o.end(), more.begin(), more.end());
    auto c = std::make_unique<live_cluster>(o, true, whole ? 11 : 8);
    EXPECT_TRUE(c->ready) << c->output();
    return c;
  }

  json status(const live_cluster& c) {
    auto r = troupe({"status", "--run-dir", c.run_dir(), "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return json::parse(r.out, nullptr, false);
  }

  // Until nothing is being written back any more.
  void settle(const live_cluster& c) {
    const nanoseconds deadline = steady_clock().now() + 60s;
    for (uint64_t writing = 1; writing > 0 && steady_clock().now() < deadline; sched_yield()) {
      writing = 0;
      for (const auto& n : status(c)["nodes"])
        for (const auto& r : n["roles"])
          for (const char* what : {"cache", "snapshots"})
            if (r.contains(what) && r[what].contains("writing")) writing += r[what]["writing"].get<uint64_t>();
    }
  }

  // How much of the conversation the store has, and so how much of it is to be reused.
  void expect(const live_cluster& c, const std::vector<recipe::token_id>& ids, answer& a) {
    std::string text;
    for (auto id : ids) text += std::to_string(id) + " ";
    write_file(folder_.path + "/ids", text);
    auto r = troupe({"kv", "match", "--run-dir", c.run_dir(), "--tenant", gateway::derived_salt("local"), "--tokens",
                     folder_.path + "/ids", "--json"});
    const auto j = json::parse(r.out, nullptr, false);
    if (r.code != 0 || !j.is_object()) {
      ADD_FAILURE() << r.out << r.err;
      return;
    }
    policies::hit_length_input in;
    in.block = whole ? 128 : 16;
    in.prompt_tokens = static_cast<uint32_t>(ids.size());
    in.block_hit_tokens = j["blocks"].get<uint32_t>() * in.block;
    in.exact = true;
    in.encoder_layers = 4;
    a.replayed = policies::plan_hit_length(in)->reuse;
    for (const auto& blocks : j["snapshots"]) in.snapshots.push_back(blocks.get<uint32_t>() * in.block);
    a.expected = policies::plan_hit_length(in)->reuse;
  }

  answer ask(const live_cluster& c, bool look = true, double temperature = 0.7) {
    answer a;
    std::vector<recipe::message> messages;
    json list = json::array();
    for (size_t i = 0; i < said_.size(); ++i) {
      messages.push_back({i % 2 == 0 ? recipe::role::user : recipe::role::assistant, said_[i]});
      list.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", said_[i]}});
    }
    if (look) {
      settle(c);
      auto ids = recipe_->chat(messages, {}, "");
      EXPECT_TRUE(ids);
      if (ids->size() >= (whole ? 128 : 16)) expect(c, *ids, a);
    }
    cli::http_request r;
    r.server = *config::parse_address(c.facts.http);
    r.target = "/v1/chat/completions";
    r.body = json{
        {"model", whole ? "mini" : "tiny-v41"},
        {"messages", list},
        {"max_tokens", whole ? 60 : 18},
        {"temperature", temperature},
        {"seed",
         11}}.dump();
    auto got = cli::fetch(r);
    EXPECT_TRUE(got) << got.error().message;
    if (!got || got->status != 200) {
      ADD_FAILURE() << (got ? got->body : "");
      return a;
    }
    const json j = json::parse(got->body);
    a.prompt = j["usage"]["prompt_tokens"];
    a.completion = j["usage"]["completion_tokens"];
    a.cached = j["usage"]["prompt_tokens_details"]["cached_tokens"];
    EXPECT_EQ(
        j["usage"]["prompt_cache_hit_tokens"].get<uint32_t>() + j["usage"]["prompt_cache_miss_tokens"].get<uint32_t>(),
        a.prompt);
    const auto& content = j["choices"][0]["message"]["content"];
    a.text = content.is_string() ? content.get<std::string>() : "";
    return a;
  }

  temporary_folder folder_;
  const std::string store_ = folder_.path + "/kv";
  const std::string model_ = whole ? TROUPE_SOURCE_DIR "/configs/models/mini" : TROUPE_TEST_DATA "/tiny-v41";
  std::unique_ptr<const recipe::recipe> recipe_ = *recipe::recipe::load(model_);
  std::vector<std::string> said_;
};

TEST_F(prefix, a_conversation_reuses_what_is_stored_and_nothing_else_changes) {
  auto c = start();
  ASSERT_TRUE(c->ready);
  const int turns = whole ? 20 : 5;
  uint32_t most = 0, spared = 0;
  for (int turn = 0; turn < turns; ++turn) {
    said_.push_back(whole ? "Tell me what happened next, and what the others thought of it, in turn " +
                                std::to_string(turn) + ", as long as you like."
                          : "and what came then, in turn " + std::to_string(turn));
    const auto a = ask(*c);
    EXPECT_EQ(a.cached, a.expected) << "turn " << turn << " of " << a.prompt << " tokens";
    std::printf("turn %d: %u prompt tokens, %u cached, %u without snapshots\n", turn, a.prompt, a.cached, a.replayed);
    most = std::max(most, a.cached);
    spared += a.cached > 0 && a.replayed == 0;
    said_.push_back(a.text.empty() ? "nothing" : a.text);
  }
  EXPECT_GT(most, whole ? 500u : 16u);
  EXPECT_GT(spared, 0u) << "a prompt that is too short for an exact replay hits from a snapshot";

  // The next turn, in every way.
  said_.push_back("and at the end?");
  const auto hit = ask(*c);
  EXPECT_EQ(hit.cached, hit.expected);
  EXPECT_GT(hit.cached, 0u);
  settle(*c);
  EXPECT_EQ(c->stop(SIGTERM), 0) << c->output();

  c = start();
  ASSERT_TRUE(c->ready);
  const auto again = ask(*c);
  EXPECT_EQ(again.cached, again.expected);
  EXPECT_EQ(again.cached, again.replayed) << "snapshots do not survive a restart";
  EXPECT_GE(again.cached, hit.replayed) << "what was stored does";
  EXPECT_EQ(again.text, hit.text);

  const auto greedy = ask(*c, true, 0);
  EXPECT_EQ(greedy.cached, greedy.expected);
  EXPECT_GE(greedy.cached, hit.replayed);

  // Storage nodes hang one after the other, wherever the request is with them by then.
  for (const char* name : {"storage.0", "storage.1", "storage.2"}) {
    settle(*c);
    kill(c->pid_of(name), SIGSTOP);
    const auto stalled = ask(*c, false);
    EXPECT_EQ(stalled.text, hit.text) << name;
    kill(c->pid_of(name), SIGCONT);
  }
  settle(*c);
  EXPECT_EQ(c->stop(SIGTERM), 0) << c->output();

  std::filesystem::remove_all(store_);
  c = start();
  ASSERT_TRUE(c->ready);
  const auto miss = ask(*c);
  EXPECT_EQ(miss.expected, 0u);
  EXPECT_EQ(miss.cached, 0u);
  EXPECT_EQ(miss.text, hit.text) << "a hit gives the bytes of a miss";
  EXPECT_EQ(c->stop(SIGTERM), 0) << c->output();

  // Without drafts: a hit, then a cluster that has no cache.
  c = start({"engine.speculation=false"});
  ASSERT_TRUE(c->ready);
  const auto undrafted = ask(*c);
  EXPECT_EQ(undrafted.cached, undrafted.expected);
  EXPECT_GE(undrafted.cached, hit.replayed);
  EXPECT_EQ(undrafted.text, hit.text);
  EXPECT_EQ(ask(*c, true, 0).text, greedy.text);
  EXPECT_EQ(c->stop(SIGTERM), 0) << c->output();
  c = start({"engine.speculation=false", "cache.enabled=false"});
  ASSERT_TRUE(c->ready);
  for (double temperature : {0.7, 0.0}) {
    const auto plain = ask(*c, false, temperature);
    EXPECT_EQ(plain.cached, 0u);
    EXPECT_EQ(plain.text, temperature > 0 ? hit.text : greedy.text);
  }
  EXPECT_EQ(c->stop(SIGTERM), 0) << c->output();
}

}  // namespace
}  // namespace troupe::tests::prefix_cases
