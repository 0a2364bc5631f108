// Workloads: what is read is what is played, scaled and looped; what is drawn is a function of the seed.
#include "runtime/sim/workload/workload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "runtime/sim/workload/azure.hpp"
#include "runtime/sim/workload/draws.hpp"
#include "runtime/sim/workload/simple.hpp"

namespace troupe::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

// A file that goes away with the process.
std::string written(const std::string& name, const std::string& text) {
  static struct files {
    std::set<std::string> paths;
    ~files() {
      for (const auto& p : paths) unlink(p.c_str());
    }
  } all;
  const std::string path = testing::TempDir() + "troupe_" + std::to_string(getpid()) + "_" + name;
  std::ofstream(path) << text;
  all.paths.insert(path);
  return path;
}

const char* const chats =
    "{\"timestamp\": 1000, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
    "{\"timestamp\": 1000, \"input_length\": 1536, \"output_length\": 7, \"hash_ids\": [0, 1, 3]}\n"
    "{\"timestamp\": 4000, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 4]}\n";

std::vector<workload_request> all_of(const workload_options& o) {
  std::vector<workload_request> out;
  auto source = open_workload(o);
  EXPECT_TRUE(source) << source.error().message;
  if (!source) return out;
  for (;;) {
    auto r = (*source)->next();
    EXPECT_TRUE(r) << r.error().message;
    if (!r || !*r) return out;
    EXPECT_EQ((*r)->index, out.size());
    EXPECT_GE((*r)->arrival, out.empty() ? nanoseconds(0) : out.back().arrival);
    out.push_back(std::move(**r));
  }
}

TEST(sim_ratio, is_exact) {
  EXPECT_EQ(parse_ratio("1.25")->times(4), 5u);
  EXPECT_EQ(parse_ratio("0.000001")->times(1'000'000), 1u);
  EXPECT_EQ(parse_ratio("3")->divide(10), 3u);
  EXPECT_EQ(parse_ratio("1000000")->times(UINT64_MAX), static_cast<uint64_t>(INT64_MAX));
  for (const char* text : {"1.25", "3", "0.5", "0.000001", "1000000"})
    EXPECT_EQ(format_ratio(*parse_ratio(text)), text);
  for (const char* text :
       {"", ".", "0", "0.0", "-1", "1.2.3", "1e3", "1000001", "0.0000001", "x", "99999999999999999999"})
    EXPECT_FALSE(parse_ratio(text)) << text;
}

TEST(sim_draws, are_what_the_c_library_says) {
  for (const double x : {1e-9, 0.1, 0.5, 1.0, 1.4142, 2.0, 3.0, 1e6}) {
    EXPECT_NEAR(exact_ln(x), std::log(x), 1e-12) << x;
    EXPECT_NEAR(exact_exp(std::log(x)) / x, 1, 1e-12) << x;
  }
  rng random(5);
  double sum = 0, turns = 0;
  for (int i = 0; i < 20'000; ++i)
    sum += static_cast<double>(draw_exponential(random, seconds(1)).count()) / 1e9, turns += draw_geometric(random, 4);
  EXPECT_NEAR(sum / 20'000, 1, 0.03);
  EXPECT_NEAR(turns / 20'000, 4, 0.1);
}

TEST(sim_trace, is_played_as_recorded_in_window_blocks) {
  const auto path = written("chats.jsonl", chats);
  const auto r = all_of({.trace = path, .spread = false});
  ASSERT_EQ(r.size(), 3u);
  EXPECT_EQ(r[0].arrival, seconds(0));
  EXPECT_EQ(r[1].arrival, seconds(0));
  EXPECT_EQ(r[2].arrival, seconds(3));
  EXPECT_EQ(r[0].input_tokens, 1300u);
  EXPECT_EQ(r[0].output_tokens, 5u);
  EXPECT_EQ(r[0].blocks, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(r[1].blocks, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(r[2].blocks, (std::vector<uint64_t>{0, 1, 2, 3, 16}));
  const auto whole = all_of({.trace = path, .block_tokens = 512});
  EXPECT_EQ(whole[1].blocks, (std::vector<uint64_t>{0, 1, 3}));
  EXPECT_EQ(whole[0].arrival, seconds(0));
  EXPECT_EQ(whole[1].arrival, milliseconds(1500));  // spread over the 3 s of the bin
  const auto chain = chain_hashes(r[0], 128), other = chain_hashes(r[1], 128);
  ASSERT_EQ(chain.size(), 10u);  // complete blocks only
  EXPECT_EQ(chain[7], other[7]);
  EXPECT_NE(chain[8], other[8]);
  EXPECT_EQ(chain[8].tokens, 1152u);
}

TEST(sim_trace, scales_loops_and_ends) {
  const auto path = written("chats.jsonl", chats);
  const auto twice = all_of({.trace = path, .loops = 2, .rate = *parse_ratio("2"), .spread = false});
  ASSERT_EQ(twice.size(), 6u);
  EXPECT_EQ(twice[2].arrival, milliseconds(1500));
  EXPECT_EQ(twice[3].arrival, milliseconds(2250));  // a lap is 4.5 s long
  EXPECT_EQ(twice[3].blocks[0], 5u * 4);            // ids of its own
  std::set<uint64_t> first, second;
  for (size_t i = 0; i < 6; ++i) (i < 3 ? first : second).insert(twice[i].blocks.begin(), twice[i].blocks.end());
  for (const uint64_t id : first) EXPECT_FALSE(second.contains(id));

  EXPECT_EQ(all_of({.trace = path, .first = 2}).size(), 2u);
  EXPECT_EQ(all_of({.trace = path, .loops = 0, .spread = false, .duration = seconds(10)}).size(), 8u);
  const auto none = open_workload({.trace = path, .loops = 0});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("no end"));
}

// What two requests share is scaled with them, whatever the factor: blocks are equal exactly while they lie in what is
// common (1,024 tokens between the first two requests, 512 with the third).
TEST(sim_trace, lengths_scale_with_what_is_shared) {
  const auto path = written("chats.jsonl", chats);
  for (const char* factor : {"1", "2", "0.5", "0.25", "0.1", "0.37", "3.3"}) {
    const auto f = *parse_ratio(factor);
    const auto r = all_of({.trace = path, .length = f});
    ASSERT_EQ(r.size(), 3u);
    EXPECT_EQ(r[1].input_tokens, f.times(1536));
    for (const auto& [a, b, tokens] : {std::tuple{0, 1, 1024}, {0, 2, 512}, {1, 2, 512}}) {
      const auto &x = r[static_cast<size_t>(a)].blocks, &y = r[static_cast<size_t>(b)].blocks;
      size_t same = 0;
      while (same < std::min(x.size(), y.size()) && x[same] == y[same]) ++same;
      EXPECT_EQ(same, f.times(static_cast<uint64_t>(tokens)) / 128) << factor << " " << a << " " << b;
      for (size_t i = same; i < std::min(x.size(), y.size()); ++i) EXPECT_NE(x[i], y[i]) << factor;
    }
    // Ids inside a request differ.
    for (const auto& one : r)
      EXPECT_EQ(std::set<uint64_t>(one.blocks.begin(), one.blocks.end()).size(), one.blocks.size());
  }
}

TEST(sim_azure, reads_rows_and_names_bad_ones) {
  std::istringstream in(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.9799600,4808,10\r\n"
      "2024-01-01 00:00:00.0319600+00:00,3180,0\r\n");
  const auto r = read_azure(in, "azure");
  ASSERT_TRUE(r) << r.error().message;
  ASSERT_EQ(r->size(), 2u);
  EXPECT_EQ((*r)[0].at_ns, 0);
  EXPECT_EQ((*r)[1].at_ns, 52'000'000);
  EXPECT_EQ((*r)[1].output_tokens, 1u);
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::pair<std::string, const char*> rows[] = {
      {"", "holds no request"},
      {"a,b\n", "azure:1: the header"},
      {head + "2023-11-16 18:17:03,5\n", "azure:2: three cells"},
      {head + "2023-11-16 18:17:03,5,6,7\n", "azure:2: three cells"},
      {head + "2023-13-16 18:17:03,5,6\n", "TIMESTAMP"},
      {head + "2023-11-16 18:17:03.,5,6\n", "TIMESTAMP"},
      {head + "2023-11-16 18:17:03+02:00,5,6\n", "TIMESTAMP"},
      {head + "2023-11-16 18:17:03,0,6\n", "ContextTokens"},
      {head + "2023-11-16 18:17:03,5,-6\n", "GeneratedTokens"},
      {head + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:02,5,6\n", "azure:3: TIMESTAMP"},
  };
  for (const auto& [text, word] : rows) {
    std::istringstream bad(text);
    const auto x = read_azure(bad, "azure");
    ASSERT_FALSE(x) << text;
    EXPECT_THAT(x.error().message, HasSubstr(word));
  }
  const auto path = written("azure.csv", head + "2023-11-16 18:17:03,300,6\n2023-11-16 18:17:05,200,6\n");
  const auto played = all_of({.trace = path, .loops = 2});
  ASSERT_EQ(played.size(), 4u);
  EXPECT_TRUE(played[0].blocks.empty());
  EXPECT_EQ(played[2].arrival, seconds(4));
  EXPECT_THAT(open_workload({.trace = "/nonexistent.csv"}).error().message, HasSubstr("/nonexistent.csv"));
  EXPECT_THAT(open_workload({.trace = "trace.txt"}).error().message, HasSubstr(".jsonl"));
}

workload_options drawn(uint64_t seed, uint64_t first) {
  workload_options o;
  o.seed = seed, o.first = first;
  o.generator.arrivals.per_hour = 20'000;
  return o;
}

TEST(sim_generator, is_a_function_of_the_seed) {
  EXPECT_EQ(all_of(drawn(7, 500)), all_of(drawn(7, 500)));
  EXPECT_NE(all_of(drawn(7, 500)), all_of(drawn(8, 500)));
}

TEST(sim_generator, turns_grow_by_what_was_said) {
  std::map<uint64_t, workload_request> last;
  uint32_t further = 0, agents = 0;
  for (const auto& r : all_of(drawn(3, 20'000))) {
    ASSERT_GE(r.input_tokens, 1u);
    ASSERT_GE(r.output_tokens, 1u);
    ASSERT_LE(r.input_tokens + r.output_tokens, 131'072u);
    ASSERT_EQ(r.blocks.size(), (r.input_tokens + 127) / 128);
    agents += r.traffic == policies::traffic_class::agent;
    if (r.turn > 0) {
      const auto& before = last.at(r.conversation);
      ASSERT_EQ(r.turn, before.turn + 1);
      ASSERT_GT(r.input_tokens, before.input_tokens + before.output_tokens);
      ASSERT_EQ(r.tenant, before.tenant);
      // Complete blocks of prompt and answer come back, the partial one does not.
      const size_t whole = before.input_tokens / 128;
      ASSERT_TRUE(
          std::equal(before.blocks.begin(), before.blocks.begin() + static_cast<ptrdiff_t>(whole), r.blocks.begin()));
      ASSERT_TRUE(
          std::equal(before.grown.begin(), before.grown.end(), r.blocks.begin() + static_cast<ptrdiff_t>(whole)));
      if (before.input_tokens % 128 > 0) {
        ASSERT_NE(before.blocks.back(), r.blocks[whole]);
      }
      ++further;
    }
    last[r.conversation] = r;
  }
  EXPECT_GT(further, 1'000u);
  EXPECT_GT(agents, 500u);
}

TEST(sim_generator, clients_come_back_minutes_to_days_later) {
  workload_options o;
  o.seed = 11, o.duration = hours(24 * 6);
  o.generator.arrivals.per_hour = 20;
  std::map<uint64_t, nanoseconds> last;
  uint32_t minutes_later = 0, days_later = 0;
  for (const auto& r : all_of(o)) {
    if (const auto at = last.find(r.conversation); at != last.end()) {
      const auto gap = r.arrival - at->second;
      minutes_later += gap > minutes(10) && gap < hours(1);
      days_later += gap > hours(24);
    }
    last[r.conversation] = r.arrival;
  }
  EXPECT_GT(minutes_later, 50u);
  EXPECT_GT(days_later, 50u);
}

TEST(sim_generator, rates_keep_their_mean_and_shape) {
  using kind = arrival_options::kind;
  for (const kind how : {kind::poisson, kind::bursts, kind::diurnal}) {
    workload_options o;
    o.seed = 5, o.duration = hours(48);
    o.generator.arrivals.how = how;
    o.generator.arrivals.per_hour = 600;
    o.generator.chat.mean_turns = o.generator.agent.mean_turns = 1;
    const auto r = all_of(o);
    EXPECT_NEAR(static_cast<double>(r.size()) / 48, 600, how == kind::bursts ? 60 : 20) << static_cast<int>(how);
    std::map<int64_t, int> per_hour, per_ten_s;
    for (const auto& x : r) ++per_hour[(x.arrival / hours(1) + 8) % 24], ++per_ten_s[x.arrival / seconds(10)];
    const auto busiest =
        std::max_element(per_ten_s.begin(), per_ten_s.end(), [](auto a, auto b) { return a.second < b.second; });
    if (how == kind::poisson) {
      EXPECT_LT(busiest->second, 15);
    }
    if (how == kind::bursts) {
      EXPECT_GT(busiest->second, 15);
    }
    if (how == kind::diurnal) {
      EXPECT_GT(per_hour[14], 3 * per_hour[4]);
    }
  }
}

TEST(sim_generator, refuses_what_makes_no_sense) {
  const auto message = [](auto change) {
    auto o = drawn(1, 10);
    change(o);
    const auto r = open_workload(o);
    return r ? std::string("accepted") : r.error().message;
  };
  EXPECT_THAT(message([](auto& o) { o.first = 0; }), HasSubstr("no end"));
  EXPECT_THAT(message([](auto& o) { o.block_tokens = 100; }), HasSubstr("block_tokens"));
  EXPECT_THAT(message([](auto& o) { o.generator.arrivals.per_hour = 0; }), HasSubstr("per_hour"));
  EXPECT_THAT(message([](auto& o) { o.generator.chat.return_least = hours(100); }), HasSubstr("chat.return_least"));
  EXPECT_THAT(message([](auto& o) { o.generator.agent.mean_turns = 0; }), HasSubstr("agent.mean_turns"));
  EXPECT_THAT(message([](auto& o) { o.generator.tenants = 0; }), HasSubstr("tenants"));
  EXPECT_THAT(message([](auto& o) { o.length.millionths = 1; }), HasSubstr("length"));
}

// Requests (blocks of 512)   round robin over 2   prefix + load over 2   shared
//   0 1 2                      cache 0: 0           cache 0: 0            0
//   0 1 3                      cache 1: 0           0: 2 - 3 < 1: 0 - 0    2
//   0 4                        cache 0: 1           both 1; missed 3, 3    1
TEST(sim_simple, counted_by_hand) {
  const auto path = written("chats.jsonl", chats);
  const auto hits = [&](simple_place place, uint32_t caches, uint64_t tokens) {
    auto source = open_workload({.trace = path, .block_tokens = 512});
    const auto r = run_simple(**source, {place, caches, tokens});
    EXPECT_TRUE(r) << r.error().message;
    EXPECT_EQ(r->blocks, 8u);
    EXPECT_EQ(r->requests, 3u);
    return r->hit_blocks;
  };
  EXPECT_EQ(hits(simple_place::shared, 1, 0), 3u);
  EXPECT_EQ(hits(simple_place::round_robin, 2, 0), 1u);
  EXPECT_EQ(hits(simple_place::prefix_load, 2, 0), 1u);
  EXPECT_EQ(hits(simple_place::shared, 2, 512), 0u);  // one cache of two blocks
  EXPECT_EQ(hits(simple_place::shared, 3, 1024), 3u);
  auto source = open_workload({.trace = path});
  EXPECT_FALSE(run_simple(**source, {simple_place::shared, 1, 100}));
  EXPECT_FALSE(run_simple(**source, {simple_place::shared, 0, 0}));
}

// The figures that go with the published trace, where it is there; else those of a drawn workload keep their order.
TEST(sim_simple, anchors_of_the_published_trace) {
  const char* folder = std::getenv("TROUPE_TRACES");
  const auto rate = [&](simple_place place, uint32_t caches, uint64_t tokens) {
    workload_options o{.block_tokens = 512, .seed = 2};
    if (folder)
      o.trace = std::string(folder) + "/conversation_trace.jsonl";
    else
      o.first = 3'000;
    auto source = open_workload(o);
    EXPECT_TRUE(source) << source.error().message;
    const auto r = run_simple(**source, {place, caches, tokens});
    EXPECT_TRUE(r) << r.error().message;
    std::printf("place %d, %u caches of %llu tokens: %.2f %% of blocks hit\n", static_cast<int>(place), caches,
                static_cast<unsigned long long>(tokens), 100 * r->block_hit_rate());
    return 100 * r->block_hit_rate();
  };
  const uint64_t room = folder ? 3'000'000 : 600'000;
  const double all = rate(simple_place::shared, 1, 0), apart = rate(simple_place::round_robin, 8, room),
               placed = rate(simple_place::prefix_load, 8, room), one = rate(simple_place::shared, 8, room);
  EXPECT_LT(apart, placed);
  EXPECT_LT(placed, one);
  EXPECT_LE(one, all);
  if (!folder) return;
  EXPECT_NEAR(all, 36.64, 0.1);
  EXPECT_NEAR(apart, 11.3, 0.1);
  EXPECT_NEAR(placed, 28.8, 0.1);
  EXPECT_NEAR(one, 35.4, 0.1);
}

}  // namespace
}  // namespace troupe::sim
