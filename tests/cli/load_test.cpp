// The arithmetic of `troupe bench serve`: percentiles, what is sent and when, and the reading of event streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "runtime/base/rng.hpp"
#include "runtime/cli/load/histogram.hpp"
#include "runtime/cli/load/plan.hpp"
#include "runtime/cli/load/report.hpp"
#include "runtime/cli/load/sse.hpp"

namespace troupe::cli {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(load_histogram, percentiles_are_within_a_128th_of_the_exact_ones) {
  const uint64_t seed = 7;
  rng random(seed);
  for (double scale : {10.0, 1e4, 1e7, 1e10}) {
    latency_histogram h;
    std::vector<int64_t> exact;
    for (int i = 0; i < 20000; ++i) {
      const auto v = static_cast<int64_t>(-std::log1p(-random.uniform()) * scale);
      h.add(nanoseconds(v));
      exact.push_back(v);
    }
    std::sort(exact.begin(), exact.end());
    for (double share : {0.01, 0.5, 0.9, 0.99, 0.999}) {
      const auto want = static_cast<double>(exact[static_cast<size_t>(std::ceil(share * 20000)) - 1]);
      EXPECT_NEAR(static_cast<double>(h.at(share).count()), want, want / 128 + 1) << share << " of " << scale;
    }
    EXPECT_EQ(h.least().count(), exact.front());
    EXPECT_EQ(h.at(0).count(), exact.front());
    EXPECT_EQ(h.at(1).count(), exact.back());
    double sum = 0;
    for (int64_t v : exact) sum += static_cast<double>(v);
    EXPECT_NEAR(static_cast<double>(h.mean().count()), sum / 20000, 1);
  }
}

TEST(load_histogram, edges) {
  latency_histogram h;
  EXPECT_EQ(h.at(0.5), 0ns);
  EXPECT_EQ(h.mean(), 0ns);
  EXPECT_EQ(h.least(), 0ns);
  h.add(5ms, 0);
  EXPECT_EQ(h.count(), 0u);
  h.add(-3ns);
  h.add(nanoseconds::max());
  EXPECT_EQ(h.count(), 2u);
  EXPECT_EQ(h.at(0.5), 0ns);
  EXPECT_EQ(h.at(1), nanoseconds::max());
  latency_histogram one;
  one.add(1234567ns, 9);
  for (double share : {0.0, 0.5, 1.0}) EXPECT_EQ(one.at(share), 1234567ns) << "a single value is exact";
}

kv::trace_request recorded(int64_t ms, uint32_t input, std::vector<uint64_t> ids, uint32_t output) {
  return {.timestamp_ms = ms, .input_tokens = input, .output_tokens = output, .ids = std::move(ids)};
}

std::vector<load_request> all_of(load_options o, uint64_t* skipped = nullptr) {
  auto p = load_plan::make(std::move(o));
  EXPECT_TRUE(p) << p.error().message;
  std::vector<load_request> out;
  while (auto r = p->next()) out.push_back(std::move(*r));
  if (skipped) *skipped = p->skipped();
  return out;
}

TEST(load_plan, a_trace_keeps_times_lengths_and_shared_prefixes) {
  load_options o;
  o.trace = {recorded(3000, 1100, {0, 1, 2}, 100), recorded(6000, 1200, {0, 1, 3}, 1), recorded(6000, 600, {0, 4}, 0)};
  o.speed = 10;
  o.output = {7, 7};
  const auto r = all_of(o);
  ASSERT_EQ(r.size(), 3u);
  EXPECT_EQ(r[0].due, 0ns);
  EXPECT_EQ(r[1].due, 300ms);
  EXPECT_EQ(r[2].due, 300ms);
  EXPECT_EQ(r[0].input_tokens, 1100u);
  EXPECT_EQ(r[0].output_tokens, 100u);
  EXPECT_EQ(r[2].output_tokens, 7u) << "the trace does not say";

  const auto prompt = [](const load_request& x, uint32_t block) { return prompt_of(x, block, 4096, 5); };
  const auto common = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    size_t n = 0;
    while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
    return n;
  };
  const auto a = prompt(r[0], 512), b = prompt(r[1], 512), c = prompt(r[2], 512);
  EXPECT_EQ(a.size(), 1100u);
  EXPECT_EQ(common(a, b), 1024u);
  EXPECT_EQ(common(a, c), 512u);
  EXPECT_GE(*std::min_element(a.begin(), a.end()), 3);
  EXPECT_LT(*std::max_element(a.begin(), a.end()), 4096);
  EXPECT_EQ(prompt(r[0], 512), a) << "the same every time";
  EXPECT_LT(common(prompt_of(r[0], 512, 4096, 6), a), 4u) << "another seed";

  o.block_tokens = 48;  // lengths and blocks shrink together
  const auto small = all_of(o);
  EXPECT_EQ(small[0].input_tokens, 104u);  // 2 * 48 + 76 * 48 / 512, rounded up
  EXPECT_EQ(small[0].output_tokens, 10u);
  EXPECT_EQ(small[1].output_tokens, 1u);
  EXPECT_EQ(common(prompt(small[0], 48), prompt(small[1], 48)), 96u);
}

TEST(load_plan, a_trace_that_begins_again_has_new_ids_and_later_times) {
  load_options o;
  o.trace = {recorded(0, 512, {0}, 5), recorded(1000, 1024, {0, 9}, 5), recorded(4000, 512, {3}, 5)};
  o.loop = true;
  o.limit = 7;
  const auto r = all_of(o);
  ASSERT_EQ(r.size(), 7u);
  EXPECT_EQ(r[3].due, 6s) << "as if a request came at the mean distance after the last";
  EXPECT_EQ(r[6].due, 12s);
  EXPECT_THAT(r[1].ids, ElementsAre(0u, 9u));
  EXPECT_THAT(r[4].ids, ElementsAre(10u, 19u));
  EXPECT_THAT(r[5].ids, ElementsAre(13u));
}

TEST(load_plan, requests_beyond_the_context_are_skipped_and_counted) {
  load_options o;
  o.trace = {recorded(0, 100, {0}, 28), recorded(0, 100, {0}, 29), recorded(0, 10, {1}, 5)};
  o.context = 128;
  uint64_t skipped = 0;
  EXPECT_EQ(all_of(o, &skipped).size(), 2u);
  EXPECT_EQ(skipped, 1u);
  o.context = 10;
  o.loop = true;
  o.limit = 5;
  EXPECT_EQ(all_of(o, &skipped).size(), 0u) << "it ends though nothing ever fits";
  o.trace.clear();
  o.loop = false;
  const auto never = load_plan::make(o);  // at least 64 + 16 tokens
  ASSERT_FALSE(never);
  EXPECT_THAT(never.error().message, HasSubstr("do not fit the context of 10"));
  o.input = {1, 4000};
  o.output = {1, 1};
  EXPECT_EQ(all_of(o, &skipped).size(), 5u) << "one in 400 fits: it goes on until there are enough";
  EXPECT_GT(skipped, 100u);
}

TEST(load_plan, some_conversations_of_a_trace_are_whole) {
  std::vector<kv::trace_request> trace;
  for (int64_t i = 0; i < 4000; ++i) {
    const uint64_t c = 1 + static_cast<uint64_t>(i % 1000);
    trace.push_back(recorded(i, 1024, {0, c}, 1));
  }
  for (int64_t i = 0; i < 1000; ++i) trace.push_back(recorded(4000 + i, 100, {0}, 1));
  EXPECT_EQ(some_conversations(trace, 1, 3).size(), trace.size());
  const auto some = some_conversations(trace, 8, 3);
  std::map<uint64_t, int> turns;
  int alone = 0;
  for (const auto& r : some) r.ids.size() > 1 ? (void)++turns[r.ids[1]] : (void)++alone;
  for (const auto& [c, n] : turns) EXPECT_EQ(n, 4) << c;
  EXPECT_NEAR(static_cast<double>(turns.size()), 125, 35);
  EXPECT_NEAR(alone, 125, 35);
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end(),
                             [](const auto& a, const auto& b) { return a.timestamp_ms < b.timestamp_ms; }));
  const auto others = some_conversations(trace, 8, 4);
  EXPECT_NE(others.front().ids, some.front().ids) << "another seed, others";
}

TEST(load_plan, what_is_drawn_follows_the_seed_and_the_shares) {
  load_options o;
  o.limit = 4000;
  o.rate = 100;
  o.input = {10, 20};
  o.output = {5, 5};
  o.cancel_share = 0.25;
  o.slow_share = 0.1;
  o.seed = 11;
  const auto r = all_of(o);
  ASSERT_EQ(r.size(), 4000u);
  EXPECT_NEAR(std::chrono::duration<double>(r.back().due).count(), 40, 3);
  EXPECT_TRUE(std::is_sorted(r.begin(), r.end(), [](const auto& a, const auto& b) { return a.due < b.due; }));
  uint64_t leave = 0, slow = 0, input = 0, at_once = 0;
  for (const auto& x : r) {
    leave += x.leaves_at.has_value();
    slow += x.slow;
    input += x.input_tokens;
    EXPECT_TRUE(x.input_tokens >= 10 && x.input_tokens <= 20);
    if (x.leaves_at) {
      EXPECT_LT(*x.leaves_at, 5u);
      at_once += *x.leaves_at == 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(leave), 1000, 100);
  EXPECT_NEAR(static_cast<double>(slow), 400, 80);
  EXPECT_NEAR(static_cast<double>(input) / 4000, 15, 0.3);
  EXPECT_NEAR(static_cast<double>(at_once), 200, 50);

  auto other = o;
  other.cancel_share = 0;
  other.rate = 0;
  const auto same = all_of(other);
  for (size_t i = 0; i < r.size(); ++i) {
    EXPECT_EQ(same[i].input_tokens, r[i].input_tokens);
    EXPECT_EQ(same[i].slow, r[i].slow);
    EXPECT_EQ(same[i].due, 0ns);
  }
  o.duration = 10s;
  EXPECT_NEAR(static_cast<double>(all_of(o).size()), 1000, 120);
  EXPECT_NE(prompt_of(r[0], 512, 4096, 1), prompt_of(r[1], 512, 4096, 1)) << "prompts of their own";
}

TEST(load_plan, loads_without_an_end_or_sense_are_refused) {
  const auto refused = [](load_options o) {
    const auto p = load_plan::make(std::move(o));
    return p ? std::string() : p.error().message;
  };
  load_options o;
  EXPECT_THAT(refused(o), HasSubstr("needs an end"));
  o.limit = 1;
  EXPECT_EQ(refused(o), "");
  o.loop = true;
  EXPECT_THAT(refused(o), HasSubstr("no trace"));
  o.loop = false;
  o.cancel_share = 1.5;
  EXPECT_THAT(refused(o), HasSubstr("from 0 to 1"));
  EXPECT_EQ(*parse_token_range("7"), (token_range{7, 7}));
  EXPECT_EQ(*parse_token_range("7-90"), (token_range{7, 90}));
  for (const char* bad : {"", "0", "-3", "9-7", "7-", "7-8-9", "x", "99999999999", "3 "})
    EXPECT_FALSE(parse_token_range(bad)) << bad;
}

TEST(load_sse, events_come_out_whole_whatever_the_pieces_are) {
  const std::string text =
      ": a comment\n\nid: 12\ndata: {\"a\":1}\n\ndata:two\r\ndata: lines\r\n\r\nid: x\nevent: y\ndata: [DONE]\n\ndata: "
      "open";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    sse_reader reader;
    std::vector<sse_event> events;
    for (size_t at = 0; at < text.size(); at += piece)
      ASSERT_TRUE(reader.feed(std::string_view(text).substr(at, piece), [&](const auto& e) { events.push_back(e); }));
    ASSERT_EQ(events.size(), 3u) << piece;
    EXPECT_EQ(events[0].data, "{\"a\":1}");
    EXPECT_EQ(events[0].id, 12u);
    EXPECT_EQ(events[1].data, "two\nlines");
    EXPECT_FALSE(events[1].id);
    EXPECT_EQ(events[2].data, "[DONE]");
    EXPECT_FALSE(events[2].id) << "no number";
  }
  sse_reader endless;
  const std::string much(sse_reader::limit / 4, 'x');
  bool good = true;
  for (int i = 0; i < 5 && good; ++i) good = endless.feed(much, [](const auto&) {});
  EXPECT_FALSE(good) << "a stream without an end to its event is not kept for ever";
}

TEST(load_report, what_the_ranks_did_adds_up_to_the_time_that_passed) {
  node::cluster_picture before, after;
  auto& b = before.ranks["decode-0/0"];
  auto& a = after.ranks["decode-0/0"];
  b.steps = 10, a.steps = 30;
  b.times = {.total = 1'000'000, .attention = 100, .experts = 100};
  a.times = {.total = 601'000'000,
             .attention = 200'000'100,
             .dispatch = 50'000'000,
             .experts = 250'000'100,
             .combine = 40'000'000,
             .sampling = 10'000'000};
  a.gaps = {20, 30'000'000, 6'000'000, 600'000'000};
  after.ranks["prefill-0/0"].steps = 3;  // was not there before
  after.ranks["prefill-0/0"].times.total = 5'000'000;
  before.schedulers["decode-0/0"].tokens = 5;
  after.schedulers["decode-0/0"].tokens = 105;
  const auto j = ranks_json(before, after, 1s);
  const auto& d = j["roles"]["decode"];
  EXPECT_EQ(d["steps"], 20);
  EXPECT_EQ(d["tokens"], 100);
  EXPECT_EQ(d["step_ms"], 30.0);
  EXPECT_EQ(d["ms"]["other"], 50.0);
  EXPECT_EQ(d["ms"]["idle"], 400.0);
  double sum = 0;
  for (const auto& [name, share] : d["share"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-3);
  EXPECT_EQ(d["gap"]["ms"], 24.0);
  EXPECT_EQ(d["gap"]["share_of_steps"], 0.04);
  EXPECT_EQ(j["roles"]["prefill"]["ms"]["idle"], 995.0);
  EXPECT_EQ(j["ranks"].size(), 2u);
}

}  // namespace
}  // namespace troupe::cli
