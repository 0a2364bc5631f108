// Same tokens, any layout, on whole clusters: the same requests over HTTP, byte for byte the same answers (text,
// log-probabilities and alternatives), however the cluster is laid out and how many requests run at once.
//
// Factors: prompts run by prefill ranks and handed over, or by the decode group; expert parallelism over 1, 2 or 4
// ranks; drafts; experts moved every 10 steps; the next step planned ahead; a pool so small that sequences are
// preempted and resumed; prompts of which a part comes from the store (exact replay, or window snapshots) or nothing;
// one request at a time or 32. One factor at a time and some seeded combinations of all; TROUPE_LONG=1: every
// combination, on tiny-v41 and on mini.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/rng.hpp"
#include "runtime/cli/http_client.hpp"
#include "tests/scenarios/live_cluster.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr size_t many = 32;

struct layout {
  bool handed_over = false;  // by a prefill rank
  uint32_t ep = 1;
  bool drafts = false, flips = false, ahead = true, small_pool = false, cache = false, snapshots = false;  // of windows

  std::string name() const {
    return fmt::format("{}, EP {}, {} drafts, experts {}, planned {}, {} pool, {} cache",
                       handed_over ? "handed over" : "aggregated", ep, drafts ? "with" : "no", flips ? "move" : "stay",
                       ahead ? "ahead" : "late", small_pool ? "small" : "large",
                       !cache      ? "no"
                       : snapshots ? "a snapshot"
                                   : "a replay");
  }
  int processes() const { return 2 + static_cast<int>(handed_over) + static_cast<int>(ep) + static_cast<int>(cache); }
};

struct checkpoint {
  std::string name, path;
  uint32_t vocabulary, window;
};

const checkpoint tiny{"tiny-v41", TROUPE_TEST_DATA "/tiny-v41", 512, 16};
const checkpoint mini{"mini", std::string(TROUPE_SOURCE_DIR) + "/configs/models/mini", 4096, 128};

bool long_run() {
  const char* v = std::getenv("TROUPE_LONG");
  return v && std::string(v) == "1";
}

std::vector<std::string> overrides_of(const layout& l, const checkpoint& m, const std::string& store) {
  // A rank writes back what a quarter of its pages hold, so with 13 nothing would ever be stored.
  const uint32_t context = 12 * m.window, pages = !l.small_pool ? 12 * many : l.cache && !l.handed_over ? 40 : 13;
  std::vector<std::string> out{"model.path=" + m.path,
                               fmt::format("prefill.ranks={}", l.handed_over ? 1 : 0),
                               fmt::format("prefill.max_context={}", context),
                               fmt::format("decode.max_context={}", context),
                               fmt::format("decode.ranks={}", l.ep),
                               fmt::format("decode.ep={}", l.ep),
                               fmt::format("decode.pages={}", pages),
                               "cluster.lost_after=120s",  // a machine that stands still for a while loses no rank
                               "cluster.connection_timeout=120s",
                               "transport.peer_deadline=60s",
                               "transport.step_deadline=60s",
                               "decode.handoffs=32",
                               "prefill.handoffs=32",
                               fmt::format("engine.speculation={}", l.drafts),
                               fmt::format("engine.plan_ahead={}", l.ahead),
                               fmt::format("decode.rebalance_every={}", l.flips ? 10 : 0)};
  if (l.flips) out.insert(out.end(), {"eplb.min_gain=0", "decode.split_window=2"});
  if (l.cache)
    out.insert(out.end(),
               {"storage.path=" + store, "storage.nodes=1", "storage.data=1", "storage.parity=0", "storage.chunk=4MiB",
                "storage.capacity=512MiB", "engine.replay=exact", "cache.match_timeout=5s", "cache.read_at_least=5s",
                fmt::format("cache.snapshots={}", l.snapshots ? 64 : 0)});
  return out;
}

// Prompts of a token to some windows, half of them greedy. Some are so long that exact replay leaves something to
// reuse, some fill their pages but for a token, so that answers soon need another page, which a small pool has not.
std::vector<json> requests_for(const checkpoint& m, uint64_t seed) {
  rng random(seed);
  std::vector<json> out;
  for (size_t i = 0; i < many; ++i) {
    uint64_t length = 1 + random.below(2 * m.window);
    if (i % 8 == 0) length = 8 * m.window + 1 + random.below(m.window);
    if (i % 8 == 4) length = 1 + random.below(9 * m.window);
    if (i % 4 == 3) length = (i % 8 == 3 ? 1 : 2) * m.window - 1;
    std::vector<uint32_t> prompt(length);
    for (auto& t : prompt) t = 3 + static_cast<uint32_t>(random.below(m.vocabulary - 4));
    out.push_back({{"model", m.name},
                   {"prompt", prompt},
                   {"max_tokens", 4 + i % 29},
                   {"temperature", i % 2 ? 0.8 : 0.0},
                   {"top_p", i % 6 == 1 ? 0.9 : 1.0},
                   {"seed", random.below(1u << 30)},
                   {"ignore_eos", i % 3 != 0},
                   {"logprobs", 5}});
  }
  return out;
}

class served {
 public:
  served(const layout& l, const checkpoint& m)
      : layout_(l), cluster_(overrides_of(l, m, folder_.path + "/kv"), true, l.processes()) {}

  bool ready() const { return cluster_.ready; }
  std::string output() const { return cluster_.output(); }

  // What must be the same: the choice with all its numbers, and the count of tokens.
  std::string ask(const json& body) const {
    cli::http_request q;
    q.server = *config::parse_address(cluster_.facts.http);
    q.target = "/v1/completions";
    q.body = body.dump();
    const auto r = cli::fetch(q);
    if (!r) return r.error().message;
    const auto j = json::parse(r->body, nullptr, false);
    if (r->status != 200 || !j.is_object()) return cli::error_text(*r);
    cached_ += j["usage"]["prompt_tokens_details"]["cached_tokens"].get<uint64_t>();
    return j["choices"][0].dump() + j["usage"]["completion_tokens"].dump();
  }

  std::vector<std::string> one_by_one(const std::vector<json>& all) const {
    std::vector<std::string> out;
    for (const auto& r : all) out.push_back(ask(r));
    return out;
  }

  std::vector<std::string> at_once(const std::vector<json>& all) const {
    std::vector<std::string> out(all.size());
    std::vector<std::jthread> clients;
    for (size_t i = 0; i < all.size(); ++i) clients.emplace_back([&, i] { out[i] = ask(all[i]); });
    clients.clear();
    return out;
  }

  json status() const { return json::parse(troupe({"status", "--run-dir", cluster_.run_dir(), "--json"}).out); }

  static uint64_t sum(const json& status, const std::string& role, const std::string& key) {
    uint64_t out = 0;
    for (const auto& n : status["nodes"])
      for (const auto& r : n["roles"])
        if (r["role"] == role && r.contains(key)) out += r[key].get<uint64_t>();
    return out;
  }

  // The front may answer before it has found the prefill rank: goes on until a sequence has been handed over.
  void wait_for_hand_over(const json& request) const {
    const auto deadline = steady_clock().now() + 60s;
    while (layout_.handed_over && sum(status(), "decode", "fetched") < 2 && steady_clock().now() < deadline)
      ask(request);
  }

  // Is what the layout's name says happening? `why` says what is not.
  bool factors_hold(std::string& why) const {
    const json s = status();
    why.clear();
    const auto need = [&](bool good, const char* what) {
      if (!good) why += std::string(what) + "; ";
    };
    need(sum(s, "decode", "fetched") > many == layout_.handed_over, "sequences handed over");
    need(sum(s, "prefill", "prompt_rows") > many == layout_.handed_over, "prompts of prefill ranks");
    need(sum(s, "decode", "drafted") > 0 == layout_.drafts, "drafts");
    need(sum(s, "decode", "preempted") > 0 == layout_.small_pool, "preempted sequences");
    need(cached_ > 0 == layout_.cache, "prompts of which a part was stored");
    need(!layout_.flips || (s["experts"].size() == 1 && s["experts"][0]["moves"] >= 2), "moves of experts");
    return why.empty();
  }

  int stop() { return cluster_.stop(SIGTERM); }

 private:
  const layout layout_;
  temporary_folder folder_;
  live_cluster cluster_;
  mutable std::atomic<uint64_t> cached_ = 0;  // prompt tokens that came from the store, of all answers
};

void run_matrix(const checkpoint& m, const std::vector<layout>& layouts, uint64_t seed) {
  const auto requests = requests_for(m, seed);
  std::vector<std::string> want;
  {
    served base({}, m);
    ASSERT_TRUE(base.ready()) << base.output();
    want = base.one_by_one(requests);
    EXPECT_EQ(base.at_once(requests), want) << "32 at once, aggregated, EP 1, seed " << seed;
    std::string why;
    EXPECT_TRUE(base.factors_hold(why)) << why;
    EXPECT_EQ(base.stop(), 0);
  }
  for (const auto& w : want) ASSERT_THAT(w, testing::HasSubstr("token_logprobs"));
  for (const layout& l : layouts) {
    SCOPED_TRACE(fmt::format("{}: {}, seed {}", m.name, l.name(), seed));
    served c(l, m);
    ASSERT_TRUE(c.ready()) << c.output();
    c.wait_for_hand_over(requests[0]);
    const auto alone = c.one_by_one(requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(alone[i], want[i]) << "request " << i << " alone";
    // All at once, and again until everything has happened that the layout is about.
    const auto deadline = steady_clock().now() + (long_run() ? 300s : 60s);
    std::string why;
    do {
      const auto at_once = c.at_once(requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(at_once[i], want[i]) << "request " << i << " of 32 at once";
    } while (!c.factors_hold(why) && steady_clock().now() < deadline && !testing::Test::HasFailure());
    EXPECT_EQ(why, "") << "did not happen, or should not have";
    EXPECT_EQ(c.stop(), 0) << c.output();
    if (testing::Test::HasFailure()) return;
  }
}

std::vector<layout> every_layout() {
  std::vector<layout> out;
  for (bool handed_over : {false, true})
    for (uint32_t ep : {1u, 2u, 4u})
      for (bool drafts : {false, true})
        for (bool flips : {false, true})
          for (bool small_pool : {false, true})
            for (bool cache : {false, true})
              // Over 4 ranks there is too little for a pool that is large enough to write back from.
              if ((ep > 1 || !flips) && (handed_over || ep < 4 || !small_pool || !cache))
                out.push_back({handed_over, ep, drafts, flips, !(drafts && small_pool), small_pool, cache,
                               cache && drafts == flips});
  return out;
}

TEST(identity_matrix, tiny) {
  const uint64_t seed = entropy_seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::vector<layout> layouts;
  if (long_run()) {
    layouts = every_layout();
  } else {
    layouts = {{.handed_over = true},
               {.ep = 2},
               {.ep = 4},
               {.drafts = true},
               {.ep = 2, .flips = true},
               {.ahead = false},
               {.small_pool = true},
               {.cache = true},
               {.cache = true, .snapshots = true}};
    rng random(seed, 1);
    const auto all = every_layout();
    for (int i = 0; i < 3; ++i) layouts.push_back(all[random.below(all.size())]);
  }
  run_matrix(tiny, layouts, seed);
}

TEST(identity_matrix, mini) {
  const uint64_t seed = entropy_seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  // A layout with everything on; all of them in the long run.
  run_matrix(mini, long_run() ? every_layout() : std::vector<layout>{{true, 2, true, true, true, false, true, true}},
             seed);
}

}  // namespace
}  // namespace troupe::tests
