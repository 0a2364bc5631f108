// The engine without weights against the engine's contract, and groups of them in virtual time.
#include "kernels/engine/cost_engine.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "kernels/engine/handoff.hpp"
#include "kernels/ep/local_group.hpp"
#include "tests/kernels/engine_fixture.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

// Virtual time: entries run when the test says so.
class cost_timer final : public step_timer {
 public:
  nanoseconds now() const override { return now_; }
  void schedule(nanoseconds after, std::function<void()> what) override {
    entries_.emplace(now_ + after, std::move(what));
    ++scheduled;
  }
  /// Runs entries until there is none or `until` has come.
  void run(nanoseconds until = nanoseconds::max()) {
    while (!entries_.empty() && entries_.begin()->first <= until) {
      auto e = entries_.extract(entries_.begin());
      now_ = std::max(now_, e.key());
      e.mapped()();
    }
    if (until != nanoseconds::max()) now_ = std::max(now_, until);
  }
  bool idle() const { return entries_.empty(); }
  uint64_t scheduled = 0;

 private:
  nanoseconds now_{std::chrono::seconds(1)};
  std::multimap<nanoseconds, std::function<void()>> entries_;
};

std::shared_ptr<const model> cost_outline() {
  static const auto m = load_cost_outline(TROUPE_TEST_DATA "/tiny-v41");
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  return *m;
}

// 1 us a row, 1 us of experts for each pair.
policies::cost_model cost_model_of(uint32_t flatness = 0) {
  const expert_shape e = experts_of(*cost_outline());
  policies::cost_model m;
  m.name = "test";
  m.rates.encoder_layers = e.encoder_layers;
  m.rates.decoder_layers = e.layers - e.encoder_layers;
  m.rates.experts = e.experts;
  m.rates.top_k = e.top_k;
  m.rates.encoder_row_fs = m.rates.expert_item_fs = 1'000'000'000;
  m.fabrics = {{"wire", 8, 1'000'000'000, 1'000'000'000}};
  m.acceptance.chance_permille = {200, 950};
  m.skew.flatness = flatness;
  return m;
}

engine_limits cost_limits() { return {.slots = 4, .max_chunk = 64, .max_context = 200, .pages = 60, .handoffs = 2}; }

struct cost_parts {
  std::shared_ptr<step_timer> timer = make_live_timer();
  policies::cost_model model = cost_model_of();
  std::vector<std::byte> pages = std::vector<std::byte>(size_t{60} * cost_outline()->plan.page_bytes);
  std::vector<std::byte> states = std::vector<std::byte>(size_t{2} * cost_state_bytes);
  bool bytes = true;

  cost_engine_config config() {
    cost_engine_config c;
    c.outline = cost_outline();
    c.model = std::make_shared<const policies::cost_model>(model);
    c.timer = timer;
    c.limits = cost_limits();
    if (bytes) c.pages = pages, c.handoff = states;
    return c;
  }
  std::unique_ptr<engine_driver> driver() {
    return std::make_unique<engine_driver>(cost_limits().pages,
                                           [&](engine::sink s) { return make_cost_engine(config(), std::move(s)); });
  }
};

prompt cost_prompt(uint32_t length, uint32_t max_tokens, uint64_t seed = 1) {
  prompt p;
  p.tokens = random_tokens(seed, length, 512);
  p.sampling = {.temperature = 1, .seed = seed};
  p.stop = {.max_tokens = max_tokens, .ignore_eos = true};
  return p;
}

TEST(cost_engine, output_depends_on_prompt_and_seed_alone) {
  for (bool bytes : {true, false}) {
    cost_parts a, b;
    a.bytes = b.bytes = bytes;
    std::vector<prompt> prompts;
    for (uint32_t i = 0; i < 9; ++i) {
      prompts.push_back(cost_prompt(10 + 7 * i, 30, i + 1));
      prompts.back().chunk = i % 3 == 0 ? 0 : 5 + i;
      prompts.back().speculate = i % 2 == 0;
    }
    auto together = a.driver()->complete(prompts, 3, 2);
    uint32_t accepted = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      prompts[i].chunk = 0;
      prompts[i].speculate = true;
      const auto alone = b.driver()->complete({prompts[i]})[0];
      EXPECT_EQ(alone.tokens, together[i].tokens) << i;
      EXPECT_EQ(alone.tokens.size(), 30u);
      EXPECT_LT(alone.steps, 30u) << "drafts are accepted";
      accepted += alone.accepted;
      for (size_t j = 0; j < i; ++j) EXPECT_NE(alone.tokens, together[j].tokens);
    }
    EXPECT_GT(accepted, 60u);
    // A resume at the last token gives the rest.
    prompt again = prompts[4];
    again.prompt_length = static_cast<uint32_t>(again.tokens.size());
    again.tokens.insert(again.tokens.end(), together[4].tokens.begin(), together[4].tokens.begin() + 11);
    again.decoder_replay = false;
    const auto rest = a.driver()->complete({again})[0];
    EXPECT_EQ(rest.tokens, std::vector<token_id>(together[4].tokens.begin() + 11, together[4].tokens.end()));
    prompt other = prompts[4];
    other.sampling.seed = 99;
    EXPECT_NE(b.driver()->complete({other})[0].tokens, together[4].tokens);
  }
}

TEST(cost_engine, sequences_end_as_they_should) {
  cost_parts p;
  p.model.mean_output = 12;
  auto d = p.driver();
  prompt free = cost_prompt(30, 150);
  free.stop.ignore_eos = false;
  const auto ended = d->complete({free})[0];
  ASSERT_EQ(ended.finish, finish_reason::stop);
  EXPECT_EQ(ended.tokens.back(), cost_outline()->config.eos);
  prompt longer = free;
  longer.stop.min_tokens = static_cast<uint32_t>(ended.tokens.size()) + 5;
  const auto later = d->complete({longer})[0];
  EXPECT_GT(later.tokens.size(), ended.tokens.size() + 4);
  prompt word = cost_prompt(30, 40);
  const auto all = d->complete({word})[0];
  EXPECT_EQ(all.finish, finish_reason::length);
  word.stop.stop_ids = {all.tokens[7]};
  const auto cut = d->complete({word})[0];
  EXPECT_EQ(cut.finish, finish_reason::stop);
  EXPECT_LE(cut.tokens.size(), 8u);
  EXPECT_EQ(d->pool().free(), d->pool().total());
}

TEST(cost_engine, plans_are_checked_as_everywhere) {
  cost_parts p;
  auto d = p.driver();
  step_plan plan;
  plan.id = d->next_plan();
  plan.open.push_back({slot_id{0}, random_tokens(1, 20, 512), 20, {.temperature = 0}, {.max_tokens = 4}, true});
  plan.sequences.push_back({.slot = slot_id{0}, .rows = 21, .sample = true, .pages = {page_id{3}, page_id{4}}});
  const auto r = d->get().submit(plan);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("sequences[0].rows"), std::string::npos) << r.error().message;
  plan.sequences[0].rows = 20;
  const auto good = d->run(plan);
  EXPECT_EQ(good.at(0).sequences.at(0).tokens.size(), 1u);
  EXPECT_GE(good.at(0).times.total, 20'000);
  const expert_window w = d->get().take_expert_window(1);
  uint64_t sum = 0;
  for (uint64_t v : w.loads.at(0)) sum += v;
  EXPECT_EQ(sum, 20u * cost_outline()->config.num_experts_per_tok);
  EXPECT_EQ(w.received.at(0), sum);
  d->get().stop();
  EXPECT_EQ(d->get().submit(plan).error().code, errc::unavailable);
}

// Pages with somebody else's content are read as what they are: other tokens come out.
TEST(cost_engine, a_page_that_is_overwritten_changes_the_answer) {
  std::vector<token_id> got[2];
  for (int overwritten : {0, 1}) {
    cost_parts p;
    auto d = p.driver();
    const prompt q = cost_prompt(40, 12);
    step_plan plan;
    plan.open.push_back({slot_id{0}, q.tokens, 40, q.sampling, q.stop, false});
    sequence_step s{.slot = slot_id{0}, .rows = 40, .sample = true};
    s.pages = d->pages(slot_id{0}, 4);
    plan.sequences.push_back(s);
    for (auto& r : d->run(plan)) got[overwritten] = r.sequences[0].tokens;
    if (overwritten) std::memset(p.pages.data() + size_t{s.pages[1].value} * cost_outline()->plan.page_bytes, 7, 64);
    step_plan more;
    more.max_steps = 12;
    more.sequences.push_back({.slot = slot_id{0}});
    for (auto& r : d->run(more))
      got[overwritten].insert(got[overwritten].end(), r.sequences[0].tokens.begin(), r.sequences[0].tokens.end());
  }
  EXPECT_EQ(got[0].size(), 12u);
  EXPECT_EQ(got[0][0], got[1][0]);
  EXPECT_NE(got[0], got[1]);
}

TEST(cost_engine, a_sequence_moves_to_another_engine) {
  cost_parts p, q;
  auto from = p.driver(), to = q.driver();
  const prompt whole = cost_prompt(70, 20);
  const auto want = to->complete({whole})[0].tokens;
  step_plan plan;
  plan.open.push_back({slot_id{1}, whole.tokens, 70, whole.sampling, whole.stop, true});
  for (uint32_t at : {0u, 50u}) {
    sequence_step s{.slot = slot_id{1}, .position = at, .rows = at ? 20u : 50u, .sample = at > 0};
    if (at) s.export_to = 1;
    if (!at) s.pages = from->pages(slot_id{1}, 5);
    plan.sequences = {s};
    const auto r = from->run(plan);
    plan.open.clear();
    if (!at) continue;
    const sequence_result& last = r.back().sequences.at(0);
    ASSERT_EQ(last.exported.rows, 70u);
    ASSERT_EQ(last.exported.page_checksums.size(), 5u);
    sequence_import in{70, 0, to->pages(slot_id{0}, 5)};
    const uint32_t page = cost_outline()->plan.page_bytes;
    for (size_t i = 0; i < 5; ++i)
      std::memcpy(q.pages.data() + in.pages[i].value * size_t{page},
                  p.pages.data() + from->held(slot_id{1})[i].value * size_t{page}, page);
    std::memcpy(q.states.data(), p.states.data() + cost_state_bytes, cost_state_bytes);
    ASSERT_TRUE(check_handoff(cost_outline()->plan, last.exported, q.pages, in.pages, std::span(q.states)));
    ASSERT_TRUE(check_cost_state(to->get().facts(), 70, q.states));
    EXPECT_EQ(check_cost_state(to->get().facts(), 69, q.states).error().code, errc::invalid_argument);
    prompt rest = whole;
    rest.prompt_length = 70;
    rest.tokens.push_back(last.tokens.at(0));
    rest.imported = in;
    prompt wrong = rest;
    wrong.tokens[3] ^= 1;
    step_plan refused;
    refused.id = to->next_plan();
    refused.open.push_back({slot_id{0}, wrong.tokens, 70, wrong.sampling, wrong.stop, true, in});
    const auto no = to->get().submit(refused);
    ASSERT_FALSE(no);
    EXPECT_NE(no.error().message.find("other tokens"), std::string::npos) << no.error().message;
    auto tokens = to->complete({rest})[0].tokens;
    tokens.insert(tokens.begin(), last.tokens.at(0));
    EXPECT_EQ(tokens, want);
    q.pages[in.pages[2].value * size_t{page}] ^= std::byte{1};
    EXPECT_EQ(check_handoff(cost_outline()->plan, last.exported, q.pages, in.pages, std::span(q.states)).error().code,
              errc::corrupt);
  }
}

// A group of the data plane: only headers are exchanged.
TEST(cost_engine, runs_in_a_group_of_the_data_plane) {
  cost_parts p;
  ep::group_shape shape{.ranks = 1, .hidden = 1, .top_k = 1, .max_rows = 1};
  auto group = ep::make_local_group(shape);
  ASSERT_TRUE(group);
  auto want = cost_parts().driver()->complete({cost_prompt(50, 25)})[0].tokens;
  auto d = std::make_unique<engine_driver>(60, [&](engine::sink s) {
    auto c = p.config();
    c.group = std::move(*group);
    c.placement = initial_placement(*cost_outline(), 1);
    return make_cost_engine(std::move(c), std::move(s));
  });
  EXPECT_EQ(d->complete({cost_prompt(50, 25)})[0].tokens, want);
  auto next = ep::make_local_group(shape);
  ASSERT_TRUE(d->get().regroup(std::move(*next), initial_placement(*cost_outline(), 1)));
  EXPECT_EQ(d->complete({cost_prompt(50, 25)})[0].tokens, want);
}

// Ranks of one group in virtual time.
struct group_world {
  static constexpr uint32_t ranks = 4;
  std::shared_ptr<cost_timer> timer = std::make_shared<cost_timer>();
  policies::cost_model model = cost_model_of(2);
  std::shared_ptr<cost_group> group = make();
  std::vector<std::unique_ptr<engine>> engines;
  std::vector<std::vector<step_result>> results = std::vector<std::vector<step_result>>(ranks);
  uint64_t plans = 0;

  std::shared_ptr<cost_group> make(uint32_t n = ranks) {
    auto made = cost_group::make({.model = std::make_shared<const policies::cost_model>(model),
                                  .timer = timer,
                                  .ranks = n,
                                  .fabric = "",
                                  .deadline = std::chrono::seconds(5),
                                  .experts = experts_of(*cost_outline()),
                                  .seed = 1});
    TROUPE_CHECK(made.has_value(), "{}", made.error().message);
    return *made;
  }
  group_world() {
    for (uint32_t r = 0; r < ranks; ++r) {
      cost_engine_config c;
      c.outline = cost_outline();
      c.model = std::make_shared<const policies::cost_model>(model);
      c.timer = timer;
      c.limits = cost_limits();
      c.group = std::move(*group->seat(r));
      c.placement = initial_placement(*cost_outline(), ranks);
      auto e = make_cost_engine(std::move(c), [this, r](step_result s) { results[r].push_back(std::move(s)); });
      TROUPE_CHECK(e.has_value(), "{}", e.error().message);
      engines.push_back(std::move(*e));
    }
    timer->run();
  }
  result<void> open(uint32_t r, uint32_t rows = 40) {
    const prompt q = cost_prompt(rows, 20, r + 1);
    step_plan plan;
    plan.id = ++plans;
    plan.open.push_back({slot_id{0}, q.tokens, rows, q.sampling, q.stop, false});
    sequence_step s{.slot = slot_id{0}, .rows = rows, .sample = true};
    for (uint32_t i = 0; i < 4; ++i) s.pages.push_back(page_id{i});
    plan.sequences.push_back(s);
    return engines[r]->submit(plan);
  }
  result<void> decode(uint32_t r, uint32_t steps = 1) {
    step_plan plan;
    plan.id = ++plans;
    plan.max_steps = steps;
    plan.sequences.push_back({.slot = slot_id{0}});
    return engines[r]->submit(plan);
  }
  std::vector<token_id> tokens(uint32_t r) {
    std::vector<token_id> out;
    for (const auto& s : results[r])
      for (const auto& q : s.sequences) out.insert(out.end(), q.tokens.begin(), q.tokens.end());
    return out;
  }
};

TEST(cost_group, steps_together_and_parks) {
  group_world w;
  ASSERT_TRUE(w.timer->idle()) << "a group without work has no entries";
  const nanoseconds start = w.timer->now();
  ASSERT_TRUE(w.open(0));
  ASSERT_TRUE(w.open(2, 60));
  w.timer->run();
  EXPECT_TRUE(w.timer->idle());
  EXPECT_EQ(w.results[0].size(), 1u);
  EXPECT_EQ(w.results[2].size(), 1u);
  EXPECT_TRUE(w.results[1].empty());
  EXPECT_EQ(w.results[0][0].step, 1u);
  EXPECT_EQ(w.results[2][0].step, 1u) << "both in the same step";
  const nanoseconds both = w.timer->now() - start;
  EXPECT_EQ(w.results[0][0].times.total, both.count());
  // 60 rows of the slower rank, and the experts of 25 rows on average over all, times what the busiest rank has more.
  EXPECT_GT(w.group->stats().imbalance_permille, 1000u);
  EXPECT_EQ(w.group->stats().busy, both);
  ASSERT_TRUE(w.decode(0, 10));
  const uint64_t before = w.timer->scheduled;
  w.timer->run();
  EXPECT_EQ(w.results[0].size(), 11u);
  EXPECT_LE(w.timer->scheduled - before, 11u) << "one entry a step";
  EXPECT_EQ(w.group->stats().steps, 11u);
}

TEST(cost_group, slow_ranks_hold_up_the_others_and_frozen_ones_go_on) {
  group_world w;
  ASSERT_TRUE(w.open(0));
  w.timer->run();
  ASSERT_TRUE(w.decode(0));
  w.timer->run();
  const int64_t normal = w.results[0].back().times.total;
  w.group->slow(3, 2500);
  ASSERT_TRUE(w.decode(0));
  w.timer->run();
  EXPECT_NEAR(static_cast<double>(w.results[0].back().times.total), 2.5 * static_cast<double>(normal), 2);
  w.group->slow(3, 1000);
  w.group->freeze(1);
  ASSERT_TRUE(w.decode(0));
  w.timer->run(w.timer->now() + std::chrono::seconds(3));
  EXPECT_EQ(w.results[0].size(), 3u);
  w.group->thaw(1);
  w.timer->run(w.timer->now() + std::chrono::seconds(1));
  ASSERT_EQ(w.results[0].size(), 4u);
  EXPECT_EQ(w.results[0].back().failure, errc{});
}

TEST(cost_group, a_lost_rank_is_reported_and_the_others_go_on) {
  std::vector<token_id> want;
  {
    group_world w;
    ASSERT_TRUE(w.open(0));
    ASSERT_TRUE(w.decode(0, 19));
    w.timer->run();
    want = w.tokens(0);
    ASSERT_EQ(want.size(), 20u);
  }
  for (bool noticed : {false, true}) {
    group_world w;
    ASSERT_TRUE(w.open(0));
    w.timer->run();
    ASSERT_TRUE(w.decode(0, 19));
    w.timer->run(w.timer->now() + std::chrono::microseconds(200));  // in the middle of some step
    ASSERT_LT(w.tokens(0).size(), 20u);
    const nanoseconds killed = w.timer->now();
    w.group->kill(1, noticed ? std::chrono::milliseconds(2) : nanoseconds::max());
    const size_t before = w.results[0].size();
    w.timer->run(killed + (noticed ? std::chrono::microseconds(1990) : std::chrono::milliseconds(4990)));
    ASSERT_LE(w.results[0].size(), before + 1) << "not more than the step that was running";
    EXPECT_EQ(w.results[0].back().failure, errc{});
    w.timer->run(killed + (noticed ? std::chrono::milliseconds(2) : std::chrono::milliseconds(5010)));
    const step_result& r = w.results[0].back();
    EXPECT_EQ(r.failure, errc::peer_lost) << r.failure_text;
    EXPECT_EQ(r.suspects, std::vector<uint32_t>{1});
    EXPECT_TRUE(r.applied && r.plan_done && r.sequences.empty());
    EXPECT_TRUE(w.results[1].empty());
    EXPECT_EQ(w.results[2].back().plan, 0u) << "a rank without a plan says so too";
    EXPECT_EQ(w.decode(0).error().code, errc::unavailable);
    // The survivors' next group.
    auto next = w.make(3);
    uint32_t seat = 0;
    for (uint32_t e : {0u, 2u, 3u})
      ASSERT_TRUE(w.engines[e]->regroup(std::move(*next->seat(seat++)), initial_placement(*cost_outline(), 3)));
    ASSERT_TRUE(w.decode(0, 19));
    w.timer->run();
    EXPECT_EQ(w.tokens(0), want) << "no token lost, none twice";
    EXPECT_EQ(w.results[0].back().regroups, 1u);
  }
}

TEST(cost_group, a_frozen_rank_that_comes_late_finds_the_others_gone) {
  group_world w;
  ASSERT_TRUE(w.open(0));
  w.timer->run();
  w.group->freeze(2);
  ASSERT_TRUE(w.decode(0));
  w.timer->run();
  EXPECT_EQ(w.results[0].back().suspects, std::vector<uint32_t>{2});
  EXPECT_TRUE(w.results[2].empty());
  w.group->thaw(2);
  w.timer->run();
  ASSERT_EQ(w.results[2].size(), 1u);
  EXPECT_EQ(w.results[2][0].suspects, (std::vector<uint32_t>{0, 1, 3}));
}

TEST(cost_group, a_rank_that_stops_is_not_lost) {
  group_world w;
  ASSERT_TRUE(w.open(0));
  w.timer->run();
  w.engines[3]->stop();
  ASSERT_TRUE(w.decode(0, 3));
  w.timer->run();
  EXPECT_EQ(w.results[0].back().failure, errc{}) << "the plan waits for the next group";
  auto next = w.make(3);
  for (uint32_t e : {0u, 1u, 2u})
    ASSERT_TRUE(w.engines[e]->regroup(std::move(*next->seat(e)), initial_placement(*cost_outline(), 3)));
  w.timer->run();
  EXPECT_EQ(w.tokens(0).size(), 4u);
}

TEST(cost_group, a_rank_that_has_gone_on_is_not_touched_by_its_old_group) {
  group_world w;
  ASSERT_TRUE(w.open(0) && (w.timer->run(), true) && w.decode(0, 19));
  w.timer->run(w.timer->now() + std::chrono::microseconds(200));  // in the middle of some step
  w.engines[3]->stop();
  auto alone = w.make(1);
  ASSERT_TRUE(w.engines[0]->regroup(std::move(*alone->seat(0)), initial_placement(*cost_outline(), 1)));
  w.timer->run(w.timer->now() + std::chrono::milliseconds(1));
  alone->freeze(0);  // nobody is there to miss it
  w.timer->run(w.timer->now() + std::chrono::seconds(60));
  alone->thaw(0);
  w.timer->run();
  EXPECT_EQ(w.tokens(0).size(), 20u);
  for (const step_result& r : w.results[0]) EXPECT_EQ(r.failure, errc{}) << r.failure_text;
}

TEST(cost_group, placements_flip_together_and_matter) {
  group_world w;
  ASSERT_TRUE(w.open(0));
  ASSERT_TRUE(w.decode(0));
  w.timer->run();
  const int64_t even = w.results[0].back().times.experts;
  const expert_window window = w.engines[0]->take_expert_window(1);
  EXPECT_EQ(window.steps, 2u);
  const auto status = w.engines[0]->placement();
  placement_move move;
  move.from = status.active->version;
  move.to.version = placement_version{move.from.value + 1};
  const uint32_t layers = cost_outline()->config.num_hidden_layers;
  move.to.copies.assign(status.active->copies.begin(), status.active->copies.begin() + layers);
  for (auto& layer : move.to.copies)
    for (auto& copies : layer) copies = {0};  // everything on rank 0
  for (auto& e : w.engines) ASSERT_TRUE(e->stage(move));
  w.timer->run();
  for (auto& e : w.engines) ASSERT_EQ(e->placement().phase, move_phase::staged);
  ASSERT_TRUE(w.engines[2]->flip(move.to.version));
  w.timer->run();
  for (auto& e : w.engines) EXPECT_EQ(e->placement().active->version, move.to.version);
  EXPECT_EQ(w.engines[0]->placement().active.get(), w.engines[3]->placement().active.get()) << "kept once";
  ASSERT_TRUE(w.decode(0));
  w.timer->run();
  EXPECT_EQ(w.group->stats().imbalance_permille, 4000u);
  EXPECT_GT(w.results[0].back().times.experts, even);
}

}  // namespace
}  // namespace troupe::kernels
