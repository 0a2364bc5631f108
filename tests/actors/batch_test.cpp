// The batch by hand: every state of a sequence x every way to end it leaves nothing behind (the aborts that leak in
// other systems: while queued, while a chunk runs, while pages are taken away, after the end, after a failed step).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/actors/batch_bench.hpp"

namespace troupe::actors {
namespace {

using kernels::finish_reason;

TEST(batch, mixed_requests_finish) {
  bench t;
  for (uint64_t r = 1; r <= 12; ++r) EXPECT_TRUE(t.add(r, static_cast<uint32_t>(r * 9), 20).outcome.ok());
  t.finish();
  for (uint64_t r = 1; r <= 12; ++r) expect_tokens(t, r, static_cast<uint32_t>(r * 9), 20);
  t.expect_empty();
}

TEST(batch, a_small_pool_preempts_and_everything_still_finishes) {
  bench t(role::decode, 9);
  for (uint64_t r = 1; r <= 8; ++r) EXPECT_TRUE(t.add(r, 20, 60).outcome.ok());
  t.finish();
  for (uint64_t r = 1; r <= 8; ++r) expect_tokens(t, r, 20, 60);
  scheduler_report report;
  t.b.describe(report);
  EXPECT_GT(report.preempted, 0u) << "the pool was meant to be too small";
  t.expect_empty();
}

TEST(batch, plans_ahead_while_a_step_runs) {
  bench t;
  t.add(1, 10, 30);
  t.plan();
  EXPECT_EQ(t.b.plans_out(), 2u);  // the prompt, and the first decode step behind it
  t.finish();
  expect_tokens(t, 1, 10, 30);
}

// Which plans had work waiting when the step before them ended: all but the first of a busy stretch, whether they were
// made ahead or not.
TEST(batch, a_plan_says_whether_it_was_waited_for) {
  for (uint32_t ahead : {0u, 1u}) {
    SCOPED_TRACE(ahead);
    bench t(role::decode, 48, 16, 0, ahead);
    t.add(1, 10, 30);
    t.plan();
    EXPECT_EQ(t.b.plans_out(), 1u + ahead);
    t.finish();
    expect_tokens(t, 1, 10, 30);
    const size_t first = t.follows.size();
    ASSERT_GT(first, 10u);
    EXPECT_EQ(std::count(t.follows.begin(), t.follows.end(), false), 1);
    EXPECT_FALSE(t.follows[0]);
    t.add(2, 10, 30);
    t.finish();
    EXPECT_FALSE(t.follows[first]) << "nothing had been waiting";
    EXPECT_EQ(std::count(t.follows.begin(), t.follows.end(), false), 2);
    t.expect_empty();
  }
}

TEST(batch, prefill_hands_over_after_one_token) {
  bench t(role::prefill);
  t.add(1, 70, 30);
  t.add(2, 10, 1);
  t.finish();
  auto items = t.items_of(1);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].handoff.kind, handoff_kind::recompute);
  EXPECT_EQ(items[0].tokens, std::vector<kernels::token_id>{token_at(1, 70)});
  ASSERT_EQ(t.items_of(2).size(), 1u);
  EXPECT_EQ(t.items_of(2)[0].finish, finish_reason::length);
  t.expect_empty();
}

TEST(batch, refusals) {
  bench t(role::decode, 8, 2);
  EXPECT_EQ(t.add(1, 0, 5).outcome.code, errc::invalid_argument);
  EXPECT_EQ(t.add(1, 512, 5).outcome.code, errc::invalid_argument);
  EXPECT_EQ(t.add(1, 200, 5).outcome.code, errc::invalid_argument) << "can never fit the pool";
  EXPECT_EQ(t.add(1, 5, 0).outcome.code, errc::invalid_argument);
  EXPECT_TRUE(t.add(1, 5, 5).outcome.ok());
  EXPECT_TRUE(t.add(1, 5, 5).outcome.ok()) << "the same attempt again is the same request";
  EXPECT_TRUE(t.add(2, 5, 5).outcome.ok());
  auto full = t.add(3, 5, 5);
  EXPECT_EQ(full.outcome.code, errc::exhausted);
  EXPECT_GT(full.retry_after_ms, 0u);
  EXPECT_TRUE(t.add(2, 5, 5, 7).outcome.ok()) << "a newer attempt takes the older one's place";
  EXPECT_EQ(t.add(2, 5, 5, 6).outcome.code, errc::stale);
  t.finish();
  expect_tokens(t, 1, 5, 5);
  t.expect_empty();
}

TEST(batch, unacknowledged_tokens_come_again) {
  bench t;
  t.add(1, 10, 8);
  for (int i = 0; i < 50; ++i) {
    t.plan();
    t.step();
  }
  EXPECT_TRUE(t.b.overdue(1).empty()) << "first look";
  auto again = t.b.overdue(1);
  EXPECT_EQ(again, t.items_of(1));
  EXPECT_FALSE(t.b.idle());
  // Acknowledging a middle position drops what lies before it, the end stays.
  t.b.acknowledge(1, {request_number{1}, 1, 14, false});
  for (auto& i : t.b.overdue(1)) EXPECT_GT(i.first_position + i.tokens.size(), 14u);
  t.b.acknowledge(1, {request_number{1}, 1, 18, false});
  EXPECT_TRUE(t.b.has_unacknowledged()) << "the end has not been acknowledged";
  t.b.acknowledge(1, {request_number{1}, 1, 18, true});
  t.finish();
  t.expect_empty();
}

// -- states x ends --------------------------------------------------------------------------------------------------

constexpr uint64_t victim = 3;  // with neighbours 1 and 2 (older) and 4 (younger)

struct state {
  const char* name;
  std::function<void(bench&)> reach;
};

void crowd(bench& t) {
  t.add(1, 30, 25);
  t.add(2, 20, 25);
  t.add(victim, 60, 25);
  t.add(4, 20, 25);
}

void steps(bench& t, int n) {
  for (int i = 0; i < n; ++i) {
    t.plan();
    t.step();
  }
}

void until_token(bench& t, size_t count) {
  for (int i = 0; i < 400; ++i) {
    size_t have = 0;
    for (auto& item : t.items_of(victim)) have += item.tokens.size();
    if (have >= count) return;
    steps(t, 1);
  }
  FAIL() << "no " << count << " tokens";
}

void fail_step(bench& t) {
  t.peer_missing = true;
  t.plan();
  while (t.b.plans_out() > 0 && t.step()) {
  }
  t.peer_missing = false;
  (void)t.engine->regroup(nullptr, {});
}

const state states[] = {
    {"waiting", [](bench& t) { crowd(t); }},
    {"opened in a plan that has not run",
     [](bench& t) {
       crowd(t);
       t.plan();
     }},
    {"in the middle of its prompt",
     [](bench& t) {
       crowd(t);
       steps(t, 3);
     }},
    {"in the middle of its prompt, plans out",
     [](bench& t) {
       crowd(t);
       steps(t, 3);
       t.plan();
     }},
    {"first token",
     [](bench& t) {
       crowd(t);
       until_token(t, 1);
     }},
    {"decoding, plans out",
     [](bench& t) {
       crowd(t);
       until_token(t, 5);
       t.plan();
     }},
    {"last token under way",
     [](bench& t) {
       crowd(t);
       until_token(t, 22);
       t.plan();
     }},
    {"finished, slot not closed",
     [](bench& t) {
       crowd(t);
       until_token(t, 25);
     }},
    {"finished, close planned",
     [](bench& t) {
       crowd(t);
       until_token(t, 25);
       t.plan();
     }},
    {"finished, not acknowledged",
     [](bench& t) {
       crowd(t);
       until_token(t, 25);
       steps(t, 60);
     }},
    {"preempted",
     [](bench& t) {
       crowd(t);
       for (int i = 0; i < 400; ++i) {
         scheduler_report r;
         t.b.describe(r);
         if (r.preempted > 0) return;
         t.plan();
         t.b.describe(r);
         if (r.preempted > 0) return;
         t.step();
       }
     }},
    {"preempted, waiting again",
     [](bench& t) {
       crowd(t);
       for (int i = 0; i < 400; ++i) {
         scheduler_report r;
         t.b.describe(r);
         if (r.preempted > 0 && r.waiting > 0) return;
         steps(t, 1);
       }
     }},
    {"a chunk failed",
     [](bench& t) {
       crowd(t);
       steps(t, 2);
       fail_step(t);
     }},
    {"a decode step failed",
     [](bench& t) {
       crowd(t);
       until_token(t, 4);
       fail_step(t);
     }},
    {"a step failed just after it was opened",
     [](bench& t) {
       crowd(t);
       fail_step(t);
     }},
    {"a step failed while it closes",
     [](bench& t) {
       crowd(t);
       until_token(t, 25);
       fail_step(t);
     }},
};

struct ending {
  const char* name;
  bool ends_neighbours;
  std::function<void(bench&)> act;
};

const ending endings[] = {
    {"cancel", false,
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"cancel twice", false,
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"newer attempt", false, [](bench& t) { EXPECT_TRUE(t.add(victim, 60, 25, 2).outcome.ok()); }},
    {"front gone", true, [](bench& t) { t.b.drop_front(1); }},
    {"everything failed", true, [](bench& t) { t.b.fail_all(errc::peer_lost, "test"); }},
    {"step fails, then cancel", false,
     [](bench& t) {
       fail_step(t);
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"cancel, then step fails", false,
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
       fail_step(t);
     }},
    {"everything failed, then step fails", true,
     [](bench& t) {
       t.b.fail_all(errc::peer_lost, "test");
       fail_step(t);
     }},
};

TEST(batch, every_state_times_every_end) {
  for (const auto& s : states) {
    for (const auto& e : endings) {
      for (auto what : {role::decode, role::prefill}) {
        if (what == role::prefill && std::string(s.name).find("token") != std::string::npos) continue;
        if (what == role::prefill && std::string(s.name).find("decod") != std::string::npos) continue;
        if (what == role::prefill && std::string(s.name).find("inish") != std::string::npos) continue;
        if (what == role::prefill && std::string(s.name).find("closes") != std::string::npos) continue;
        SCOPED_TRACE(std::string(s.name) + " / " + e.name + " / " + to_string(what));
        const bool small = std::string(s.name).find("preempted") != std::string::npos;
        bench t(what, small ? 8 : 48);
        s.reach(t);
        if (::testing::Test::HasFatalFailure()) return;
        const auto before = t.items_of(victim).size();
        e.act(t);
        t.finish();
        const auto after = t.items_of(victim);
        int ends = 0;
        for (auto& i : after) ends += i.last();
        EXPECT_LE(ends, 1);
        if (std::string(e.name) == "cancel") {
          EXPECT_EQ(after.size(), before) << "an item after the cancel";
        }
        if (!e.ends_neighbours && what == role::decode) {
          expect_tokens(t, 1, 30, 25);
          expect_tokens(t, 2, 20, 25);
          expect_tokens(t, 4, 20, 25);
        }
        t.expect_empty();
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(batch, a_refused_plan_fails_its_requests_only) {
  bench t;
  t.add(1, 30, 5);
  auto p = t.b.plan();
  ASSERT_TRUE(p.any);
  kernels::step_result r;
  r.plan = p.plan.id;
  r.plan_done = true;
  r.applied = false;
  r.failure = errc::invalid_argument;
  r.failure_text = "test";
  while (t.b.plans_out() > 1) t.b.plan();
  t.apply(r);
  while (t.b.plans_out() > 0) {
    ++r.plan;
    t.apply(r);
  }
  ASSERT_EQ(t.items_of(1).size(), 1u);
  EXPECT_EQ(t.items_of(1)[0].failure, errc::internal);
  t.add(2, 10, 3);
  t.finish();
  expect_tokens(t, 2, 10, 3);
  t.expect_empty();
}

}  // namespace
}  // namespace troupe::actors
