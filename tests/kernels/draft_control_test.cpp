// The engine's choice whether and how much to draft, on machines with known costs. Seeds are fixed: the control is
// deterministic, so are these figures.
#include "kernels/engine/draft_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/engine/draft_grants.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels {
namespace {

constexpr uint32_t block = 5;

// An engine with affine costs: a step of n rows takes fixed + n * row, a draft pass requests * draft; every draft
// survives with `chance`, and its confidence says so.
struct machine {
  double fixed = 0, row = 0, draft = 0, chance = 0.8;
};

struct outcome {
  double tokens = 0, ns = 0;
  uint32_t drafting_steps = 0;
  double rate() const { return tokens / ns; }
};

class loop {
 public:
  explicit loop(const machine& m) : m_(m), random_(99) {}

  // `steps` steps; fixed: all drafts always, none: never, else what the control says.
  outcome run(uint32_t requests, uint32_t steps, draft_control* control, bool always = false) {
    policies::confidence_rows rows{block, std::vector<float>(size_t{requests} * block, static_cast<float>(m_.chance)),
                                   std::vector<uint32_t>(requests, 0)};
    outcome out;
    for (uint32_t i = 0; i < steps; ++i) {
      const uint32_t at_hand = requests * rows.drafts[0];
      draft_choice c{at_hand, always};
      if (control) c = control->choose({requests, 0, requests * block, &rows});
      draft_measurement d;
      d.verified = std::min(c.budget, at_hand);
      d.tokens = requests;
      for (uint32_t r = 0; r < requests; ++r) {
        const uint32_t mine = d.verified / requests + (r < d.verified % requests);
        for (uint32_t k = 0; k < mine && random_.uniform() < m_.chance; ++k) ++d.tokens;
      }
      d.drafted = c.draft ? requests : 0;
      const double noise = 1 + 0.1 * random_.uniform() + (random_.uniform() < 0.02 ? 5 : 0);  // held up at times
      d.target_ns = static_cast<int64_t>((m_.fixed + m_.row * (requests + d.verified)) * noise);
      d.draft_ns = static_cast<int64_t>(m_.draft * d.drafted);
      if (control) control->observe(d);
      std::fill(rows.drafts.begin(), rows.drafts.end(), c.draft ? block : 0);
      out.tokens += d.tokens;
      out.ns += m_.fixed + m_.row * (requests + d.verified) + m_.draft * d.drafted;  // without the luck
      out.drafting_steps += c.draft;
    }
    return out;
  }

 private:
  machine m_;
  rng random_;
};

constexpr uint32_t steps = 6000;

double share_of_better(const machine& m, uint32_t requests, uint32_t* drafting = nullptr) {
  draft_control control;
  const double none = loop(m).run(requests, steps, nullptr).rate();
  const double fixed = loop(m).run(requests, steps, nullptr, true).rate();
  const outcome adaptive = loop(m).run(requests, steps, &control);
  if (drafting) *drafting = adaptive.drafting_steps;
  return adaptive.rate() / std::max(none, fixed);
}

TEST(draft_control, stops_where_rows_cost_what_they_bring_and_probes_now_and_then) {
  for (uint32_t requests : {1u, 16u, 64u}) {
    uint32_t drafting = 0;
    EXPECT_GT(share_of_better({20e3, 300e3, 250e3, 0.7}, requests, &drafting), 0.97) << requests;
    EXPECT_LT(drafting, 150u) << requests;
    EXPECT_GT(drafting, 8u) << requests;  // the trial, and at least one probe
  }
}

TEST(draft_control, drafts_where_rows_are_nearly_free) {
  for (uint32_t requests : {1u, 16u, 64u}) {
    uint32_t drafting = 0;
    EXPECT_GT(share_of_better({5e6, 10e3, 20e3, 0.8}, requests, &drafting), 0.97) << requests;
    EXPECT_GT(drafting, steps - 100) << requests;
  }
}

// The first steps, those without drafts, were held up, which makes drafting look good. It is not.
TEST(draft_control, a_bad_start_is_made_good) {
  for (uint32_t requests : {1u, 16u})
    for (double held_up : {3.0, 20.0}) {
      const machine m{20e3, 300e3, 250e3, 0.7};
      const machine slow{m.fixed * held_up, m.row * held_up, m.draft * held_up, m.chance};
      draft_control control;
      loop(slow).run(requests, 4, &control);
      loop(m).run(requests, 1500, &control);
      const double none = loop(m).run(requests, steps, nullptr).rate();
      EXPECT_GT(loop(m).run(requests, steps, &control).rate(), 0.97 * none) << requests << " requests, " << held_up;
    }
}

TEST(draft_control, another_number_of_requests_is_tried_for_itself) {
  // One request: rows are nearly free. 64: they cost all there is.
  const machine few{3e6, 50e3, 50e3, 0.8}, many{3e6, 500e3, 400e3, 0.6};
  draft_control control;
  loop a(few), b(many);
  const outcome first = a.run(1, 300, &control), crowd = b.run(64, 300, &control), again = a.run(1, 300, &control);
  EXPECT_GT(first.drafting_steps, 280u);
  EXPECT_LT(crowd.drafting_steps, 40u);
  EXPECT_GT(again.drafting_steps, 280u);
}

TEST(draft_control, says_the_same_when_told_the_same) {
  draft_control a, b;
  const machine m{1e6, 100e3, 100e3, 0.75};
  const outcome x = loop(m).run(8, 700, &a), y = loop(m).run(8, 700, &b);
  EXPECT_EQ(x.tokens, y.tokens);
  EXPECT_EQ(x.ns, y.ns);
  EXPECT_EQ(x.drafting_steps, y.drafting_steps);
}

TEST(draft_control, a_plan_without_a_budget_drafts_nothing) {
  draft_control control;
  policies::confidence_rows rows{block, {}, {}};
  const draft_choice c = control.choose({0, 12, 0, &rows});
  EXPECT_EQ(c.budget, 0u);
  EXPECT_FALSE(c.draft);
}

TEST(step_cost_meter, keeps_medians_of_bounded_classes) {
  step_cost_meter m;
  for (int i = 0; i < 20; ++i) m.add(6, i % 4 == 0 ? 1'000'000 : 1000 + i);
  m.add(7, 5);
  EXPECT_TRUE(m.knows(6));
  EXPECT_FALSE(m.knows(7));
  ASSERT_EQ(m.points().size(), 1u);
  EXPECT_EQ(m.points()[0].n, 6u);
  EXPECT_LT(m.points()[0].ns, 1100);
  for (uint32_t n = 1; n < 100'000; ++n)
    for (int i = 0; i < 3; ++i) m.add(n, n * 1000);
  EXPECT_LT(m.points().size(), 80u);
  auto t = policies::make_step_cost_table(m.points(), {});
  ASSERT_TRUE(t);
  EXPECT_NEAR(policies::step_cost(t->verify, 0, 1000), 1e6, 0.15e6);
}

// The engine's own choice, which allocates nothing, is the policy's.
TEST(draft_grants, are_those_of_the_policy) {
  constexpr uint64_t seed = 12;
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  rng random(seed);
  draft_grants grants;
  for (int round = 0; round < 500; ++round) {
    policies::confidence_rows rows;
    rows.width = block;
    const auto requests = static_cast<uint32_t>(1 + random.below(8));
    grants.clear();
    uint32_t all = 0;
    for (uint32_t r = 0; r < requests; ++r) {
      rows.drafts.push_back(static_cast<uint32_t>(random.below(block + 1)));
      all += rows.drafts.back();
      // Quarters and halves, so that products tie; and nothing that falls under the policy's least survival.
      for (uint32_t k = 0; k < block; ++k) rows.value.push_back(0.25f * static_cast<float>(1 + random.below(4)));
      grants.offer(r, std::span(rows.value).subspan(size_t{r} * block, rows.drafts.back()));
    }
    const auto budget = static_cast<uint32_t>(random.below(all + 2));
    std::vector<uint32_t> lengths(requests);
    for (uint32_t item : grants.choose(budget)) ++lengths[item];
    const auto plan = policies::assign_verify_lengths(rows, budget);
    ASSERT_TRUE(plan) << plan.error().message;
    uint32_t given = 0;
    for (uint32_t n : lengths) given += n;
    EXPECT_EQ(given, std::min(budget, all));
    double mine = 0;
    for (uint32_t r = 0; r < requests; ++r) {
      double chance = 1;
      for (uint32_t k = 0; k < lengths[r]; ++k) mine += chance *= rows.value[r * block + k];
    }
    EXPECT_NEAR(mine + requests, plan->tokens, 1e-5) << "round " << round;
  }
}

}  // namespace
}  // namespace troupe::kernels
