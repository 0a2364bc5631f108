// Prefill -> decode hand-over between the real actors, in virtual time: that it happens, every way in which it fails,
// and exact books after storms of aborts. The stand-in engine aborts the test when a plan imports anything but the
// right pages and state.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/actors/sim_cluster.hpp"

namespace troupe::actors::cluster_handoff_cases {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options with_seed(uint64_t seed) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  cluster_options o;
  o.seed = seed;
  return o;
}

struct sums {
  uint64_t fetched = 0, recomputed = 0;
  transfer_counts in, out;  // added up over the ranks
};

sums counts_of(sim_cluster& c) {
  sums s;
  for (const std::string name : {"decode-0", "decode-1", "prefill-0", "prefill-1"}) {
    if (!c.has(name)) continue;
    for (auto& [actor, handle] : c.node(name).named) {
      if (actor.ends_with("/scheduler")) {
        const auto r = c.ask_now<scheduler_report>(caf::actor_cast<scheduler_actor>(handle), scheduler_query{});
        s.fetched += r.fetched;
        s.recomputed += r.recomputed;
      } else if (actor.ends_with("/rank")) {
        const auto t = c.ask_now<rank_report>(caf::actor_cast<rank_actor>(handle), rank_query{}).transfers;
        s.in.in += t.in;
        s.in.in_done += t.in_done;
        s.in.in_failed += t.in_failed;
        s.in.in_dropped += t.in_dropped;
        s.out.out += t.out;
        s.out.out_done += t.out_done;
        s.out.out_expired += t.out_expired;
        s.out.out_dropped += t.out_dropped;
        s.out.stale += t.stale;
      }
    }
  }
  return s;
}

TEST(handoff, every_prompt_is_pulled) {
  auto o = with_seed(51);
  o.prefill = 2;
  o.engine.limits.handoffs = 64;
  sim_cluster c{o};
  c.wait_ready();
  for (int i = 0; i < 40; ++i) {
    auto r = c.random_request();
    r.stop.max_tokens = 2 + static_cast<uint32_t>(c.random().below(30));
    r.stop.ignore_eos = true;
    c.submit(r);
    c.run_for(milliseconds(3));
  }
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  const auto s = counts_of(c);
  EXPECT_EQ(s.fetched, 40u);
  EXPECT_EQ(s.recomputed, 0u);
  EXPECT_EQ(s.out.out, 40u);
  c.run_for(seconds(1));
  EXPECT_EQ(counts_of(c).out.out_done, 40u) << "closed by a message, not by patience";
  c.expect_clients_right(true);
  c.expect_clean();
  const auto front = c.ask_now<front_report>(c.node("front-0").entrypoint, front_query{});
  EXPECT_EQ(front.pulled, 40u);
  EXPECT_EQ(front.computed_again, 0u);
}

TEST(handoff, a_pull_that_fails_or_is_slow_loses_to_computing_again) {
  for (int how = 0; how < 3; ++how) {
    auto o = with_seed(52 + static_cast<uint64_t>(how));
    if (how == 0) o.engine.pull_fails = [] { return result<void>(fail(errc::corrupt, "test")); };
    if (how == 1) o.engine.pull_fails = [] { return result<void>(fail(errc::peer_lost, "test")); };
    if (how == 2) o.engine.per_page = seconds(4);
    sim_cluster c{o};
    c.wait_ready();
    for (int i = 0; i < 8; ++i) {
      auto r = c.random_request();
      r.prompt.assign(40 + 10 * static_cast<size_t>(i), 7);
      r.stop = {.max_tokens = 12, .ignore_eos = true};
      c.submit(r);
    }
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
    c.expect_clients_right(true);
    const auto s = counts_of(c);
    EXPECT_EQ(s.in.in_done, 0u);
    EXPECT_EQ(s.recomputed, 8u);
    EXPECT_GT(s.in.in_failed, 0u);
    c.run_for(seconds(60));  // the slow ones come to their end
    c.expect_clean();
    if (how == 2) {
      EXPECT_GT(c.ask_now<front_report>(c.node("front-0").entrypoint, front_query{}).computed_again, 0u);
    }
  }
}

TEST(handoff, stale_handles_are_refused) {
  sim_cluster c{with_seed(56)};
  c.wait_ready();
  auto x = c.submit(c.random_request());
  EXPECT_TRUE(c.run_until([&] { return x->ends > 0; }, seconds(10)));
  const auto rank = caf::actor_cast<rank_actor>(c.node("prefill-0").named.at("prefill-0/0/rank"));
  incarnation inc;
  for (auto& n : c.status().view.nodes)
    if (n.name == "prefill-0") inc = n.inc;
  const auto ask = [&](uint64_t epoch, incarnation source, uint64_t transfer) {
    return c.ask_now<transfer_grant>(rank, transfer_open{cluster_epoch{epoch}, source, transfer});
  };
  for (const auto& g : {ask(1, inc, 1), ask(1, inc, 99), ask(2, inc, 1), ask(1, incarnation{inc.value + 1}, 1)}) {
    EXPECT_EQ(g.outcome.code, errc::stale);
    EXPECT_TRUE(g.pages.empty() && g.memory.address.empty()) << "nothing is told of where they lay";
  }
  EXPECT_EQ(c.ask_now<ack>(rank, transfer_close{cluster_epoch{1}, inc, 1, {}}).outcome.code, errc::not_found);
  EXPECT_EQ(c.ask_now<ack>(rank, transfer_close{cluster_epoch{9}, inc, 1, {}}).outcome.code, errc::stale);
  c.run_for(seconds(3));
  c.expect_clean();
}

// Clients leave at moments that fall before, during and after hand-overs; in some rounds ranks die too.
TEST(handoff, abort_storm) {
  const char* v = std::getenv("TROUPE_LONG");
  const int count = v && std::string(v) == "1" ? 20000 : 2500;
  for (uint64_t seed : {61, 62}) {
    auto o = with_seed(seed);
    o.prefill = 2;
    o.engine.pull = milliseconds(2);
    o.engine.per_page = microseconds(700);
    auto dice = std::make_shared<rng>(seed, 4);
    o.engine.pull_fails = [dice]() -> result<void> {
      if (dice->below(20) == 0) return fail(errc::corrupt, "test");
      return {};
    };
    sim_cluster c{o};
    c.wait_ready();
    for (int i = 0; i < count; ++i) {
      auto x = c.submit(c.random_request());
      if (c.random().below(10) < 7) {
        const auto when = nanoseconds(static_cast<int64_t>(c.random().below(40'000'000)));
        c.agenda().after(when, [&c, x] { c.cancel(x); });
      }
      c.run_for(nanoseconds(static_cast<int64_t>(c.random().below(6'000'000))));
      if (seed == 62 && i % 500 == 250) {
        const std::string victim = i % 1000 == 250 ? "prefill-1" : "decode-1";
        c.crash(victim, i % 2000 < 1000 ? sim::crash_kind::killed : sim::crash_kind::silent);
        c.run_for(milliseconds(1500));
        c.restart(victim);
      }
    }
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(120)));
    c.run_for(seconds(30));
    c.expect_clients_right(false);
    c.expect_clean();
    const auto s = counts_of(c);
    EXPECT_EQ(s.out.out, s.out.out_done + s.out.out_expired + s.out.out_dropped);
    EXPECT_EQ(s.in.in, s.in.in_done + s.in.in_failed + s.in.in_dropped);
    EXPECT_GT(s.in.in_dropped, 50u) << "aborted while it was pulled";
    std::printf("out %llu: %llu done, %llu expired, %llu dropped; in %llu: %llu done, %llu failed, %llu dropped\n",
                static_cast<unsigned long long>(s.out.out), static_cast<unsigned long long>(s.out.out_done),
                static_cast<unsigned long long>(s.out.out_expired), static_cast<unsigned long long>(s.out.out_dropped),
                static_cast<unsigned long long>(s.in.in), static_cast<unsigned long long>(s.in.in_done),
                static_cast<unsigned long long>(s.in.in_failed), static_cast<unsigned long long>(s.in.in_dropped));
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::actors::cluster_handoff_cases
