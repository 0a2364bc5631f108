// A cluster started node by node: a rank that is killed costs no request, and a new one takes its seat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/cli/http_client.hpp"
#include "runtime/node/node_process.hpp"
#include "runtime/node/supervisor.hpp"
#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using kind = node::supervisor_event::kind;

const std::string local = std::string(TROUPE_SOURCE_DIR) + "/configs/local.yaml";

class nodes : public testing::Test {
 protected:
  void SetUp() override {
    start("director", more_);
    director_ = report("director", "actor").get<std::string>();
    for (const char* seat : {"front/0", "prefill-0/0", "decode-0/0", "decode-0/1"}) start(seat, {"--join", director_});
    http_ = report("front.0", "http").get<std::string>();
    ASSERT_EQ(report("front.0", "ready"), true);
  }

  void TearDown() override {
    auto bad = children_.stop({{"front.0", "front.1"}, {"prefill-0.0", "decode-0.0", "decode-0.1"}, {"director"}}, 30s);
    for (const auto& name : bad) ADD_FAILURE() << name << " did not stop cleanly:\n" << children_.log_tail(name, 20);
  }

  void start(const std::string& seat, std::vector<std::string> more) {
    std::vector<std::string> args{"node",
                                  "-c",
                                  local,
                                  "--seat",
                                  seat,
                                  "--set",
                                  "front.listen=127.0.0.1:0",
                                  "--set",
                                  "model.path=" TROUPE_TEST_DATA "/tiny-v41"};
    args.insert(args.end(), more.begin(), more.end());
    auto pid = children_.start({node::process_name(seat), args});
    ASSERT_TRUE(pid) << pid.error().message;
  }

  // Waits until `name` has reported `key`; null after a minute or when a process has ended.
  json report(const std::string& name, const std::string& key) {
    const nanoseconds deadline = steady_clock().now() + 60s;
    while (steady_clock().now() < deadline) {
      auto e = children_.wait(1s);
      if (e.what == kind::exited) {
        ADD_FAILURE() << e.name << ": " << e.text << "\n" << children_.log_tail(e.name, 20);
        return nullptr;
      }
      if (e.what != kind::report || e.name != name) continue;
      json line = json::parse(e.text);
      if (line.contains(key)) return line[key];
    }
    ADD_FAILURE() << name << " did not report " << key << "\n" << children_.log_tail(name, 20);
    return nullptr;
  }

  // Streams 120 tokens; `on_chunk` is called with the number of chunks so far.
  std::string text(const std::function<void(size_t)>& on_chunk) {
    cli::http_request r;
    r.server = *config::parse_address(http_);
    r.target = "/v1/completions";
    r.body = json{{"model", "tiny-v41"}, {"prompt", "Same tokens"}, {"max_tokens", 120}, {"temperature", 0.8},
                  {"seed", 3},           {"ignore_eos", true},      {"logprobs", 0},     {"stream", true}}
                 .dump();
    std::string out;
    size_t chunks = 0;
    auto done = cli::fetch_stream(r, [&](std::string_view data) {
      json j = json::parse(data);
      EXPECT_FALSE(j.contains("error")) << j.dump();
      if (!j.contains("choices") || j["choices"].empty()) return true;
      out += j["choices"][0]["text"].get<std::string>();
      if (!j["choices"][0]["finish_reason"].is_null()) out += "|" + j["choices"][0]["finish_reason"].get<std::string>();
      on_chunk(++chunks);
      return true;
    });
    EXPECT_TRUE(done) << done.error().message;
    return out;
  }

  std::vector<std::string> more_;  // for the director
  temporary_folder folder_;
  node::supervisor children_{troupe_path(), folder_.path};
  std::string director_, http_;
};

TEST_F(nodes, a_stream_survives_a_killed_rank_with_the_same_text) {
  size_t all = 0;
  std::string undisturbed = text([&](size_t n) { all = n; });
  EXPECT_TRUE(undisturbed.ends_with("|length")) << undisturbed;
  ASSERT_GT(all, 8u);
  // The placement is the front's business, so the killed rank may hold the stream or only its experts: both must go on.
  size_t at_kill = 0;
  std::string disturbed = text([&](size_t n) {
    if (n != 4) return;
    at_kill = n;
    kill(children_.running().at("decode-0.1"), SIGKILL);
  });
  EXPECT_EQ(at_kill, 4u);
  EXPECT_EQ(disturbed, undisturbed);
  auto ended = children_.wait(30s);
  while (ended.what == kind::report) ended = children_.wait(30s);
  EXPECT_EQ(ended.name, "decode-0.1");
  EXPECT_EQ(text([](size_t) {}), undisturbed);
  // A new process takes the seat, and both ranks serve again.
  start("decode-0/1", {"--join", director_});
  EXPECT_FALSE(report("decode-0.1", "joined").is_null());
  EXPECT_EQ(text([](size_t) {}), undisturbed);
}

// The role of a seat in `troupe status --json`; null when it does not answer.
json seat_status(const std::string& director, const std::string& seat) {
  const auto p = troupe({"status", "--director", director, "--json"});
  const json all = json::parse(p.out, nullptr, false);
  if (!all.is_object()) return nullptr;
  for (const auto& n : all["nodes"])
    for (const auto& r : n["roles"])
      if (r["seat"] == seat) return r;
  return nullptr;
}

// Stopped in the middle of a hand-over, then killed: the decode side computes the prompt instead, to the same text.
// Incarnation of every node but the director's, and whether every seat is filled and ready.
json lives(const std::string& director) {
  const auto p = troupe({"status", "--director", director, "--json"});
  const json all = json::parse(p.out, nullptr, false);
  json out{{"complete", all.is_object() && all["complete"] == true}};
  if (all.is_object())
    for (const auto& n : all["nodes"])
      if (n["name"] != "director") out[n["name"].get<std::string>()] = n["incarnation"];
  return out;
}

// The director dies in the middle of a stream, and another one is started in the middle of the next: no token is
// missed, and every process goes on with the incarnation that it has.
TEST_F(nodes, a_director_that_is_started_again_takes_over_what_runs) {
  const std::string undisturbed = text([](size_t) {});
  const json before = lives(director_);
  ASSERT_EQ(before["complete"], true) << before.dump();
  EXPECT_EQ(text([&](size_t n) {
              if (n == 4) kill(children_.running().at("director"), SIGKILL);
            }),
            undisturbed);
  auto ended = children_.wait(30s);
  while (ended.what == kind::report) ended = children_.wait(30s);
  EXPECT_EQ(ended.name, "director");
  EXPECT_EQ(text([&](size_t n) {
              if (n == 4) start("director", {"--set", "director.listen=" + director_});
            }),
            undisturbed);
  const nanoseconds deadline = steady_clock().now() + 20s;
  json after;
  do after = lives(director_);
  while (after["complete"] != true && steady_clock().now() < deadline);
  EXPECT_EQ(after, before);
  EXPECT_EQ(text([](size_t) {}), undisturbed);
}

TEST_F(nodes, a_prefill_process_that_dies_while_its_pages_are_pulled_costs_no_token) {
  const std::string undisturbed = text([](size_t) {});
  bool seen = false;
  for (int i = 0; i < 40 && !seen; ++i) {
    // Stopped at the first token: when the second does not come, the decode rank waits for the stopped process.
    const pid_t prefill = children_.running().at("prefill-0.0");
    std::mutex mutex;
    std::condition_variable changed;
    size_t chunks = 0;
    std::jthread watcher([&] {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, 60s, [&] { return chunks > 0; });
      seen = !changed.wait_for(lock, 700ms, [&] { return chunks > 1; });
      kill(prefill, seen ? SIGKILL : SIGCONT);
    });
    const std::string disturbed = text([&](size_t n) {
      if (n == 1) kill(prefill, SIGSTOP);
      std::lock_guard lock(mutex);
      chunks = n;
      changed.notify_all();
    });
    watcher.join();
    EXPECT_EQ(disturbed, undisturbed);
    if (disturbed.empty()) return;
  }
  std::printf("killed while a hand-over was under way: %s\n", seen ? "yes" : "no, 40 times too late");
  if (!seen) return;
  auto ended = children_.wait(30s);
  while (ended.what == kind::report) ended = children_.wait(30s);
  EXPECT_EQ(ended.name, "prefill-0.0");
  EXPECT_EQ(text([](size_t) {}), undisturbed) << "without a prefill rank";
  start("prefill-0/0", {"--join", director_});
  EXPECT_FALSE(report("prefill-0.0", "joined").is_null());
  EXPECT_EQ(text([](size_t) {}), undisturbed);
  for (const char* seat : {"decode-0/0", "decode-0/1"}) {
    json s;
    const nanoseconds deadline = steady_clock().now() + 20s;  // the last slot closes behind the last token
    do s = seat_status(director_, seat);
    while ((!s.is_object() || s["rank"]["pages_owned"] != 0) && steady_clock().now() < deadline);
    ASSERT_TRUE(s.is_object());
    EXPECT_EQ(s["pages"]["free"], s["pages"]["total"]) << s.dump();
    EXPECT_EQ(s["rank"]["pages_owned"], 0) << s.dump();
    EXPECT_EQ(s["transfers"]["places_free"], s["transfers"]["places"]) << s.dump();
  }
}

class fronts : public nodes {
 protected:
  void SetUp() override {
    more_ = {"--set", "front.count=2"};
    nodes::SetUp();
  }
};

// The front with the balancers dies: the stream of the other goes on, what the dead one had placed is freed, and the
// balancers of the other take over.
TEST_F(fronts, a_killed_front_frees_its_leases_and_the_other_goes_on) {
  start("front/1", {"--join", director_, "--set", "front.count=2"});
  const std::string first = http_, second = report("front.1", "http").get<std::string>();
  EXPECT_EQ(report("front.1", "ready"), true);
  const std::string undisturbed = text([](size_t) {});
  std::jthread doomed([&] {
    cli::http_request r;
    r.server = *config::parse_address(first);
    r.target = "/v1/completions";
    r.body = json{{"model", "tiny-v41"}, {"prompt", "x"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}}
                 .dump();
    (void)cli::fetch_stream(r, [](std::string_view) { return true; });
  });
  http_ = second;
  EXPECT_EQ(text([&](size_t n) {
              if (n == 4) kill(children_.running().at("front.0"), SIGKILL);
            }),
            undisturbed);
  auto ended = children_.wait(30s);
  while (ended.what == kind::report) ended = children_.wait(30s);
  EXPECT_EQ(ended.name, "front.0");
  EXPECT_EQ(text([](size_t) {}), undisturbed);
  json balancer;
  const nanoseconds deadline = steady_clock().now() + 20s;
  do {
    const auto p = troupe({"status", "--director", director_, "--json"});
    const json j = json::parse(p.out, nullptr, false);
    balancer = j.is_object() && !j["balancers"].empty() ? j["balancers"][0] : json();
  } while ((balancer.is_null() || balancer["leases"] != 0) && steady_clock().now() < deadline);
  EXPECT_EQ(balancer["role"], "decode");
  EXPECT_EQ(balancer["seat"], "front/1");
  EXPECT_EQ(balancer["leases"], 0) << balancer.dump();
  for (const char* seat : {"decode-0/0", "decode-0/1"}) {
    json s;
    do s = seat_status(director_, seat);
    while ((!s.is_object() || s["running"] != 0) && steady_clock().now() < deadline);
    EXPECT_EQ(s["running"], 0) << s.dump();
  }
}

// A client whose front dies has its answer go on at the other one, by request id, with the same text: also without a
// seed of its own.
TEST_F(fronts, a_client_whose_front_dies_gets_the_rest_from_another) {
  start("front/1", {"--join", director_, "--set", "front.count=2"});
  const std::string first = http_, second = report("front.1", "http").get<std::string>();
  EXPECT_EQ(report("front.1", "ready"), true);
  const auto stream = [&](const std::string& server, const std::string& from, std::string& out, std::string& last,
                          const std::function<void(size_t)>& on_chunk) {
    cli::http_request r;
    r.server = *config::parse_address(server);
    r.target = "/v1/completions";
    r.request_id = "the-same";
    r.last_event_id = from;
    r.body = json{{"model", "tiny-v41"}, {"prompt", "Same tokens"}, {"max_tokens", 120},
                  {"temperature", 0.8},  {"ignore_eos", true},      {"stream", true}}
                 .dump();
    size_t chunks = 0;
    return cli::fetch_stream(
        r,
        [&](std::string_view data) {
          const json j = json::parse(data);
          EXPECT_FALSE(j.contains("error")) << j.dump();
          if (j.contains("choices") && !j["choices"].empty()) out += j["choices"][0]["text"].get<std::string>();
          on_chunk(++chunks);
          return true;
        },
        &last);
  };
  std::string undisturbed, text, last;
  ASSERT_TRUE(stream(second, "", undisturbed, last, [](size_t) {}));
  ASSERT_FALSE(undisturbed.empty());
  EXPECT_FALSE(stream(first, "", text, last, [&](size_t n) {
    if (n == 4) kill(children_.running().at("front.0"), SIGKILL);
  }));
  EXPECT_LT(text.size(), undisturbed.size());
  const std::string at = last;
  ASSERT_TRUE(stream(second, at, text, last, [](size_t) {}));
  EXPECT_EQ(text, undisturbed);
  EXPECT_GT(std::stoul(last), std::stoul(at));
  auto ended = children_.wait(30s);
  while (ended.what == kind::report) ended = children_.wait(30s);
  EXPECT_EQ(ended.name, "front.0");
}

TEST_F(nodes, a_node_that_cannot_reach_its_director_gives_up) {
  auto p = troupe(
      {"node", "-c", local, "--seat", "decode-0/0", "--join", "127.0.0.1:1", "--set", "cluster.join_timeout=1s"});
  EXPECT_EQ(p.code, 3);
  EXPECT_THAT(p.err, testing::HasSubstr("could not join the cluster at 127.0.0.1:1 within 1s"));
}

}  // namespace
}  // namespace troupe::tests
