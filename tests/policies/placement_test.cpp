// Placement rules, row by row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "policies/decode_place.hpp"
#include "policies/prefill_place.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

prefill_candidate rank(double attention_ms, double linear_ms, uint8_t tier = 0, uint32_t waiting = 0,
                       uint32_t limit = 9, bool usable = true) {
  return {usable, waiting, limit, attention_ms * 1e6, linear_ms * 1e6, tier};
}

TEST(prefill_place, table) {
  struct row {
    const char* rule;
    uint32_t fresh, cached;
    std::vector<prefill_candidate> ranks;
    size_t choice;
  };
  const row table[] = {
      {"nobody there", 100, 0, {}, SIZE_MAX},
      {"nobody usable", 100, 0, {rank(0, 0, 0, 0, 9, false)}, SIZE_MAX},
      {"all full", 100, 0, {rank(0, 0, 0, 9), rank(0, 0, 0, 10)}, SIZE_MAX},
      {"all equal: the first", 100, 0, {rank(1, 1), rank(1, 1)}, 0},
      {"least work", 100, 0, {rank(0, 30), rank(0, 20), rank(0, 25)}, 1},
      {"the least loaded is full", 100, 0, {rank(0, 30), rank(0, 20, 0, 9), rank(0, 25)}, 2},
      {"the least loaded is draining", 100, 0, {rank(0, 30), rank(0, 20, 0, 0, 9, false), rank(0, 25)}, 2},
      {"equal sums: a linear prompt goes where attention is queued", 2'000, 0, {rank(10, 30), rank(30, 10)}, 1},
      {"equal sums: an attention prompt goes where tokens are queued", 2'000, 900'000, {rank(30, 10), rank(10, 30)}, 1},
      {"a short one avoids a group with a long one", 100, 0, {rank(0, 20, 2), rank(0, 60, 0)}, 1},
      {"but not at any price", 100, 0, {rank(0, 20, 2), rank(0, 200, 0)}, 0},
      {"a long one does not care", 300'000, 0, {rank(0, 20, 2), rank(0, 60, 0)}, 0},
      {"no tokens at all", 0, 0, {rank(0, 2), rank(0, 1)}, 1},
  };
  for (const auto& r : table) {
    prefill_place_input in;
    in.new_tokens = r.fresh, in.cached_tokens = r.cached, in.ranks = r.ranks;
    auto plan = place_prefill(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->choice, r.choice) << r.rule << ": " << plan->reason;
    EXPECT_FALSE(plan->reason.empty());
  }
}

TEST(prefill_place, impossible_input_is_an_error) {
  prefill_place_input good;
  good.ranks = {rank(1, 1)};
  ASSERT_TRUE(place_prefill(good));
  auto in = good;
  in.cost.a = -1;
  EXPECT_FALSE(place_prefill(in));
  in = good, in.cost.d = NAN;
  EXPECT_FALSE(place_prefill(in));
  in = good, in.chunk_tokens = 0;
  EXPECT_FALSE(place_prefill(in));
  in = good, in.tiers = {10, 10};
  EXPECT_FALSE(place_prefill(in));
  in = good, in.horizon_ns = 0;
  EXPECT_FALSE(place_prefill(in));
  in = good, in.ranks[0].linear_ns = INFINITY;
  EXPECT_FALSE(place_prefill(in));
  in = good, in.new_tokens = in.cached_tokens = UINT32_MAX;
  EXPECT_TRUE(place_prefill(in));  // huge is not impossible
}

// work_of is what running the chunks one after the other adds up to.
TEST(prefill_place, work_is_the_sum_of_the_chunks) {
  rng random{21};
  for (int i = 0; i < 500; ++i) {
    const prefill_cost c{2e-3, 2e-2, 9e3};
    const auto chunk = static_cast<uint32_t>(1 + random.below(5'000));
    const auto fresh = static_cast<uint32_t>(random.below(200'000)),
               cached = static_cast<uint32_t>(random.below(500'000));
    double attention = 0, linear = 0;
    for (uint32_t done = 0; done < fresh;) {
      const double q = std::min(chunk, fresh - done), before = double(cached) + done;
      attention += c.a * q * q + c.b * q * before, linear += c.d * q;
      done += static_cast<uint32_t>(q);
    }
    const auto w = work_of(c, chunk, fresh, cached);
    EXPECT_NEAR(w.attention_ns, attention, 1e-9 * attention + 1e-6) << "seed 21, case " << i;
    EXPECT_NEAR(w.linear_ns, linear, 1e-9 * linear + 1e-6) << "seed 21, case " << i;
  }
}

// Placing one prompt after the other, with nothing leaving, ends with work, attention and tokens even over the ranks:
// no rank is more than one largest prompt above the mean of the sum, and both kinds spread less than by round robin.
TEST(prefill_place, evens_out_work_and_its_kinds) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    rng random{seed};
    prefill_place_input in;
    in.horizon_ns = 1e18, in.isolation_ns = 0;
    in.ranks.resize(16);
    double attention[16] = {}, linear[16] = {}, largest = 0;
    for (int i = 0; i < 1600; ++i) {
      in.new_tokens = static_cast<uint32_t>(1 + random.below(random.below(10) == 0 ? 100'000 : 8'000));
      in.cached_tokens = random.below(2) ? static_cast<uint32_t>(random.below(400'000)) : 0;
      auto plan = place_prefill(in);
      ASSERT_TRUE(plan);
      in.ranks[plan->choice].attention_ns += plan->work.attention_ns;
      in.ranks[plan->choice].linear_ns += plan->work.linear_ns;
      attention[i % 16] += plan->work.attention_ns, linear[i % 16] += plan->work.linear_ns;
      largest = std::max(largest, plan->work.total());
    }
    double sum = 0, most = 0, a_most = 0, l_most = 0;
    for (const auto& r : in.ranks) {
      sum += r.attention_ns + r.linear_ns;
      most = std::max(most, r.attention_ns + r.linear_ns);
      a_most = std::max(a_most, r.attention_ns), l_most = std::max(l_most, r.linear_ns);
    }
    EXPECT_LE(most, sum / 16 + 1.5 * largest) << "seed " << seed;
    EXPECT_LT(a_most, *std::max_element(attention, attention + 16)) << "seed " << seed;
    EXPECT_LT(l_most, *std::max_element(linear, linear + 16)) << "seed " << seed;
  }
}

decode_candidate seat(uint32_t requests, uint64_t kv, uint64_t growth = 0, uint64_t capacity = 1'000'000,
                      uint32_t slots = 100, bool usable = true) {
  return {usable, requests, slots, kv, growth, capacity};
}

TEST(decode_place, table) {
  struct row {
    const char* rule;
    uint64_t kv, growth;
    std::vector<decode_candidate> ranks;
    size_t choice;
    bool tight;
  };
  const row table[] = {
      {"nobody there", 10, 1, {}, SIZE_MAX, false},
      {"nobody usable", 10, 1, {seat(0, 0, 0, 100, 1, false)}, SIZE_MAX, false},
      {"no slot anywhere", 10, 1, {seat(1, 0, 0, 100, 1), seat(2, 0, 0, 100, 1)}, SIZE_MAX, false},
      {"no room anywhere", 10, 1, {seat(0, 91, 0, 100)}, SIZE_MAX, false},
      {"exactly the room", 10, 0, {seat(0, 90, 0, 100)}, 0, false},
      {"room now, not later", 10, 1, {seat(0, 90, 0, 100)}, 0, true},
      {"room later wins over less load", 10, 50, {seat(1, 50, 0, 100), seat(5, 300, 0, 1000)}, 1, false},
      {"the growth of the others counts", 10, 0, {seat(1, 50, 45, 100), seat(5, 300, 0, 1000)}, 1, false},
      {"all equal: the first", 10, 1, {seat(1, 5), seat(1, 5)}, 0, false},
      {"less KV at equal counts", 10, 1, {seat(3, 50'000), seat(3, 40'000)}, 1, false},
      {"fewer requests at equal KV", 10, 1, {seat(4, 50'000), seat(3, 50'000)}, 1, false},
      {"equal sums: a long one goes where requests are many", 100'000, 0, {seat(1, 48'000), seat(3, 24'000)}, 1, false},
      {"equal sums: a short one goes where KV is much", 100, 0, {seat(3, 24'000), seat(1, 48'000)}, 1, false},
  };
  for (const auto& r : table) {
    decode_place_input in;
    in.kv_tokens = r.kv, in.growth_tokens = r.growth, in.ranks = r.ranks;
    auto plan = place_decode(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->choice, r.choice) << r.rule << ": " << plan->reason;
    EXPECT_EQ(plan->tight, r.tight) << r.rule;
    EXPECT_FALSE(plan->reason.empty());
  }
}

TEST(decode_place, impossible_input_is_an_error) {
  decode_place_input good;
  good.ranks = {seat(0, 0)};
  ASSERT_TRUE(place_decode(good));
  auto in = good;
  in.cost.kv_token_ns = -1;
  EXPECT_FALSE(place_decode(in));
  in = good, in.kv_tokens = UINT64_MAX;
  EXPECT_FALSE(place_decode(in));
  in = good, in.ranks[0].growth_tokens = uint64_t{1} << 62;
  EXPECT_FALSE(place_decode(in));
  in = good, in.kind_weight = NAN;
  EXPECT_FALSE(place_decode(in));
}

// Whatever is chosen has a slot and the room; nothing is refused that some rank could take.
TEST(decode_place, never_over_a_limit_and_never_refuses_in_vain) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    rng random{seed};
    decode_place_input in;
    in.kv_tokens = random.below(100), in.growth_tokens = random.below(100);
    for (uint64_t n = random.below(6); n > 0; --n)
      in.ranks.push_back(seat(static_cast<uint32_t>(random.below(4)), random.below(100), random.below(60), 120, 3,
                              random.below(4) != 0));
    auto plan = place_decode(in);
    ASSERT_TRUE(plan);
    bool possible = false, roomy = false;
    for (const auto& r : in.ranks) {
      const bool fits = r.usable && r.requests + 1 <= r.slots && r.kv_tokens + in.kv_tokens <= r.capacity_tokens;
      possible = possible || fits;
      roomy = roomy || (fits && r.kv_tokens + r.growth_tokens + in.kv_tokens + in.growth_tokens <= r.capacity_tokens);
    }
    ASSERT_EQ(plan->choice != SIZE_MAX, possible) << "seed " << seed;
    if (!possible) continue;
    const auto& r = in.ranks[plan->choice];
    EXPECT_TRUE(r.usable && r.requests < r.slots && r.kv_tokens + in.kv_tokens <= r.capacity_tokens) << "seed " << seed;
    EXPECT_EQ(!plan->tight, roomy) << "seed " << seed;
  }
}

TEST(decode_rebalance, table) {
  decode_rebalance_input in;
  EXPECT_TRUE(rebalance_decode(in)->moves.empty());
  in.ranks = {{true, 1'000'000, 9, {{1, 50'000}, {2, 50'000}}}, {true, 1'000'000, 9, {}}};
  auto plan = rebalance_decode(in);
  ASSERT_EQ(plan->moves.size(), 1u);
  EXPECT_EQ(plan->moves[0].from, 0u);
  EXPECT_EQ(plan->moves[0].to, 1u);
  EXPECT_DOUBLE_EQ(plan->imbalance_before, 2);
  EXPECT_DOUBLE_EQ(plan->imbalance_after, 1);
  in.ranks[1].capacity_tokens = 49'999;  // no room there
  EXPECT_TRUE(rebalance_decode(in)->moves.empty());
  in.ranks[1].capacity_tokens = 50'000, in.ranks[1].slots = 0;
  EXPECT_TRUE(rebalance_decode(in)->moves.empty());
  in.ranks[1].slots = 1, in.max_moves = 0;
  EXPECT_TRUE(rebalance_decode(in)->moves.empty());
  in.tolerance = -1;
  EXPECT_FALSE(rebalance_decode(in));
}

// The moves, replayed by hand, keep the limits at every point, never raise the busiest rank and give the stated
// figures.
TEST(decode_rebalance, moves_hold_when_replayed) {
  uint64_t moved = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    rng random{seed};
    decode_rebalance_input in;
    in.max_moves = 20, in.tolerance = 0.05;
    uint64_t id = 0;
    for (uint64_t n = 1 + random.below(8); n > 0; --n) {
      auto& r = in.ranks.emplace_back();
      r.usable = random.below(8) != 0, r.slots = 12, r.capacity_tokens = 250'000;
      for (uint64_t k = random.below(11); k > 0; --k) r.requests.push_back({id++, random.below(20'000)});
    }
    auto plan = rebalance_decode(in);
    ASSERT_TRUE(plan);
    ASSERT_LE(plan->moves.size(), 20u);
    auto now = in.ranks;
    const auto busiest = [&] {
      double most = 0;
      for (const auto& r : now) {
        double load = 0;
        for (const auto& q : r.requests) load += 12'000 + double(q.kv_tokens);
        if (r.usable) most = std::max(most, load);
      }
      return most;
    };
    double peak = busiest();
    for (const auto& m : plan->moves) {
      auto& from = now[m.from].requests;
      auto at = std::find_if(from.begin(), from.end(), [&](const auto& q) { return q.id == m.request; });
      ASSERT_NE(at, from.end()) << "seed " << seed;
      now[m.to].requests.push_back(*at);
      from.erase(at);
      uint64_t kv = 0;
      for (const auto& q : now[m.to].requests) kv += q.kv_tokens;
      EXPECT_TRUE(now[m.to].usable && now[m.from].usable && now[m.to].requests.size() <= 12 && kv <= 250'000)
          << "seed " << seed;
      EXPECT_LE(busiest(), peak * (1 + 1e-12)) << "seed " << seed;
      peak = busiest();
    }
    EXPECT_LE(plan->imbalance_after, plan->imbalance_before + 1e-12) << "seed " << seed;
    moved += plan->moves.size();
  }
  EXPECT_GT(moved, 500u);
}

}  // namespace
}  // namespace troupe::policies
