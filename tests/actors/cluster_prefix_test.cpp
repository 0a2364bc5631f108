// Cached prefixes between the real actors, in virtual time: that they are used, every way in which the store fails, and
// exact books after storms of aborts. The stand-in engine aborts the test when a cached page is not that of the
// sequence, the stand-in store when a page changes while it is written back.
#include <gtest/gtest.h>

#include <cstdio>

#include "policies/hit_length.hpp"
#include "tests/actors/sim_cluster.hpp"

namespace troupe::actors::cluster_prefix_cases {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options with_cache(uint64_t seed) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  cluster_options o;
  o.seed = seed;
  o.cache = true;
  return o;
}

prefix_counts counts_of(sim_cluster& c) {
  prefix_counts sum;
  for (const std::string name : {"decode-0", "decode-1", "prefill-0", "prefill-1"}) {
    if (!c.has(name)) continue;
    for (auto& [actor, handle] : c.node(name).named) {
      if (!actor.ends_with("/rank")) continue;
      const auto p = c.ask_now<rank_report>(caf::actor_cast<rank_actor>(handle), rank_query{}).prefix;
      sum.writing += p.writing;
      sum.reads += p.reads;
      sum.read_blocks += p.read_blocks;
      sum.read_failed += p.read_failed;
      sum.read_late += p.read_late;
      sum.read_dropped += p.read_dropped;
      sum.writes += p.writes;
      sum.stored_blocks += p.stored_blocks;
      sum.write_failed += p.write_failed;
      sum.dropped += p.dropped;
    }
  }
  return sum;
}

snapshot_counts snapshots_of(sim_cluster& c) {
  snapshot_counts sum;
  for (const std::string name : {"decode-0", "decode-1", "prefill-0", "prefill-1"}) {
    if (!c.has(name)) continue;
    for (auto& [actor, handle] : c.node(name).named) {
      if (!actor.ends_with("/rank")) continue;
      const auto s = c.ask_now<rank_report>(caf::actor_cast<rank_actor>(handle), rank_query{}).snapshots;
      sum.taken += s.taken;
      sum.stored += s.stored;
      sum.write_failed += s.write_failed;
      sum.dropped += s.dropped;
      sum.reads += s.reads;
      sum.used += s.used;
      sum.read_failed += s.read_failed;
      sum.read_late += s.read_late;
    }
  }
  return sum;
}

front_report front_of(sim_cluster& c) { return c.ask_now<front_report>(c.node("front-0").entrypoint, front_query{}); }

client_submit prompt_of(uint32_t tokens, uint64_t seed) {
  client_submit r;
  r.prompt.resize(tokens, 7);
  r.sampling.seed = seed;
  r.stop = {.max_tokens = 12, .ignore_eos = true};
  return r;
}

std::shared_ptr<client> run(sim_cluster& c, client_submit r) {
  auto x = c.submit(std::move(r));
  EXPECT_TRUE(c.run_until([&] { return x->ends > 0; }, seconds(20)));
  c.run_for(milliseconds(50));  // what is written back in the background
  return x;
}

uint32_t hit_of(uint32_t prompt, uint32_t stored_blocks, const std::vector<uint32_t>& snapshots = {}) {
  policies::hit_length_input in;
  in.snapshots = snapshots;
  in.prompt_tokens = prompt;
  in.block_hit_tokens = std::min(stored_blocks, prompt / 16) * 16;
  in.block = 16;
  in.exact = true;
  in.encoder_layers = 2;
  return policies::plan_hit_length(in)->reuse;
}

TEST(prefix, a_conversation_hits_what_earlier_turns_left) {
  for (uint32_t prefill : {0u, 1u}) {
    auto o = with_cache(71 + prefill);
    o.prefill = prefill;
    o.engine.limits.slots = 4;
    sim_cluster c{o};
    c.wait_ready();
    client_submit r = prompt_of(60, 1);
    uint64_t cached = 0, all = 0;
    for (uint64_t turn = 1; turn <= 6; ++turn) {
      r.sampling.seed = turn;
      const auto want = hit_of(static_cast<uint32_t>(r.prompt.size()), static_cast<uint32_t>(c.store->blocks.size()));
      auto x = run(c, r);
      EXPECT_EQ(x->last.cached_tokens, want) << "turn " << turn;
      cached += x->last.cached_tokens;
      all += r.prompt.size();
      EXPECT_EQ(c.store->blocks.size(), (r.prompt.size() + x->tokens.size() - 1) / 16)
          << "prompt and answer, whole blocks";
      r.prompt.insert(r.prompt.end(), x->tokens.begin(), x->tokens.end());
      r.prompt.insert(r.prompt.end(), 20, 9);
    }
    EXPECT_GT(cached, 100u);
    const auto f = front_of(c);
    EXPECT_EQ(f.hit_tokens, cached);
    EXPECT_EQ(f.hit_tokens + f.miss_tokens, all);
    EXPECT_EQ(f.matches_failed, 0u);
    c.expect_clients_right(true);
    c.expect_clean();
  }
}

// Positions of the snapshots that the store has of a prompt, and how many of its blocks.
std::pair<std::vector<uint32_t>, uint32_t> kept_of(const sim_cluster& c, const client_submit& r) {
  const auto chain = *kv::hash_chain(c.store->scheme, r.salt, std::vector<uint32_t>(r.prompt.begin(), r.prompt.end()));
  std::pair<std::vector<uint32_t>, uint32_t> out;
  while (out.second < chain.size() && c.store->blocks.contains(chain[out.second])) ++out.second;
  for (uint32_t b = 0; b < out.second; ++b)
    if (c.store->snapshots.contains(chain[b])) out.first.push_back((b + 1) * 16);
  return out;
}

// Prompts that are too short for an exact replay hit from the snapshots that earlier turns left.
TEST(prefix, snapshots_spare_the_replay) {
  for (uint32_t prefill : {0u, 1u}) {
    auto o = with_cache(74 + prefill);
    o.prefill = prefill;
    o.engine.limits.slots = 4;
    o.engine.limits.snapshots = 8;
    sim_cluster c{o};
    c.wait_ready();
    client_submit r = prompt_of(40, 1);
    for (uint64_t turn = 1; turn <= 8; ++turn) {
      r.sampling.seed = turn;
      const auto [snapshots, blocks] = kept_of(c, r);
      const auto prompt = static_cast<uint32_t>(r.prompt.size());
      const auto want = hit_of(prompt, blocks, snapshots);
      auto x = run(c, r);
      EXPECT_EQ(x->last.cached_tokens, want) << "turn " << turn;
      EXPECT_GE(want, hit_of(prompt, blocks));
      if (turn == 2) {
        EXPECT_EQ(hit_of(prompt, blocks), 0u);
        EXPECT_GT(want, 0u) << "of " << prompt;
      }
      r.prompt.insert(r.prompt.end(), x->tokens.begin(), x->tokens.end());
      r.prompt.insert(r.prompt.end(), 20, 9);
    }
    const auto n = snapshots_of(c);
    EXPECT_EQ(n.used, 7u);
    EXPECT_EQ(n.read_failed + n.write_failed + n.dropped, 0u);
    EXPECT_EQ(n.stored, n.taken);
    EXPECT_EQ(c.store->snapshot_opens, c.store->snapshot_closes);
    std::map<uint64_t, int> per_request;
    for (const auto& [at, request] : c.store->taken_by) EXPECT_LE(++per_request[request], 3);
    c.expect_clients_right(true);
    c.expect_clean();
  }
}

// A snapshot that is listed and then does not come: the replay, or a miss, and nothing else.
TEST(prefix, a_snapshot_that_does_not_come_costs_little_and_changes_nothing) {
  for (uint32_t prompt : {120u, 60u}) {
    for (int how = 0; how < 5; ++how) {
      SCOPED_TRACE(how);
      auto o = with_cache(300 + prompt + static_cast<uint64_t>(how));
      o.prefix.read_at_least = milliseconds(20);
      o.engine.limits.snapshots = 4;
      sim_cluster c{o};
      c.wait_ready();
      auto first = prompt_of(prompt, 1);
      first.stop.max_tokens = 2;
      run(c, first);
      const auto [snapshots, blocks] = kept_of(c, prompt_of(prompt, 2));
      ASSERT_EQ(snapshots.size(), 3u);
      const uint32_t with = hit_of(prompt, blocks, snapshots), without = hit_of(prompt, blocks);
      ASSERT_GT(with, without);
      auto& s = *c.store;
      if (how == 0) s.open_fails = [] { return result<void>(fail(errc::not_found, "evicted")); };
      if (how == 1) s.rots = true;
      if (how == 2) s.snapshot_time = seconds(3);
      if (how == 3) s.open_fails = [] { return result<void>(fail(errc::unavailable, "away")); };
      const auto from = c.agenda().now();
      auto x = c.submit(prompt_of(prompt, 2));
      EXPECT_TRUE(c.run_until([&] { return x->ends > 0; }, seconds(20)));
      EXPECT_EQ(x->last.cached_tokens, how == 4 ? with : without);
      EXPECT_LT(c.agenda().now() - from, milliseconds(400));
      c.run_for(seconds(8));
      const auto n = snapshots_of(c);
      EXPECT_EQ(n.reads, 1u);
      EXPECT_EQ(n.used, how == 4 ? 1u : 0u);
      EXPECT_EQ(n.read_failed, how == 4 ? 0u : 1u);
      EXPECT_EQ(n.read_late, how == 2 ? 1u : 0u);
      c.expect_clients_right(true);
      c.expect_clean();
    }
  }
}

TEST(prefix, snapshots_are_bounded_and_never_waited_for) {
  auto o = with_cache(93);
  o.prefill = 0;
  o.decode = 1;
  o.engine.limits.snapshots = 4;
  sim_cluster c{o};
  c.wait_ready();
  c.store->snapshot_time = seconds(2);
  for (uint64_t i = 0; i < 8; ++i) {
    auto r = prompt_of(60, i);
    r.prompt[0] = static_cast<kernels::token_id>(10 + i);
    c.submit(r);
  }
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(1)));
  const auto n = snapshots_of(c);
  EXPECT_GT(n.dropped, 0u);
  EXPECT_LE(n.taken, 3u) << "one place in four is for reads";
  c.run_for(seconds(10));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(prefix, tenants_share_nothing) {
  sim_cluster c{with_cache(73)};
  c.wait_ready();
  auto a = prompt_of(120, 1), b = prompt_of(120, 2);
  a.salt = "a";
  b.salt = "b";
  run(c, a);
  EXPECT_EQ(run(c, b)->last.cached_tokens, 0u);
  EXPECT_EQ(run(c, a)->last.cached_tokens, hit_of(120, 7));
  auto none = prompt_of(120, 3);
  none.salt = "a";
  none.cache = false;
  EXPECT_EQ(run(c, none)->last.cached_tokens, 0u);
  c.expect_clients_right(true);
}

// Whatever the store does, the answer is right, and the time lost is bounded.
TEST(prefix, a_store_that_fails_costs_little_and_changes_nothing) {
  for (int how = 0; how < 6; ++how) {
    SCOPED_TRACE(how);
    auto o = with_cache(80 + static_cast<uint64_t>(how));
    o.prefix.read_at_least = milliseconds(20);
    sim_cluster c{o};
    c.wait_ready();
    run(c, prompt_of(120, 1));
    ASSERT_EQ(c.store->blocks.size(), 8u);
    auto& s = *c.store;
    uint32_t cached = 0;
    if (how == 0) s.away = true;
    if (how == 1) s.match_time = seconds(3);
    if (how == 2) s.read_time = seconds(3);
    if (how == 3) s.read_time = seconds(3), s.obeys_deadlines = false;
    if (how == 4) s.read_fails = [] { return result<void>(fail(errc::corrupt, "test")); };
    if (how == 5) {
      s.holes = [](uint64_t n) { return std::min<uint64_t>(n, 4); };  // of the six that are asked for
      cached = hit_of(120, 4);
      EXPECT_EQ(cached, 16u);
    }
    const auto from = c.agenda().now();
    auto x = c.submit(prompt_of(120, 2));
    EXPECT_TRUE(c.run_until([&] { return x->ends > 0; }, seconds(20)));
    EXPECT_EQ(x->last.cached_tokens, cached);
    EXPECT_LT(c.agenda().now() - from, milliseconds(400));
    if (how == 3) {
      const auto prefill = caf::actor_cast<rank_actor>(c.node("prefill-0").named.at("prefill-0/0/rank"));
      EXPECT_GT(c.ask_now<rank_report>(prefill, rank_query{}).pages_transfer, 0u) << "held while bytes may come";
    }
    c.run_for(seconds(5));
    const auto n = counts_of(c);
    const auto f = front_of(c);
    EXPECT_EQ(f.matches_failed, how <= 1 ? 1u : 0u);
    EXPECT_EQ(f.matches_late, how == 1 ? 1u : 0u);
    EXPECT_EQ(n.read_failed, how >= 2 && how <= 4 ? 1u : 0u);
    EXPECT_EQ(n.read_late, how == 2 || how == 3 ? 1u : 0u);
    EXPECT_EQ(n.write_failed, how == 0 ? 2u : 0u) << "the prompt's and the answer's";
    c.expect_clients_right(true);
    c.expect_clean();
  }
}

TEST(prefix, writes_are_bounded_and_never_waited_for) {
  auto o = with_cache(91);
  o.prefix.writes = 2;
  o.prefill = 0;
  o.decode = 1;
  sim_cluster c{o};
  c.wait_ready();
  c.store->write_time = seconds(2);
  for (uint64_t i = 0; i < 8; ++i) {
    auto r = prompt_of(40, i);
    r.prompt[0] = static_cast<kernels::token_id>(10 + i);
    c.submit(r);
  }
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(1))) << "pages that are written out block nobody";
  EXPECT_GT(counts_of(c).dropped, 0u);
  EXPECT_LE(counts_of(c).writing, 2u);
  c.run_for(seconds(10));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(prefix, a_front_that_dies_while_its_request_is_read_leaves_nothing) {
  auto o = with_cache(92);
  o.fronts = 2;
  sim_cluster c{o};
  c.wait_ready();
  run(c, prompt_of(120, 1));
  c.store->read_time = milliseconds(60);
  c.submit(prompt_of(120, 2));
  EXPECT_TRUE(c.run_until([&] { return c.store->reads > 0; }, seconds(1)));
  c.crash("front-0", sim::crash_kind::killed);
  c.run_for(seconds(10));
  EXPECT_EQ(counts_of(c).read_dropped, 1u);
  auto x = c.submit(prompt_of(120, 3), "front-1");
  EXPECT_TRUE(c.run_until([&] { return x->ends > 0; }, seconds(20)));
  EXPECT_EQ(x->last.cached_tokens, hit_of(120, 7));
  c.run_for(seconds(2));
  c.expect_clean();
}

// Clients leave at moments that fall before, during and after reads and writes; the pool is small, so sequences are
// preempted; reads and writes fail now and then; in some rounds ranks die.
TEST(prefix, abort_storm) {
  const char* v = std::getenv("TROUPE_LONG");
  const int count = v && std::string(v) == "1" ? 10000 : 1200;
  for (uint64_t seed : {95, 96, 97}) {
    auto o = with_cache(seed);
    o.prefill = seed == 97 ? 0 : 2;
    o.engine.limits.pages = seed == 96 ? 32 : 40;
    o.prefix.read_at_least = milliseconds(3);
    o.engine.limits.snapshots = 4;
    auto dice = std::make_shared<rng>(seed, 5);
    sim_cluster c{o};
    c.wait_ready();
    c.store->read_time = milliseconds(2);
    c.store->obeys_deadlines = seed != 96;
    c.store->read_fails = [dice]() -> result<void> {
      if (dice->below(10) == 0) return fail(errc::corrupt, "test");
      return {};
    };
    c.store->write_fails = [dice]() -> result<void> {
      if (dice->below(10) == 0) return fail(errc::exhausted, "test");
      return {};
    };
    c.store->open_fails = c.store->put_fails = c.store->read_fails;
    c.store->holes = [dice](uint64_t n) { return dice->below(6) == 0 ? dice->below(n + 1) : n; };
    for (int i = 0; i < count; ++i) {
      auto r = c.random_request();
      r.prompt.resize(60 + c.random().below(61), 7);
      auto x = c.submit(r);
      if (c.random().below(10) < 6) {
        const auto when = nanoseconds(static_cast<int64_t>(c.random().below(30'000'000)));
        c.agenda().after(when, [&c, x] { c.cancel(x); });
      }
      if (i % 50 == 0) c.store->read_time = milliseconds(1 + static_cast<int64_t>(dice->below(12)));
      if (i % 50 == 0) c.store->snapshot_time = milliseconds(1 + static_cast<int64_t>(dice->below(12)));
      c.store->rots = dice->below(20) == 0;
      c.run_for(nanoseconds(static_cast<int64_t>(c.random().below(6'000'000))));
      if (seed != 95 && i % 400 == 200) {
        const std::string victim = i % 800 == 200 && o.prefill > 0 ? "prefill-1" : "decode-1";
        c.crash(victim, sim::crash_kind::killed);
        c.run_for(milliseconds(1500));
        c.restart(victim);
      }
    }
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(120)));
    c.run_for(seconds(30));
    c.expect_clients_right(false);
    c.expect_clean();
    const auto n = counts_of(c);
    std::printf("reads %llu: %llu failed (%llu late), %llu dropped; %llu blocks; writes %llu: %llu failed, %llu over\n",
                static_cast<unsigned long long>(n.reads), static_cast<unsigned long long>(n.read_failed),
                static_cast<unsigned long long>(n.read_late), static_cast<unsigned long long>(n.read_dropped),
                static_cast<unsigned long long>(n.read_blocks), static_cast<unsigned long long>(n.writes),
                static_cast<unsigned long long>(n.write_failed), static_cast<unsigned long long>(n.dropped));
    const auto k = snapshots_of(c);
    std::printf(
        "snapshots: %llu taken, %llu stored, %llu not, %llu without a place; %llu read, %llu used, %llu failed\n",
        static_cast<unsigned long long>(k.taken), static_cast<unsigned long long>(k.stored),
        static_cast<unsigned long long>(k.write_failed), static_cast<unsigned long long>(k.dropped),
        static_cast<unsigned long long>(k.reads), static_cast<unsigned long long>(k.used),
        static_cast<unsigned long long>(k.read_failed));
    EXPECT_GT(k.used, 20u);
    EXPECT_GT(k.read_failed, 5u);
    EXPECT_GT(n.reads, 100u);
    EXPECT_GT(n.read_dropped, 10u) << "aborted while it was read";
    EXPECT_GT(n.read_failed, 10u);
    EXPECT_GT(n.write_failed, 0u);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::actors::cluster_prefix_cases
