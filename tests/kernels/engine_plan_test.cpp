// Plans: what is refused, how sequences end, pages, slots, failures and regrouping.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "kernels/ep/local_group.hpp"
#include "kernels/ep/thread_group.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/tiny_model.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

cpu_engine_config config() {
  cpu_engine_config c;
  c.weights = tiny();
  c.limits = {.slots = 4, .max_chunk = 64, .max_context = 200, .pages = 40, .max_draft = 5, .threads = 1};
  return c;
}

prompt prompt_of(uint32_t length, uint32_t max_tokens) {
  prompt p;
  p.tokens = random_tokens(length, length, 512);
  p.stop = {.max_tokens = max_tokens, .ignore_eos = true};
  return p;
}

// A plan that opens slot 0 with 20 tokens and runs them.
step_plan good_plan(uint64_t id) {
  step_plan p;
  p.id = id;
  p.open.push_back({slot_id{0}, random_tokens(1, 20, 512), 20, {.temperature = 0}, {.max_tokens = 4}, true});
  p.sequences.push_back({.slot = slot_id{0}, .rows = 20, .sample = true, .pages = {page_id{3}, page_id{4}}});
  return p;
}

TEST(plan, bad_ones_are_refused_by_field_and_change_nothing) {
  engine_driver d(config());
  struct bad {
    const char* message;
    std::function<void(step_plan&)> change;
  };
  const bad table[] = {
      {"id: must grow", [](auto& p) { p.id = 0; }},
      {"max_steps: is 0", [](auto& p) { p.max_steps = 0; }},
      {"close[0]: slot 0 is not open", [](auto& p) { p.close = {slot_id{0}}; }},
      {"close[0]: slot 99 is not open", [](auto& p) { p.close = {slot_id{99}}; }},
      {"open[0].slot: is 4", [](auto& p) { p.open[0].slot = slot_id{4}; }},
      {"open[1].slot: 0 is open", [](auto& p) { p.open.push_back(p.open[0]); }},
      {"open[0].tokens: 0 tokens", [](auto& p) { p.open[0].tokens.clear(); }},
      {"open[0].tokens: 201 tokens", [](auto& p) { p.open[0].tokens.resize(201); }},
      {"open[0].tokens[7]: 512 is outside", [](auto& p) { p.open[0].tokens[7] = 512; }},
      {"open[0].tokens[7]: -1 is outside", [](auto& p) { p.open[0].tokens[7] = -1; }},
      {"open[0].prompt_length: is 21", [](auto& p) { p.open[0].prompt_length = 21; }},
      {"open[0].prompt_length: is 0", [](auto& p) { p.open[0].prompt_length = 0; }},
      {"sampling.temperature", [](auto& p) { p.open[0].sampling.temperature = -1; }},
      {"sampling.temperature", [](auto& p) { p.open[0].sampling.temperature = NAN; }},
      {"sampling.top_p", [](auto& p) { p.open[0].sampling.top_p = 0; }},
      {"sampling.logprobs", [](auto& p) { p.open[0].sampling.logprobs = 21; }},
      {"stop.max_tokens: is 0", [](auto& p) { p.open[0].stop.max_tokens = 0; }},
      {"stop.stop_ids: 600", [](auto& p) { p.open[0].stop.stop_ids = {600}; }},
      {"sequences[0].slot: 2 is not open", [](auto& p) { p.sequences[0].slot = slot_id{2}; }},
      {"sequences[1].slot: 0 is also", [](auto& p) { p.sequences.push_back({.slot = slot_id{0}}); }},
      {"sequences[0].pages: page 40 is out of range", [](auto& p) { p.sequences[0].pages[1] = page_id{40}; }},
      {"sequences[0].pages: slot 0 would have 14", [](auto& p) { p.sequences[0].pages.resize(14); }},
      {"sequences[0].pages: 20 tokens need 2 pages", [](auto& p) { p.sequences[0].pages.pop_back(); }},
      {"sequences[0].rows: rows 0 to 20", [](auto& p) { p.sequences[0].rows = 21; }},
      {"sequences[0].position: is 3", [](auto& p) { p.sequences[0].position = 3, p.sequences[0].rows = 2; }},
      {"sequences[0].rows: is 0 (decode)", [](auto& p) { p.sequences[0].rows = 0; }},
      {"sequences[0].window_floor: is 5", [](auto& p) { p.sequences[0].window_floor = 5; }},
      {"sequences[0].decoder_floor: is 0", [](auto& p) { p.sequences[0].decoder_from = 5; }},
      {"sequences[0].decoder_from: is 20",
       [](auto& p) { p.sequences[0].decoder_from = p.sequences[0].decoder_floor = 20; }},
      {"sequences[0].write_global_from: is 8", [](auto& p) { p.sequences[0].write_global_from = 8; }},
      {"sequences[0].window_floor: is 0, rows replayed",
       [](auto& p) { p.sequences[0].write_global_from = 16, p.sequences[0].position = 16, p.sequences[0].rows = 4; }},
      {"sequences[0].sample: the chunk ends at 10", [](auto& p) { p.sequences[0].rows = 10; }},
      {"sequences: 65 chunk rows, the limit is 64",
       [](auto& p) {
         p.open[0].tokens = random_tokens(1, 65, 512);
         p.open[0].prompt_length = 65;
         p.sequences[0].rows = 65;
         p.sequences[0].pages = {page_id{0}, page_id{1}, page_id{2}, page_id{3}, page_id{4}};
       }},
  };
  for (const bad& b : table) {
    step_plan p = good_plan(1);
    b.change(p);
    auto r = d.get().submit(p);
    ASSERT_FALSE(r) << b.message;
    EXPECT_EQ(r.error().code, errc::invalid_argument);
    EXPECT_NE(r.error().message.find(b.message), std::string::npos) << r.error().message << "\nexpected " << b.message;
  }
  // Nothing has changed: the good plan still goes through.
  const auto results = d.run(good_plan(0));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].sequences[0].tokens.size(), 1u);
  EXPECT_EQ(results[0].sequences[0].committed, 20u);
}

TEST(plan, at_most_two_wait) {
  engine_driver d(config());
  ASSERT_TRUE(d.get().submit(good_plan(1)));
  uint64_t id = 1;
  result<void> r;
  size_t accepted = 1;
  for (int i = 0; i < 200 && r; ++i) {
    step_plan p;
    p.id = ++id;
    p.sequences.push_back({.slot = slot_id{0}});
    p.max_steps = 1;
    r = d.get().submit(p);
    accepted += r.has_value();
  }
  // Either the engine kept up for all of them, or the queue said so.
  if (!r) {
    EXPECT_EQ(r.error().code, errc::exhausted) << r.error().message;
  }
  for (size_t i = 0; i < accepted;) i += d.next().plan_done;
}

TEST(plan, only_opens_and_closes_are_answered) {
  engine_driver d(config());
  step_plan open = good_plan(0);
  open.sequences.clear();
  auto r = d.run(open);
  ASSERT_EQ(r.size(), 1u);
  EXPECT_TRUE(r[0].sequences.empty());
  step_plan close;
  close.close = {slot_id{0}};
  r = d.run(close);
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].closed, close.close);
}

TEST(plan, ends_by_length_stop_id_and_end_of_sequence) {
  engine_driver d(config());
  const auto free_run = d.complete({prompt_of(30, 12)})[0];
  EXPECT_EQ(free_run.finish, finish_reason::length);
  ASSERT_EQ(free_run.tokens.size(), 12u);

  prompt stopped = prompt_of(30, 12);
  const token_id fifth = free_run.tokens[4];
  const size_t first =
      static_cast<size_t>(std::find(free_run.tokens.begin(), free_run.tokens.end(), fifth) - free_run.tokens.begin());
  stopped.stop.stop_ids = {fifth};
  const auto by_id = d.complete({stopped})[0];
  EXPECT_EQ(by_id.finish, finish_reason::stop);
  EXPECT_EQ(by_id.tokens, std::vector<token_id>(free_run.tokens.begin(), free_run.tokens.begin() + first + 1));

  // min_tokens forbids the stop id for as long; the text then differs from there.
  stopped.stop.min_tokens = 8;
  const auto late = d.complete({stopped})[0];
  EXPECT_EQ(std::count(late.tokens.begin(), late.tokens.begin() + 8, fifth), 0);

  // Ban everything but the end of sequence (id 1) after three tokens.
  prompt eos = prompt_of(30, 12);
  eos.stop.ignore_eos = false;
  eos.stop.min_tokens = 3;
  const auto with_eos = d.complete({eos})[0];
  for (size_t i = 0; i < 3 && i < with_eos.tokens.size(); ++i) EXPECT_NE(with_eos.tokens[i], 1);

  // The context is the other end: 200 tokens.
  const auto full = d.complete({prompt_of(190, 100)})[0];
  EXPECT_EQ(full.finish, finish_reason::length);
  EXPECT_EQ(full.tokens.size(), 10u);
  EXPECT_EQ(d.pool().free(), d.pool().total());
}

TEST(plan, several_steps_end_at_a_finish_and_at_the_limit) {
  engine_driver d(config());
  d.run(good_plan(0));  // max_tokens 4, one is there
  step_plan p;
  p.sequences.push_back({.slot = slot_id{0}});
  p.max_steps = 2;
  auto r = d.run(p);
  EXPECT_EQ(r.size(), 2u);
  p.max_steps = 50;
  r = d.run(p);
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].sequences[0].finish, finish_reason::length);
  r = d.run(p);  // a finished slot computes nothing
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].rows, 0u);
}

TEST(plan, without_a_page_a_sequence_waits) {
  engine_driver d(config());
  step_plan open = good_plan(0);
  open.open[0].stop = {.max_tokens = 60, .ignore_eos = true};
  d.run(open);
  step_plan p;
  p.sequences.push_back({.slot = slot_id{0}});
  p.max_steps = 100;
  const auto r = d.run(p);
  // 32 positions fit two pages: rows 20 .. 31 run, then nothing.
  uint32_t committed = 20;
  for (auto& s : r)
    for (auto& q : s.sequences) committed = q.committed;
  EXPECT_EQ(committed, 32u);
  p.max_steps = 1;
  p.sequences[0].pages = {page_id{9}};
  EXPECT_EQ(d.run(p)[0].sequences[0].committed, 33u);
}

TEST(plan, slots_and_pages_are_reused_without_a_trace) {
  engine_driver d(config());
  std::vector<prompt> prompts;
  const uint32_t count = tests::cases(40, 15);
  for (uint32_t i = 0; i < count; ++i) prompts.push_back(prompt_of(1 + i * 13 % 120, 6));
  const auto all = d.complete(prompts);
  for (uint32_t i = 0; i < count; i += 7) {
    engine_driver fresh(config());
    EXPECT_EQ(fresh.complete({prompts[i]})[0].tokens, all[i].tokens) << i;
  }
  EXPECT_EQ(d.pool().free(), d.pool().total());
  EXPECT_EQ(d.pool().owned(page_owner::request), 0u);
}

TEST(plan, expert_loads_count_every_routed_row) {
  engine_driver d(config());
  d.run(good_plan(0));
  EXPECT_TRUE(d.get().take_expert_window(2).loads.empty()) << "one step is not two";
  const expert_window window = d.get().take_expert_window(1);
  EXPECT_EQ(window.steps, 1u);
  const auto& loads = window.loads;
  ASSERT_EQ(loads.size(), 11u);
  for (size_t l = 0; l < 8; ++l) {
    uint64_t sum = 0;
    for (uint64_t v : loads[l]) sum += v;
    EXPECT_EQ(sum, 20u * 4) << l;
    EXPECT_EQ(window.received[l], sum) << l;
  }
}

TEST(failure, a_lost_peer_is_reported_and_a_new_group_continues) {
  cpu_engine_config c = config();
  auto made =
      ep::make_thread_group(engine_group_shape(*c.weights, c.limits, 2), {.deadline = std::chrono::seconds(20)});
  ASSERT_TRUE(made);
  const prompt p = prompt_of(40, 10);
  completion want;
  {
    engine_driver alone(config());
    want = alone.complete({p})[0];
  }
  cpu_engine_config c2 = config();
  c.group = std::move(made->ranks[0]);
  c2.group = std::move(made->ranks[1]);
  c.placement = c2.placement = initial_placement(*c.weights, 2);
  engine_driver first(std::move(c));
  auto second = std::make_unique<engine_driver>(std::move(c2));

  step_plan open;
  open.open.push_back({slot_id{0}, p.tokens, 40, p.sampling, p.stop, true});
  sequence_step s{.slot = slot_id{0}, .rows = 40, .sample = true};
  s.decoder_from = s.decoder_floor = 24;
  s.pages = first.pages(slot_id{0}, 4);
  open.sequences.push_back(s);
  std::vector<token_id> got;
  for (auto& r : first.run(open)) got = r.sequences[0].tokens;
  ASSERT_EQ(got.size(), 1u);

  made->control->kill(1);
  step_plan next;
  next.sequences.push_back({.slot = slot_id{0}});
  // Whether the death is seen while parked or in the step, it is reported once per plan, and nothing is emitted.
  next.id = first.next_plan();
  const auto submitted = first.get().submit(next);
  step_result r = first.next();
  EXPECT_EQ(r.failure, errc::peer_lost) << r.failure_text;
  EXPECT_EQ(r.suspects, std::vector<uint32_t>{1});
  EXPECT_TRUE(r.sequences.empty());
  if (submitted && !r.plan_done) r = first.next();
  step_plan refused;
  refused.id = first.next_plan();
  refused.sequences.push_back({.slot = slot_id{0}});
  EXPECT_EQ(first.get().submit(refused).error().code, errc::unavailable);

  // Alone from here on: the sequence goes on where it was committed, with the same tokens.
  auto group = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
  ASSERT_TRUE(group);
  ep::placement incomplete = initial_placement(*tiny(), 1);
  incomplete.copies[3][2].clear();
  auto spare = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
  const auto bad = first.get().regroup(std::move(*spare), incomplete);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("layer 3 expert 2"), std::string::npos);
  ASSERT_TRUE(first.get().regroup(std::move(*group), initial_placement(*tiny(), 1)));
  while (got.size() < 10) {
    step_plan more;
    more.verify_budget = 5;
    more.sequences.push_back({.slot = slot_id{0}});
    const auto results = first.run(more);
    for (auto& q : results[0].sequences) got.insert(got.end(), q.tokens.begin(), q.tokens.end());
  }
  EXPECT_EQ(got, want.tokens);
  second.reset();
}

// A peer that dies at any moment of a step: what was committed stays, the rest is run again, no token changes.
TEST(failure, killed_in_the_middle_of_steps) {
  const prompt p = prompt_of(60, 40);
  completion want;
  {
    engine_driver alone(config());
    want = alone.complete({p})[0];
  }
  for (int round = 0; round < tests::cases(12, 4); ++round) {
    cpu_engine_config c = config(), c2 = config();
    auto made =
        ep::make_thread_group(engine_group_shape(*c.weights, c.limits, 2), {.deadline = std::chrono::seconds(20)});
    ASSERT_TRUE(made);
    c.group = std::move(made->ranks[0]);
    c2.group = std::move(made->ranks[1]);
    c.placement = c2.placement = initial_placement(*c.weights, 2);
    engine_driver first(std::move(c));
    auto second = std::make_unique<engine_driver>(std::move(c2));
    std::vector<token_id> got;
    uint32_t committed = 0;
    bool lost = false, open = false;
    for (int step = 0; got.size() < 40 && step < 200; ++step) {
      step_plan plan;
      plan.id = first.next_plan();
      plan.verify_budget = 5;
      if (!open) {
        plan.open.push_back({slot_id{0}, p.tokens, 60, p.sampling, p.stop, true});
        open = true;
      }
      sequence_step s{.slot = slot_id{0}};
      if (committed < 60)
        s.position = committed, s.rows = 60 - committed, s.sample = true, s.decoder_from = s.decoder_floor = 44;
      if (first.held(slot_id{0}).empty()) s.pages = first.pages(slot_id{0}, 7);
      plan.sequences.push_back(s);
      const auto submitted = first.get().submit(plan);
      if (submitted && step == round / 3 && !lost) made->control->kill(1);
      bool failed = !submitted;
      if (!submitted) {
        // The loss was seen between two plans, and reported without one.
        ASSERT_EQ(submitted.error().code, errc::unavailable) << submitted.error().message;
        ASSERT_TRUE(plan.open.empty());
        const step_result r = first.next();
        EXPECT_EQ(r.plan, 0u);
        EXPECT_EQ(r.failure, errc::peer_lost);
      }
      while (submitted) {
        const step_result r = first.next();
        failed = failed || r.failure != errc{};
        if (r.failure != errc{} && !r.applied && !plan.open.empty()) {
          open = false;  // dropped before it began: neither slot nor pages were taken
          first.give_back(slot_id{0});
        }
        for (auto& q : r.sequences) {
          committed = q.committed;
          got.insert(got.end(), q.tokens.begin(), q.tokens.end());
        }
        if (r.plan_done) break;
      }
      if (!failed) continue;
      ASSERT_FALSE(lost) << "a second failure";
      lost = true;
      auto alone = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
      ASSERT_TRUE(first.get().regroup(std::move(*alone), initial_placement(*tiny(), 1)));
    }
    EXPECT_TRUE(lost);
    EXPECT_EQ(got, want.tokens) << "killed in step " << round / 3;
    second.reset();
  }
}

// A rank is given its next group while a step of the old one waits for a lost peer; that step fails only then.
TEST(failure, a_step_that_fails_after_the_regroup_leaves_the_new_group_alone) {
  cpu_engine_config c = config();
  auto made =
      ep::make_thread_group(engine_group_shape(*c.weights, c.limits, 2), {.deadline = std::chrono::seconds(20)});
  ASSERT_TRUE(made);
  c.group = std::move(made->ranks[0]);  // the other rank agrees to the step and is not seen again
  c.placement = initial_placement(*c.weights, 2);
  engine_driver d(std::move(c));
  step_plan plan = good_plan(d.next_plan());
  ASSERT_TRUE(d.get().submit(plan));
  for (bool agreed = false; !agreed;) {
    const auto header = made->ranks[1]->begin_step({});
    ASSERT_TRUE(header) << header.error().message;
    agreed = header->has_work;
  }
  uint64_t dropped[2];
  for (uint32_t i = 0; i < 2; ++i) {
    step_plan p;
    p.id = dropped[i] = d.next_plan();
    p.open.push_back({slot_id{1 + i}, random_tokens(2, 20, 512), 20, {.temperature = 0}, {.max_tokens = 4}, true});
    ASSERT_TRUE(d.get().submit(p));
  }
  auto alone = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
  ASSERT_TRUE(d.get().regroup(std::move(*alone), initial_placement(*tiny(), 1)));
  made->control->kill(1);
  for (uint64_t id : {plan.id, dropped[0], dropped[1]}) {
    const step_result r = d.next();
    EXPECT_EQ(r.plan, id);
    EXPECT_EQ(r.failure, errc::peer_lost) << r.failure_text;
    EXPECT_EQ(r.applied, id == plan.id);
    EXPECT_EQ(r.regroups, 0u) << "the group that failed is the old one";
  }
  step_plan again;
  again.id = d.next_plan();
  again.sequences.push_back({.slot = slot_id{0}, .rows = 20, .sample = true});
  ASSERT_TRUE(d.get().submit(again));
  const step_result r = d.next();
  EXPECT_EQ(r.failure, errc{}) << r.failure_text;
  EXPECT_EQ(r.regroups, 1u);
  EXPECT_EQ(r.sequences.at(0).tokens.size(), 1u);
}

TEST(failure, plans_wait_for_the_first_group) {
  cpu_engine_config c = config();
  c.wait_for_group = true;
  engine_driver d(std::move(c));
  ASSERT_TRUE(d.get().submit(good_plan(d.next_plan())));
  auto group = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
  ASSERT_TRUE(d.get().regroup(std::move(*group), initial_placement(*tiny(), 1)));
  EXPECT_EQ(d.next().sequences.at(0).tokens.size(), 1u);
}

TEST(failure, a_group_ended_for_the_next_epoch_is_no_loss) {
  cpu_engine_config c = config();
  auto group = ep::make_local_group(engine_group_shape(*c.weights, c.limits, 1));
  ep::group* raw = group->get();
  c.group = std::move(*group);
  c.placement = initial_placement(*c.weights, 1);
  engine_driver d(std::move(c));
  d.run(good_plan(0));
  raw->end();  // as the endpoint of a process does when it connects to the next epoch
  auto next = ep::make_local_group(engine_group_shape(*tiny(), config().limits, 1));
  ASSERT_TRUE(d.get().regroup(std::move(*next), initial_placement(*tiny(), 1)));
  step_plan more;
  more.sequences.push_back({.slot = slot_id{0}});
  const auto r = d.run(more);
  EXPECT_EQ(r.at(0).failure, errc{}) << r.at(0).failure_text;
  EXPECT_EQ(r.at(0).sequences.at(0).tokens.size(), 1u);
}

TEST(failure, stop_is_final_and_idempotent) {
  engine_driver d(config());
  d.run(good_plan(0));
  d.get().stop();
  d.get().stop();
  EXPECT_EQ(d.get().submit(good_plan(9)).error().code, errc::unavailable);
}

TEST(engine_config, limits_that_do_not_fit_are_named) {
  auto expect = [](cpu_engine_config c, errc code, const char* part) {
    auto r = make_cpu_engine(std::move(c), [](step_result) {});
    ASSERT_FALSE(r) << part;
    EXPECT_EQ(r.error().code, code);
    EXPECT_NE(r.error().message.find(part), std::string::npos) << r.error().message;
  };
  cpu_engine_config c = config();
  c.limits.slots = 0;
  expect(std::move(c), errc::invalid_argument, "slots 0");
  c = config();
  c.limits.threads = 0;
  expect(std::move(c), errc::invalid_argument, "threads");
  c = config();
  c.isa = "sse9";
  expect(std::move(c), errc::invalid_argument, "sse9");
  c = config();
  std::vector<std::byte> few(1000);
  c.pages = few;
  expect(std::move(c), errc::invalid_argument, "page memory");
  c = config();
  c.weights = nullptr;
  c.model_directory = "/nonexistent";
  expect(std::move(c), errc::io, "/nonexistent/config.json");
}

}  // namespace
}  // namespace troupe::kernels
