// Whole clusters of processes: requests over HTTP, the same tokens as without a cluster, and nothing left behind
// however it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/cli/http_client.hpp"
#include "tests/scenarios/live_cluster.hpp"
#include "tests/support/damaged_model.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string tiny = std::string(TROUPE_TEST_DATA) + "/tiny-v41";

cli::http_request request(const live_cluster& c, const std::string& target, const json& body) {
  cli::http_request r;
  r.server = *config::parse_address(c.facts.http);
  r.target = target;
  if (!body.is_null()) r.body = body.dump();
  return r;
}

json completion(const std::string& prompt, uint32_t tokens) {
  return {{"model", "tiny-v41"}, {"prompt", prompt}, {"max_tokens", tokens},
          {"temperature", 0.8},  {"seed", 5},        {"ignore_eos", true}};
}

// The text of the whole stream, and whether its last chunk came.
std::pair<std::string, bool> stream_text(const live_cluster& c, json body) {
  body["stream"] = true;
  std::pair<std::string, bool> out;
  auto r = cli::fetch_stream(request(c, "/v1/completions", body), [&](std::string_view data) {
    json j = json::parse(data);
    if (j.contains("error") || j["choices"].empty()) return true;
    out.first += j["choices"][0]["text"].get<std::string>();
    out.second |= !j["choices"][0]["finish_reason"].is_null();
    return true;
  });
  EXPECT_TRUE(r) << r.error().message;
  return out;
}

TEST(up, serves_over_http_and_leaves_nothing_behind) {
  auto before = shared_memory_names();
  live_cluster c;
  ASSERT_TRUE(c.ready) << c.output();
  EXPECT_EQ(c.facts.processes.size(), 5u);
  for (const char* seat : {"director", "front/0", "prefill-0/0", "decode-0/0", "decode-0/1"})
    EXPECT_THAT(c.table, HasSubstr(seat));
  for (const auto& p : c.facts.processes) EXPECT_THAT(c.table, HasSubstr(std::to_string(p.pid)));
  EXPECT_THAT(c.table, HasSubstr(c.facts.http));

  auto models = cli::fetch(request(c, "/v1/models", nullptr));
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_EQ(json::parse(models->body)["data"][0]["id"], "tiny-v41");

  auto whole = cli::fetch(request(c, "/v1/completions", completion("Once upon a time", 24)));
  ASSERT_TRUE(whole) << whole.error().message;
  ASSERT_EQ(whole->status, 200) << whole->body;
  json answer = json::parse(whole->body);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  auto streamed = stream_text(c, completion("Once upon a time", 24));
  EXPECT_TRUE(streamed.second);
  EXPECT_EQ(streamed.first, answer["choices"][0]["text"].get<std::string>());

  // One process with EP 1 and no drafts gives the same text as prefill here, two decode ranks there.
  auto alone = troupe({"generate", "--model", tiny, "--prompt", "Once upon a time", "--max-tokens", "24",
                       "--temperature", "0.8", "--seed", "5", "--ignore-eos", "--no-speculation", "--json"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(json::parse(alone.out)["text"].get<std::string>(), streamed.first);

  auto chat = troupe({"chat", "--run-dir", c.run_dir(), "--once", "hello", "--max-tokens", "8", "--temperature", "0"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_GT(chat.out.size(), 1u);

  auto status = troupe({"status", "--run-dir", c.run_dir(), "--json"});
  EXPECT_EQ(status.code, 0) << status.err;
  json j = json::parse(status.out);
  EXPECT_TRUE(j["complete"]);
  EXPECT_EQ(j["nodes"].size(), 5u);

  auto second = troupe({"up", "-c", std::string(TROUPE_SOURCE_DIR) + "/configs/local.yaml", "--run-dir", c.run_dir()});
  EXPECT_EQ(second.code, 3);
  EXPECT_THAT(second.err, HasSubstr("already (pid " + std::to_string(c.pid()) + ")"));

  EXPECT_EQ(c.stop(SIGTERM), 0) << c.output();
  EXPECT_THAT(c.left_over(), IsEmpty());
  EXPECT_EQ(shared_memory_names(), before);
  EXPECT_EQ(node::read_cluster_file(c.run_dir()).error().code, errc::not_found);
}

TEST(up, two_fronts_serve_the_same_text_and_place_by_one_view) {
  live_cluster c({"front.count=2"});
  ASSERT_TRUE(c.ready) << c.output();
  ASSERT_EQ(c.facts.fronts.size(), 2u);
  EXPECT_EQ(c.facts.fronts[0], c.facts.http);
  std::vector<std::string> texts;
  for (const auto& front : c.facts.fronts) {
    auto r = request(c, "/v1/completions", completion("Once upon a time", 12));
    r.server = *config::parse_address(front);
    auto whole = cli::fetch(r);
    ASSERT_TRUE(whole) << whole.error().message;
    ASSERT_EQ(whole->status, 200) << whole->body;
    texts.push_back(json::parse(whole->body)["choices"][0]["text"]);
    r = request(c, "/metrics", nullptr);
    r.server = *config::parse_address(front);
    auto metrics = cli::fetch(r);
    ASSERT_TRUE(metrics) << metrics.error().message;
    EXPECT_THAT(metrics->body, HasSubstr("troupe_places_total{kind=\"balancer\""));
  }
  EXPECT_EQ(texts[0], texts[1]);
  // Either front may have the balancers; the end of a lease is told behind the last token.
  const testing::Matcher<const std::string&> idle =
      testing::ContainsRegex("decode balancer at front/[01]: used by [12] fronts, 0 leases");
  const nanoseconds deadline = steady_clock().now() + 20s;
  auto status = troupe({"status", "--run-dir", c.run_dir()});
  while (!idle.Matches(status.out) && steady_clock().now() < deadline)
    status = troupe({"status", "--run-dir", c.run_dir()});
  EXPECT_THAT(status.out, idle);
  for (const auto& part : {c.facts.fronts[0], c.facts.fronts[1], std::string("front/1")})
    EXPECT_THAT(status.out, HasSubstr(part));
  EXPECT_EQ(c.stop(SIGTERM), 0) << c.output();
  for (const auto& front : c.facts.fronts) EXPECT_THAT(c.output(), HasSubstr("http://" + front + "/v1"));
  EXPECT_THAT(c.left_over(), IsEmpty());
}

TEST(up, a_stream_that_runs_is_finished_before_the_end) {
  live_cluster c;
  ASSERT_TRUE(c.ready) << c.output();
  bool told = false;
  size_t chunks = 0;
  std::string finish;
  json body = completion("Once upon a time", 400);
  body["stream"] = true;
  auto r = cli::fetch_stream(request(c, "/v1/completions", body), [&](std::string_view data) {
    if (!std::exchange(told, true)) kill(c.pid(), SIGINT);
    json j = json::parse(data);
    ++chunks;
    if (j.contains("error"))
      finish = j.dump();
    else if (!j["choices"].empty() && !j["choices"][0]["finish_reason"].is_null())
      finish = j["choices"][0]["finish_reason"];
    return true;
  });
  EXPECT_TRUE(r) << r.error().message;
  EXPECT_EQ(finish, "length");
  EXPECT_GT(chunks, 10u);
  EXPECT_EQ(c.wait(), 0) << c.output();
  EXPECT_THAT(c.left_over(), IsEmpty());
}

// An upgrade or a build replaces the program while `up` is about to start its processes.
TEST(up, goes_on_when_its_file_is_taken_away) {
  temporary_folder f;
  const std::string copy = f.path + "/troupe";
  std::string printed;
  const std::string script =
      "cp '" + troupe_path() + "' '" + copy + "'; exec 9<'" + copy + "'; rm '" + copy +
      "'; exec /proc/self/fd/9 up -c '" TROUPE_SOURCE_DIR "/configs/local.yaml' --run-dir '" + f.path +
      "/run' --set front.listen=127.0.0.1:0 --set model.path='" TROUPE_TEST_DATA "/tiny-v41' --then true 2>&1";
  FILE* shell = popen(script.c_str(), "r");
  ASSERT_NE(shell, nullptr);
  char buffer[4096];
  while (fgets(buffer, sizeof buffer, shell)) printed += buffer;
  EXPECT_EQ(pclose(shell), 0) << printed;
}

TEST(up, ctrl_c_before_it_is_ready_is_exit_130) {
  auto before = shared_memory_names();
  live_cluster c({}, false);
  EXPECT_EQ(c.stop(SIGINT), 130) << c.output();
  EXPECT_THAT(c.output(), Not(HasSubstr("is served at")));
  EXPECT_EQ(shared_memory_names(), before);
}

TEST(up, a_second_ctrl_c_skips_the_wait) {
  live_cluster c({"cluster.drain_timeout=10m"});
  ASSERT_TRUE(c.ready) << c.output();
  std::atomic<int> chunks = 0, running = 8;
  std::vector<std::jthread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      json body = completion("Once upon a time", 450);
      body["stream"] = true;
      (void)cli::fetch_stream(request(c, "/v1/completions", body), [&](std::string_view) { return ++chunks > 0; });
      --running;
    });
  }
  while (chunks == 0 && running > 0) sched_yield();
  const auto begin = steady_clock().now();
  kill(c.pid(), SIGINT);
  auto told = [&] { return c.output().find("a second Ctrl-C skips the wait") != std::string::npos; };
  while (!told() && running > 0) sched_yield();
  EXPECT_TRUE(told()) << c.output();
  kill(c.pid(), SIGINT);
  c.wait();
  EXPECT_LT(steady_clock().now() - begin, 2min) << "the time to drain is ten";
  EXPECT_THAT(c.left_over(), IsEmpty());
}

// Reads what a program prints until `enough` says so, then sends it a signal; its exit code.
int signal_when(const std::vector<std::string>& args, const std::function<bool(const std::string&)>& enough, int signal,
                std::string& printed) {
  std::vector<std::string> words{troupe_path()};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  bool told = false;
  char buffer[4096];
  for (ssize_t n; (n = read(out[0], buffer, sizeof buffer)) > 0;) {
    printed.append(buffer, static_cast<size_t>(n));
    if (!told && (told = enough(printed))) kill(pid, signal);
  }
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(up, status_watch_looks_again_until_ctrl_c) {
  live_cluster c;
  ASSERT_TRUE(c.ready) << c.output();
  std::string printed;
  auto tables = [](const std::string& s) {
    int n = 0;
    for (size_t at = 0; (at = s.find("ACTORS AT", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(signal_when(
                {"status", "--watch", "--interval", "0.1", "--run-dir", c.run_dir()},
                [&](const std::string& s) { return tables(s) >= 3; }, SIGINT, printed),
            0);
  EXPECT_GE(tables(printed), 3) << printed;
  EXPECT_THAT(printed, Not(HasSubstr("\x1b["))) << "no terminal: no control characters";
}

// The checkpoint passes for whole until its numbers are looked at, which a rank does when it loads.
TEST(up, a_rank_that_fails_ends_the_cluster_with_its_reason) {
  kernels::testing_support::damaged_model m;
  m.damage("norm.weight", 0, 2);
  live_cluster c({"model.path=" + m.path()});
  EXPECT_FALSE(c.ready);
  EXPECT_EQ(c.wait(), 3);
  EXPECT_THAT(c.output(), HasSubstr("cannot start"));
  EXPECT_THAT(c.output(), HasSubstr("norm.weight (1 from value 0"));
  EXPECT_THAT(c.left_over(), IsEmpty());
}

TEST(up, a_dead_rank_ends_the_cluster_with_a_message) {
  auto before = shared_memory_names();
  live_cluster c;
  ASSERT_TRUE(c.ready) << c.output();
  kill(c.pid_of("decode-0.1"), SIGKILL);
  EXPECT_EQ(c.wait(), 1);
  EXPECT_THAT(c.output(), HasSubstr("the process decode-0.1 ended unexpectedly (signal 9 (Killed))"));
  EXPECT_THAT(c.left_over(), IsEmpty());
  EXPECT_EQ(shared_memory_names(), before);
}

TEST(up, children_follow_a_killed_supervisor) {
  auto before = shared_memory_names();
  live_cluster c;
  ASSERT_TRUE(c.ready) << c.output();
  EXPECT_EQ(c.stop(SIGKILL), 128 + SIGKILL);
  EXPECT_THAT(c.left_over(), IsEmpty());
  EXPECT_EQ(shared_memory_names(), before);
}

TEST(up, tcp_only_and_other_layouts_give_the_same_text) {
  std::string text;
  const std::vector<std::vector<std::string>> layouts{
      {"transport.shared_memory=false"},
      {"prefill.handoffs=0"},  // the decode group computes the prompts
      {"decode.ep=1", "engine.isa=portable"},
      {"prefill.ranks=2", "prefill.ep=2", "engine.speculation=false", "decode.threads=2"}};
  for (const auto& layout : layouts) {
    live_cluster c(layout);
    ASSERT_TRUE(c.ready) << c.output();
    auto got = stream_text(c, completion("Same tokens, any layout", 20));
    EXPECT_TRUE(got.second);
    if (text.empty()) text = got.first;
    EXPECT_EQ(got.first, text) << layout[0];
    // Handed over in the way that the layout allows, once the front has found the prefill rank.
    uint64_t fetched = 0, recomputed = 0, bytes = 0;
    for (const auto deadline = steady_clock().now() + 60s;
         fetched + recomputed == 0 && steady_clock().now() < deadline;) {
      EXPECT_EQ(stream_text(c, completion("Same tokens, any layout", 20)).first, text) << layout[0];
      const json j = json::parse(troupe({"status", "--run-dir", c.run_dir(), "--json"}).out);
      for (const auto& n : j["nodes"])
        for (const auto& r : n["roles"]) {
          if (r["role"] != "decode" || !r.contains("transfers")) continue;
          fetched += r["fetched"].get<uint64_t>();
          recomputed += r["recomputed"].get<uint64_t>();
          bytes += r["transfers"]["bytes_in"].get<uint64_t>();
        }
    }
    const bool pulls = layout[0] != "prefill.handoffs=0";
    EXPECT_EQ(fetched > 0, pulls) << layout[0];
    EXPECT_EQ(bytes > 0, pulls) << layout[0];
    EXPECT_EQ(recomputed > 0, !pulls) << layout[0];
    EXPECT_EQ(c.stop(SIGTERM), 0) << c.output();
  }
}

TEST(up, experts_move_while_it_serves_and_the_text_stays) {
  live_cluster c({"decode.rebalance_every=10", "decode.split_window=2", "eplb.min_gain=0"});
  ASSERT_TRUE(c.ready) << c.output();
  const auto text = stream_text(c, completion("Same tokens, any layout", 20)).first;
  json group;
  const auto until = steady_clock().now() + std::chrono::seconds(60);
  do {
    EXPECT_EQ(stream_text(c, completion("Same tokens, any layout", 20)).first, text);
    auto status = troupe({"status", "--run-dir", c.run_dir(), "--json"});
    const json j = json::parse(status.out);
    ASSERT_EQ(j["experts"].size(), 1u) << status.out;
    group = j["experts"][0];
  } while (group["moves"] < 2 && steady_clock().now() < until);
  EXPECT_EQ(group["group"], "decode-0");
  EXPECT_GE(group["moves"], 2) << group;
  EXPECT_EQ(group["abandoned"], 0) << group;
  EXPECT_GT(group["experts_loaded"], 0) << group;
  EXPECT_LE(group["lb_after"], group["lb_before"]);
  EXPECT_GT(group["lb_measured"], 1.0);
  EXPECT_THAT(troupe({"status", "--run-dir", c.run_dir()}).out, HasSubstr("experts of decode-0: placement 1."));
  EXPECT_EQ(c.stop(SIGTERM), 0) << c.output();
}

// engine.kind: cost. The folder has no weights; the same request gives the same text, whoever runs it.
TEST(up, engines_without_weights_serve_the_same_text_in_any_layout) {
  temporary_folder model;
  for (const char* file : {"config.json", "tokenizer.json"})
    std::filesystem::copy_file(tiny + "/" + file, model.path + "/" + file);
  const std::vector<std::string> cost{"engine.kind=cost", "model.path=" + model.path, "model.name=tiny-v41",
                                      "engine.cost_model=" TROUPE_SOURCE_DIR "/configs/sim/cost/v41-flash.yaml"};
  const json asked = completion("Once upon a time, in a far away land, there was a troupe", 40);
  std::vector<std::string> texts;
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"prefill.ranks=2", "decode.ranks=4", "decode.ep=4"},
        std::vector<std::string>{"prefill.ranks=0", "decode.ranks=1", "decode.ep=1"}}) {
    auto overrides = cost;
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    live_cluster c(overrides, true, layout[0].back() == '2' ? 8 : 3);
    ASSERT_TRUE(c.ready) << c.output();
    for (int i = 0; i < 2; ++i) {
      auto r = cli::fetch(request(c, "/v1/completions", asked));
      ASSERT_TRUE(r) << r.error().message;
      ASSERT_EQ(r->status, 200) << r->body << c.output();
      const json answer = json::parse(r->body);
      EXPECT_EQ(answer["usage"]["completion_tokens"], 40);
      texts.push_back(answer["choices"][0]["text"]);
    }
    EXPECT_EQ(c.stop(SIGINT), 0) << c.output();
    EXPECT_THAT(c.left_over(), IsEmpty());
  }
  EXPECT_FALSE(texts[0].empty());
  for (const auto& t : texts) EXPECT_EQ(t, texts[0]);
}

TEST(up, a_model_that_is_not_there_is_named_and_everything_stops) {
  live_cluster c({"model.path=/nonexistent/model"});
  EXPECT_FALSE(c.ready);
  EXPECT_EQ(c.wait(), 2);
  EXPECT_THAT(c.output(), HasSubstr("model.path: there is no folder /nonexistent/model"));
  EXPECT_THAT(c.left_over(), IsEmpty());
}

}  // namespace
}  // namespace troupe::tests
