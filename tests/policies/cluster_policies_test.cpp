// role_plan, admission, phi, breaker, resume_plan, economics: rows and properties.
#include <gtest/gtest.h>

#include <cmath>

#include "policies/breaker.hpp"
#include "policies/economics.hpp"
#include "policies/front_admission.hpp"
#include "policies/phi.hpp"
#include "policies/recover.hpp"
#include "policies/role_plan.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

TEST(role_plan, table) {
  struct row {
    const char* rule;
    std::vector<role_load> roles;  // units, least, most, rate, queued, since_change
    uint32_t pool;
    std::vector<uint32_t> units;
  };
  const uint32_t any = UINT32_MAX;
  const row table[] = {
      {"no roles", {}, 0, {}},
      {"zero traffic, zero units", {{0, 0, any, 0}}, 4, {0}},
      {"zero traffic ends at the least", {{4, 1, any, 0}}, 4, {1}},
      {"zero traffic, least zero", {{1, 0, any, 0}}, 4, {0}},
      {"first traffic", {{0, 0, any, 0.01}}, 4, {1}},
      {"within the band it stays", {{4, 1, any, 3.3}}, 8, {4}},
      {"above the band it grows to the target", {{4, 1, any, 3.5}}, 8, {5}},
      {"a queue counts as load", {{4, 1, any, 2.8, 60}}, 8, {7}},
      {"below the band it shrinks to the target", {{4, 1, any, 1.3}}, 8, {2}},
      {"not right after a change", {{4, 1, any, 1.3, 0, 3}}, 8, {4}},
      {"growing does not wait", {{4, 1, any, 3.5, 0, 0}}, 8, {5}},
      {"no shrinking while something queues", {{4, 1, any, 1.0, 0.1}}, 8, {4}},
      {"never above most", {{4, 1, 5, 100}}, 8, {5}},
      {"below the least it grows", {{0, 2, any, 0}}, 8, {2}},
      {"the pool is dealt by need", {{1, 1, any, 8}, {1, 1, any, 4}}, 6, {4, 2}},
      {"a role keeps its least", {{1, 1, any, 0}, {1, 1, any, 100}}, 4, {1, 3}},
      {"an exchange that gains little is left", {{4, 1, any, 8.2}, {4, 1, any, 7.8}}, 8, {4, 4}},
      {"one that gains much is made", {{4, 1, any, 12}, {4, 1, any, 4}}, 8, {6, 2}},
  };
  for (const auto& r : table) {
    role_plan_input in;
    in.roles = r.roles, in.units = r.pool;
    auto plan = plan_roles(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->units, r.units) << r.rule << ": " << plan->reason;
  }
  role_plan_input in;
  in.units = 4, in.roles = {{1, 0, 4, NAN}};
  EXPECT_FALSE(plan_roles(in));
  in.roles = {{1, 3, 2, 0}};
  EXPECT_FALSE(plan_roles(in));
  in.roles = {{3, 0, 9, 0}, {3, 0, 9, 0}};  // more than the pool
  EXPECT_FALSE(plan_roles(in));
  in.roles = {{1, 0, 9, 0}}, in.low = 0.9;
  EXPECT_FALSE(plan_roles(in));
}

// A load with 5 % noise: after the first three plans, no role ever goes up and down again. The pool is never exceeded.
TEST(role_plan, does_not_oscillate) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    rng random{seed};
    role_plan_input in;
    in.units = static_cast<uint32_t>(4 + random.below(40));
    double base[3];
    for (double& b : base) {
      b = random.uniform() * in.units * 0.5;
      in.roles.push_back({1, static_cast<uint32_t>(random.below(2)), UINT32_MAX, 0, 0, 1000});
    }
    int turns[3] = {}, direction[3] = {}, changes = 0;
    for (int step = 0; step < 100; ++step) {
      for (int i = 0; i < 3; ++i) in.roles[static_cast<size_t>(i)].rate = base[i] * (0.95 + 0.1 * random.uniform());
      auto plan = plan_roles(in);
      ASSERT_TRUE(plan);
      uint64_t sum = 0;
      for (size_t i = 0; i < 3; ++i) {
        auto& r = in.roles[i];
        sum += plan->units[i];
        EXPECT_GE(plan->units[i], r.least);
        if (plan->units[i] != r.units) {
          const int d = plan->units[i] > r.units ? 1 : -1;
          turns[i] += direction[i] != 0 && d != direction[i];
          direction[i] = d;
          changes += step > 20;
          r.units = plan->units[i], r.since_change = 0;
        } else {
          ++r.since_change;
        }
      }
      EXPECT_LE(sum, in.units) << "seed " << seed;
    }
    for (int t : turns) EXPECT_LE(t, 1) << "seed " << seed;
    EXPECT_LE(changes, 3) << "seed " << seed;
  }
}

TEST(front_admission, table) {
  struct row {
    const char* rule;
    bool ready;
    uint32_t limit;
    std::vector<tenant_load> tenants;  // held, limit, weight; the first one asks
    uint16_t status;
    uint32_t retry;
  };
  const uint32_t any = UINT32_MAX;
  const row table[] = {
      {"room", true, 16, {{0}}, 200, 0},
      {"not ready", false, 16, {{0}}, 503, 1},
      {"full", true, 16, {{0}, {16}}, 429, 5},
      {"no places at all", true, 0, {{0}}, 429, 1},
      {"own limit", true, 16, {{3, 3}}, 429, 1},
      {"alone: all but the reserve", true, 16, {{13}}, 200, 0},
      {"alone: the reserve is for others", true, 16, {{14}}, 429, 4},
      {"two: above its share and only the reserve left", true, 16, {{13}, {1}}, 429, 4},
      {"two: the newcomer takes from the reserve", true, 16, {{0}, {15}}, 200, 0},
      {"two: above its share, but there is room", true, 16, {{10}, {1}}, 200, 0},
      {"weights move the share", true, 16, {{7, any, 1}, {7, any, 3}}, 429, 2},
      {"weights move the share up", true, 16, {{7, any, 3}, {7, any, 1}}, 200, 0},
  };
  for (const auto& r : table) {
    front_admission_input in;
    in.ready = r.ready, in.limit = r.limit, in.finish_ms = 1000, in.tenants = r.tenants;
    auto plan = plan_front_admission(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->status, r.status) << r.rule << ": " << plan->reason;
    EXPECT_EQ(plan->retry_after_s, r.retry) << r.rule;
    EXPECT_EQ(plan->admit, r.status == 200) << r.rule;
  }
  front_admission_input in;
  EXPECT_FALSE(plan_front_admission(in));
  in.tenants = {{0, 1, 0}};
  EXPECT_FALSE(plan_front_admission(in));
  in.tenants = {{0}}, in.reserve = 1.5;
  EXPECT_FALSE(plan_front_admission(in));
}

// One tenant asks all the time, three now and then and never hold more than an eighth: these are never refused, the
// bound holds.
TEST(front_admission, a_flood_does_not_shut_others_out) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    rng random{seed};
    front_admission_input in;
    in.limit = 64, in.tenants.resize(4);
    uint32_t flood = 0;
    for (int step = 0; step < 5000; ++step) {
      for (auto& t : in.tenants)
        if (t.held > 0 && random.below(12) == 0) --t.held;
      for (int k = 0; k < 20; ++k) {
        in.tenant = 0;
        if (plan_front_admission(in)->admit) ++in.tenants[0].held;
      }
      in.tenant = 1 + random.below(3);
      if (in.tenants[in.tenant].held < 2 && random.below(4) == 0) {
        auto plan = plan_front_admission(in);
        ASSERT_TRUE(plan->admit) << "seed " << seed << ": " << plan->reason;
        ++in.tenants[in.tenant].held;
      }
      uint32_t sum = 0;
      for (const auto& t : in.tenants) sum += t.held;
      ASSERT_LE(sum, 64u) << "seed " << seed;
      flood = std::max(flood, in.tenants[0].held);
    }
    EXPECT_GE(flood, 50u) << "seed " << seed;  // and what is free is not wasted
  }
}

// Tenants that always wait are served by weight, whatever their requests cost; one that was idle has saved nothing up.
TEST(next_tenant, serves_by_weight) {
  rng random{3};
  next_tenant_input in;
  in.tenants.resize(3);
  const double weight[] = {1, 2, 5};
  double work[3] = {};
  for (auto& t : in.tenants) t.waiting = 1;
  in.tenants[1].waiting = 0;
  for (int i = 0; i < 40'000; ++i) {
    if (i == 20'000) in.tenants[1].waiting = 1, work[0] = work[1] = work[2] = 0;
    auto plan = plan_next_tenant(in);
    ASSERT_TRUE(plan);
    ASSERT_NE(plan->choice, SIZE_MAX);
    const double cost = 1 + random.uniform() * (plan->choice == 0 ? 50 : 5);
    work[plan->choice] += cost;
    in.tenants[plan->choice].served = plan->start + cost / weight[plan->choice];
    in.clock = plan->clock;
  }
  const double all = work[0] + work[1] + work[2];
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(work[i] / all, weight[i] / 8, 0.01) << "seed 3";
  in.tenants = {{0, 1}, {0, 2}};
  EXPECT_EQ(plan_next_tenant(in)->choice, SIZE_MAX);
  in.clock = NAN;
  EXPECT_FALSE(plan_next_tenant(in));
}

std::vector<double> beats(int n, double gap) {
  std::vector<double> out;
  for (int i = 0; i < n; ++i) out.push_back(i * gap);
  return out;
}

TEST(phi, table) {
  struct row {
    const char* rule;
    std::vector<double> beats;
    double silent, pause;
    phi_verdict verdict;
  };
  const row table[] = {
      {"just heard", beats(20, 500), 0, 0, phi_verdict::alive},
      {"one gap", beats(20, 500), 500, 0, phi_verdict::alive},
      {"a late one", beats(20, 500), 700, 0, phi_verdict::alive},
      {"half a gap late, with regular ones before", beats(20, 500), 790, 0, phi_verdict::suspect},
      {"long silent", beats(20, 500), 2000, 0, phi_verdict::down},
      {"silent for a year", beats(20, 500), 3e10, 0, phi_verdict::down},
      {"an accepted pause", beats(20, 500), 2000, 1500, phi_verdict::alive},
      {"only one heartbeat: the configured interval", {0}, 600, 0, phi_verdict::alive},
      {"only one heartbeat, silent", {0}, 2000, 0, phi_verdict::down},
      {"none at all, young", {}, 300, 0, phi_verdict::alive},
      {"a jittery one gets more time", {0, 100, 1200, 1300, 2500, 2600, 3900, 4000}, 1500, 0, phi_verdict::alive},
  };
  for (const auto& r : table) {
    phi_input in;
    in.heartbeats_ms = r.beats, in.pause_ms = r.pause;
    in.now_ms = (r.beats.empty() ? 0 : r.beats.back()) + r.silent;
    auto plan = plan_phi(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->verdict, r.verdict) << r.rule << ": " << plan->reason;
    EXPECT_TRUE(std::isfinite(plan->phi)) << r.rule;
  }
  phi_input in;
  in.heartbeats_ms = {1, 0}, in.now_ms = 5;
  EXPECT_FALSE(plan_phi(in));
  in.heartbeats_ms = {6};
  EXPECT_FALSE(plan_phi(in));
  in.heartbeats_ms = {}, in.interval_ms = 0;
  EXPECT_FALSE(plan_phi(in));
  in.interval_ms = 500, in.down_at = 1;
  EXPECT_FALSE(plan_phi(in));
}

// Phi grows with silence, without a step where the tail formula changes, and suspect_in_ms is when it becomes a
// suspicion.
TEST(phi, grows_and_foretells) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    rng random{seed};
    phi_input in;
    double t = 0;
    for (int i = 0; i < 50; ++i) in.heartbeats_ms.push_back(t += 300 + 400 * random.uniform());
    double before = 0;
    for (int i = 0; i < 2000; ++i) {
      in.now_ms = t + i * 4;
      const double phi = plan_phi(in)->phi;
      ASSERT_GE(phi, before - 1e-9) << "seed " << seed << " at " << i;
      ASSERT_LE(phi, before + 5) << "seed " << seed << " at " << i;
      before = phi;
    }
    in.now_ms = t;
    const double in_ms = plan_phi(in)->suspect_in_ms;
    in.now_ms = t + in_ms - 1;
    EXPECT_EQ(plan_phi(in)->verdict, phi_verdict::alive) << "seed " << seed;
    in.now_ms = t + in_ms + 1;
    EXPECT_EQ(plan_phi(in)->verdict, phi_verdict::suspect) << "seed " << seed;
  }
}

TEST(breaker, table) {
  using enum breaker_state;
  struct row {
    const char* rule;
    const char* events;  // one per 100 ms from 0: S F C(lient) X(cancelled) R(efused), '.' nothing
    int64_t now;
    breaker_state state;
    int64_t wait;
  };
  const row table[] = {
      {"nothing yet", "", 0, closed, 0},
      {"four faults are not enough", "FFFF", 400, closed, 0},
      {"five are", "FFFFF", 400, open, 1000},
      {"client errors never count", "CCCCCCCCCCCCCCCCCCCCCCCC", 3000, closed, 0},
      {"nor cancels, nor refusals", "XRXRXRXRXRXRXRXRXRXRXRXR", 3000, closed, 0},
      {"client errors do not dilute faults", "CFCFCFCFCF", 900, open, 1000},
      {"faults that are a small part", "SSSSSSSFSFSFSFSFSSSS", 2000, closed, 0},
      {"half of all", "SFSFSFSFSF", 900, open, 1000},
      {"after the pause a probe may go", "FFFFF", 1400, half_open, 0},
      {"a late fault of before changes nothing", "FFFFF..F", 800, open, 600},
      {"the probe succeeds: closed and forgotten", "FFFFF..........SFFFF", 2000, closed, 0},
      {"the probe fails: twice as long", "FFFFF..........F", 1500, open, 2000},
      {"a client error is no probe result", "FFFFF..........C", 1500, half_open, 0},
  };
  for (const auto& r : table) {
    breaker_input in;
    in.now_ms = r.now;
    for (size_t i = 0; r.events[i]; ++i) {
      const char c = r.events[i];
      if (c == '.') continue;
      const outcome what = c == 'S'   ? outcome::success
                           : c == 'F' ? outcome::worker_fault
                           : c == 'C' ? outcome::client_error
                           : c == 'X' ? outcome::cancelled
                                      : outcome::refused;
      in.events.push_back({static_cast<int64_t>(i) * 100, what});
    }
    auto plan = plan_breaker(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->state, r.state) << r.rule << ": " << plan->reason;
    EXPECT_EQ(plan->wait_ms, r.wait) << r.rule;
    EXPECT_EQ(plan->allow, r.state != open) << r.rule;
    in.probing = true;
    EXPECT_EQ(plan_breaker(in)->allow, r.state == closed) << r.rule;
  }
  breaker_input in;
  in.events = {{5, outcome::success}};
  EXPECT_FALSE(plan_breaker(in));  // after now
  in.now_ms = 9, in.events = {{5, outcome::success}, {4, outcome::success}};
  EXPECT_FALSE(plan_breaker(in));
  in.events.clear(), in.settings.faults = 0;
  EXPECT_FALSE(plan_breaker(in));
}

// Faults older than the window do not count; the pause doubles up to its bound.
TEST(breaker, window_and_pause_are_bounded) {
  breaker_input in;
  for (int i = 0; i < 100; ++i) in.events.push_back({i * 3'000, outcome::worker_fault});
  in.now_ms = 300'000;
  EXPECT_EQ(plan_breaker(in)->state, breaker_state::closed);
  in.events.clear();
  for (int i = 0; i < 5; ++i) in.events.push_back({0, outcome::worker_fault});
  int64_t at = 0;
  for (int64_t pause : {1'000, 2'000, 4'000, 8'000, 16'000, 30'000, 30'000}) {
    in.now_ms = at;
    EXPECT_EQ(plan_breaker(in)->wait_ms, pause);
    in.now_ms = at += pause;
    EXPECT_EQ(plan_breaker(in)->state, breaker_state::half_open);
    in.events.push_back({at, outcome::worker_fault});
  }
}

TEST(recover, table) {
  using enum request_fault;
  using A = recover_action;
  struct row {
    const char* rule;
    request_fault fault;
    uint32_t known, losses, attempts;
    int64_t left;
    A action;
    int64_t after;
    bool resumable;
  };
  const row table[] = {
      {"its rank died: elsewhere, at once", rank_lost, 309, 1, 0, 9'000, A::go_elsewhere, 0, false},
      {"before any token", rank_lost, 300, 1, 0, 9'000, A::go_elsewhere, 0, false},
      {"all tokens are out", rank_lost, 400, 1, 0, 9'000, A::finish, 0, false},
      {"even when time is over", rank_lost, 400, 9, 9, 0, A::finish, 0, false},
      {"three ranks died: once more", rank_lost, 309, 3, 3, 9'000, A::go_elsewhere, 0, false},
      {"four died: it is the cause", rank_lost, 309, 4, 4, 9'000, A::give_up, 0, false},
      {"no time left", rank_lost, 309, 1, 0, 0, A::give_up, 0, true},
      {"no attempts left", refused, 309, 0, 8, 9'000, A::give_up, 0, true},
      {"a peer of the group died: wait for the view", group_lost, 309, 0, 0, 9'000, A::wait_for_view, 5'000, false},
      {"not longer than the deadline", group_lost, 309, 0, 0, 700, A::wait_for_view, 700, false},
      {"refused: pause", refused, 300, 0, 0, 9'000, A::go_elsewhere, 50, false},
      {"refused again: longer", refused, 300, 0, 3, 9'000, A::go_elsewhere, 400, false},
      {"but bounded", refused, 300, 0, 7, 90'000, A::go_elsewhere, 2'000, false},
      {"and within the time left", refused, 300, 0, 7, 1'000, A::go_elsewhere, 500, false},
      {"a wrong request is wrong everywhere", client_error, 300, 0, 0, 9'000, A::give_up, 0, false},
      {"cancelled", cancelled, 309, 1, 0, 9'000, A::drop, 0, false},
  };
  for (const auto& r : table) {
    recover_input in;
    in.fault = r.fault, in.at = {300, r.known, 128, 20}, in.max_length = 400;
    in.rank_losses = r.losses, in.attempts = r.attempts, in.left_ms = r.left;
    auto plan = plan_recover(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->action, r.action) << r.rule << ": " << plan->reason;
    EXPECT_EQ(plan->after_ms, r.after) << r.rule;
    EXPECT_EQ(plan->resumable, r.resumable) << r.rule;
    if (plan->action == A::go_elsewhere) {
      EXPECT_EQ(plan->resume.decoder_from, 172u) << r.rule;  // stays where the first run had it
      EXPECT_EQ(plan->resume.hit_limit, 128u) << r.rule;
    }
    EXPECT_FALSE(plan->reason.empty());
  }
  recover_input in;
  in.at = {300, 300, 0, 20};
  EXPECT_FALSE(plan_recover(in));
  in.at = {300, 299, 128, 20};
  EXPECT_FALSE(plan_recover(in));
  in.at = {300, 401, 128, 20}, in.max_length = 400;
  EXPECT_FALSE(plan_recover(in));
}

// Whatever goes wrong, a request ends: with attempts counted, no row of faults makes it go round for ever.
TEST(recover, ends) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    rng random{seed};
    recover_input in;
    in.at = {300, 300, 128, 20}, in.max_length = 400, in.left_ms = 60'000;
    int rounds = 0;
    for (;; ++rounds) {
      ASSERT_LT(rounds, 100) << "seed " << seed;
      in.fault = static_cast<request_fault>(random.below(3));
      in.rank_losses += in.fault == request_fault::rank_lost;
      auto plan = plan_recover(in);
      ASSERT_TRUE(plan);
      if (plan->action != recover_action::go_elsewhere && plan->action != recover_action::wait_for_view) break;
      in.attempts += plan->action == recover_action::go_elsewhere;
      in.left_ms -= plan->after_ms;
      in.at.known = std::min(400u, in.at.known + static_cast<uint32_t>(random.below(20)));
    }
  }
}

// DeepSeek's published day (V3/R1 inference overview, 27-28 Feb 2025): 608 B input tokens with 56.3 % hits, 168 B
// output, 226.75 nodes of 8 GPUs at US$ 2 an hour; prices 0.14 / 0.55 / 2.19. Published: cost 87,072, revenue 562,027,
// margin 545 %.
TEST(economics, published_day) {
  economics_input in;
  in.hit_price = 0.14, in.miss_price = 0.55, in.output_price = 2.19, in.gpus = 226.75 * 8;
  in.input_mtokens = 608e3, in.hit_ratio = 0.563, in.output_mtokens = 168e3;
  auto plan = plan_economics(in);
  ASSERT_TRUE(plan);
  EXPECT_DOUBLE_EQ(plan->cost, 87'072);
  EXPECT_NEAR(plan->revenue, 562'027, 100);  // the published inputs are rounded
  EXPECT_NEAR(plan->margin_on_cost, 5.45, 0.01);
  EXPECT_NEAR(plan->revenue_per_gpu_hour, 12.91, 0.01);
  EXPECT_DOUBLE_EQ(plan->cost_per_gpu_hour, 2);
  EXPECT_NEAR(plan->cost_per_mtoken * 776e3, 87'072, 1e-6);
}

TEST(economics, edges) {
  auto nothing = plan_economics({});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->revenue, 0);
  EXPECT_EQ(nothing->margin_on_cost, 0);  // not NaN
  economics_input in;
  in.storage_tb = 14.4, in.storage_tb_month_cost = 10, in.hours = 730;
  EXPECT_DOUBLE_EQ(plan_economics(in)->storage_cost, 144);
  in.input_mtokens = 100, in.hit_ratio = 1;
  EXPECT_NEAR(plan_economics(in)->saved_by_hits, 100 * 0.147, 1e-9);
  in.hit_ratio = 1.01;
  EXPECT_FALSE(plan_economics(in));
  in.hit_ratio = 0, in.gpus = -1;
  EXPECT_FALSE(plan_economics(in));
  in.gpus = NAN;
  EXPECT_FALSE(plan_economics(in));
}

}  // namespace
}  // namespace troupe::policies
