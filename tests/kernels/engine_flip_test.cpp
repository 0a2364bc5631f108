// Expert placements that change while a group serves: the output does not change by a bit, stale orders are refused,
// counters are exact, and a rank that is lost in the middle of a move takes the move with it. Ranks are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/cpu/operators.hpp"
#include "kernels/engine/expert_moves.hpp"
#include "kernels/ep/expert_table.hpp"
#include "kernels/ep/local_group.hpp"
#include "kernels/ep/thread_group.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/identity_workload.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

bool long_run() { return std::getenv("TROUPE_LONG") != nullptr; }

// Waits for what the engine thread brings about.
template <class F>
bool eventually(F f) {
  const auto until = steady_clock().now() + std::chrono::seconds(60);
  while (!f()) {
    if (steady_clock().now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

placement_version version_of(const engine& e) {
  const auto s = e.placement();
  return s.active ? s.active->version : placement_version{};
}

// The ranks of a group, each with an engine and a driver.
struct ranks {
  ranks(std::shared_ptr<const model> m, uint32_t count, engine_limits limits, uint32_t redundant,
        ep::split_options split, uint32_t expert_slots = 0, std::chrono::seconds deadline = std::chrono::seconds(30)) {
    auto made = ep::make_thread_group(engine_group_shape(*m, limits, count), {.deadline = deadline});
    TROUPE_CHECK(made.has_value(), "{}", made.error().message);
    control = made->control;
    for (uint32_t r = 0; r < count; ++r) {
      cpu_engine_config c;
      c.weights = m;
      c.limits = limits;
      c.group = std::move(made->ranks[r]);
      c.placement = initial_placement(*m, count, redundant, placement_version{1});
      c.split = split;
      c.expert_slots = expert_slots;
      engines.push_back(std::make_unique<engine_driver>(std::move(c)));
    }
  }
  ~ranks() {
    // All leave together: the one that goes first would else wait for the others' next step.
    std::vector<std::thread> stops;
    for (auto& e : engines) stops.emplace_back([&e] { e->get().stop(); });
    for (auto& t : stops) t.join();
  }
  engine& at(size_t r) { return engines[r]->get(); }

  std::shared_ptr<ep::thread_group_control> control;
  std::vector<std::unique_ptr<engine_driver>> engines;
};

// A legal placement drawn from the seed: as many slots on each rank as `like` has.
placement_move drawn_move(const model& m, const placement_status& now, placement_version to, rng& random) {
  placement_move move;
  move.regroups = now.regroups;
  move.from = now.active->version;
  move.to.version = to;
  move.loads_per_step = 1 + static_cast<uint32_t>(random.below(16));
  const uint32_t experts = m.config.n_routed_experts;
  for (uint32_t l = 0; l < m.config.num_hidden_layers; ++l) {
    std::vector<uint32_t> order(experts);
    for (uint32_t e = 0; e < experts; ++e) order[e] = e;
    for (uint32_t e = 0; e + 1 < experts; ++e) std::swap(order[e], order[e + random.below(experts - e)]);
    const auto per_rank = static_cast<uint32_t>(ep::slots_of(now.active->copies[l], now.ranks).size() / now.ranks);
    ep::slot_list slots = ep::first_slots(now.ranks, experts, per_rank);
    for (auto& s : slots) s = static_cast<int32_t>(order[static_cast<size_t>(s)]);
    move.to.copies.push_back(*ep::copies_of(slots, now.ranks, experts));
  }
  return move;
}

// Forces a new placement every `every` steps of the group, the way a rebalancer does, until told to stop.
class flipper {
 public:
  flipper(ranks& g, const model& m, uint64_t every, uint64_t seed)
      : group_(g), model_(m), every_(every), random_(seed), thread_([this] { run(); }) {}
  uint64_t stop() {
    stop_ = true;
    thread_.join();
    return flips_;
  }

 private:
  void give_up(const std::string& why) { ADD_FAILURE() << why; }
  void run() {
    uint64_t steps = 0;  // of the windows taken so far
    for (placement_version v{2}; !stop_; ++v.value) {
      const uint64_t due = every_ * (v.value - 1);
      while (!stop_) {
        const expert_window w = group_.at(0).take_expert_window(every_);
        if (!w.loads.empty()) steps += w.steps;
        if (steps + (w.loads.empty() ? w.steps : 0) >= due) break;
        std::this_thread::yield();
      }
      if (stop_) return;
      const placement_move move = drawn_move(model_, group_.at(0).placement(), v, random_);
      for (auto& e : group_.engines)
        if (auto ok = e->get().stage(move); !ok) return give_up(ok.error().message);
      for (auto& e : group_.engines)
        if (!eventually([&] { return e->get().placement().phase == move_phase::staged; })) return give_up("not staged");
      // One rank or all of them: the step header makes it the same.
      const size_t told = random_.below(2) ? group_.engines.size() : 1;
      for (size_t r = 0; r < told; ++r)
        if (auto ok = group_.at(r).flip(v); !ok) return give_up(ok.error().message);
      for (auto& e : group_.engines)
        if (!eventually([&] { return version_of(e->get()) == v; })) return give_up("not flipped");
      ++flips_;
    }
  }

  ranks& group_;
  const model& model_;
  const uint64_t every_;
  rng random_;
  std::atomic<bool> stop_{false};
  uint64_t flips_ = 0;
  std::thread thread_;
};

// Output of all prompts, each rank running its share of them.
std::vector<std::string> outputs(ranks& g, const std::vector<prompt>& prompts, uint32_t verify_budget) {
  std::vector<std::string> out(prompts.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < g.engines.size(); ++r)
    threads.emplace_back([&, r] {
      std::vector<prompt> mine;
      for (size_t i = r; i < prompts.size(); i += g.engines.size()) mine.push_back(prompts[i]);
      const auto done = g.engines[r]->complete(mine, verify_budget);
      for (size_t i = 0; i < done.size(); ++i) out[r + i * g.engines.size()] = text_of(done[i]);
    });
  for (auto& t : threads) t.join();
  return out;
}

struct flip_case {
  uint32_t count, redundant, window, budget;
};

void expect_same_bytes(const std::shared_ptr<const model>& m, const std::vector<prompt>& prompts, engine_limits limits,
                       const std::vector<flip_case>& cases) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::vector<std::string> want;
  {
    ranks alone(m, 1, limits, 0, {});
    want = outputs(alone, prompts, 0);
  }
  for (const flip_case& c : cases) {
    ranks g(m, c.count, limits, c.redundant, ep::split_options{c.window});
    flipper f(g, *m, 10, seed);
    const auto got = outputs(g, prompts, c.budget);
    const uint64_t flips = f.stop();
    EXPECT_GT(flips, 0u) << c.count << " ranks";
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(got[i], want[i]) << "prompt " << i << ", " << c.count << " ranks, " << c.redundant
                                 << " redundant slots, split from " << c.window << " steps, budget " << c.budget
                                 << ", seed " << seed;
    printf("%u ranks, %u redundant, window %u, budget %u: %lu flips\n", c.count, c.redundant, c.window, c.budget,
           static_cast<unsigned long>(flips));
  }
}

TEST(flips, bytes_are_those_of_one_engine_alone) {
  std::vector<flip_case> cases{{1, 0, 1, 64}, {2, 2, 1, 0}, {4, 1, 4, 64}};
  if (long_run()) {
    cases.clear();
    for (uint32_t count : {1u, 2u, 4u})
      for (uint32_t redundant : {0u, 1u, 4u})
        for (uint32_t window : {0u, 1u, 16u})
          for (uint32_t budget : {0u, 64u}) cases.push_back({count, redundant, window, budget});
  }
  auto limits = identity_limits(6, 48);
  limits.micro_batch_rows = 12;
  expect_same_bytes(identity_model(), mixed_prompts(long_run() ? 36 : 24), limits, cases);
}

// The trained model, whose routers are as skewed as a real one's.
TEST(flips, bytes_of_mini) {
  auto m = load_model(TROUPE_TEST_DATA "/../../configs/models/mini");
  ASSERT_TRUE(m) << m.error().message;
  std::vector<prompt> prompts;
  for (size_t i = 0; i < (long_run() ? 48u : 12u); ++i) {
    prompt p;
    p.tokens = random_tokens(50 + i, 5 + static_cast<uint32_t>(i * 29 % 200), (*m)->config.vocab_size);
    p.sampling = {.temperature = i % 2 ? 0.8f : 0.0f, .seed = i + 1, .logprobs = 20};
    p.stop = {.max_tokens = 24, .ignore_eos = true};
    prompts.push_back(std::move(p));
  }
  std::vector<flip_case> cases{{2, 4, 16, 64}};
  if (long_run()) {
    cases.clear();
    for (uint32_t count : {1u, 2u, 4u})
      for (uint32_t window : {0u, 16u})
        for (uint32_t budget : {0u, 64u}) cases.push_back({count, 4, window, budget});
  }
  expect_same_bytes(*m, prompts, {.slots = 8, .max_chunk = 128, .max_context = 256, .pages = 8 * 16, .max_draft = 5},
                    cases);
}

TEST(flips, an_idle_group_moves_too) {
  const auto m = identity_model();
  ranks g(m, 2, identity_limits(2, 32), 1, {});
  rng random(7);
  const placement_move move = drawn_move(*m, g.at(0).placement(), placement_version{5}, random);
  for (size_t r = 0; r < 2; ++r) ASSERT_TRUE(g.at(r).stage(move));
  for (size_t r = 0; r < 2; ++r)
    ASSERT_TRUE(eventually([&] { return g.at(r).placement().phase == move_phase::staged; }));
  ASSERT_TRUE(g.at(1).flip(placement_version{5}));
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(eventually([&] { return version_of(g.at(r)) == placement_version{5}; }));
    EXPECT_EQ(g.at(r).placement().flips, 1u);
    EXPECT_EQ(g.at(r).placement().active->copies[3], move.to.copies[3]);
    EXPECT_EQ(g.at(r).take_expert_window(0).steps, 0u);
  }
}

// The engine calls load() once per step: no step waits for more than loads_per_step experts.
TEST(flips, a_step_loads_no_more_than_it_may) {
  const auto m = identity_model();
  const auto ops = cpu::make_operators(1);
  expert_moves moves(*m, *ops, {}, 0, {});
  moves.enter(initial_placement(*m, 2, 1, placement_version{1}), 2, 0, 0);
  rng random(13);
  placement_move move = drawn_move(*m, moves.status(), placement_version{2}, random);
  move.loads_per_step = 3;
  ASSERT_TRUE(moves.stage(move));
  const uint32_t all = moves.status().to_load;
  ASSERT_GT(all, 6u);
  for (uint32_t done = 0; done < all;) {
    EXPECT_EQ(moves.status().phase, move_phase::loading);
    EXPECT_EQ(moves.status().loaded, done);
    ep::step_header h;
    moves.announce(h, 1);
    EXPECT_TRUE(h.moving) << "an idle group does not park before it is done";
    moves.load();
    done = std::min(all, done + 3);
  }
  EXPECT_EQ(moves.status().phase, move_phase::staged);
  EXPECT_EQ(moves.status().loaded, all);
  EXPECT_EQ(moves.status().active->version, placement_version{1});
}

TEST(flips, stale_and_impossible_orders_are_refused) {
  const auto m = identity_model();
  const uint32_t experts = m->config.n_routed_experts, layers = m->config.num_hidden_layers;
  // Room for the placement and one expert more.
  const uint32_t slots = layers * (experts / 2 + 1) + 1;
  ranks g(m, 2, identity_limits(2, 32), 1, {}, slots);
  engine& e = g.at(0);
  rng random(3);
  const placement_status now = e.placement();
  EXPECT_EQ(now.copies + 1, slots);
  EXPECT_EQ(now.slots, slots);
  placement_move good;
  good.from = placement_version{1};
  good.to.version = placement_version{2};
  good.to.copies.assign(now.active->copies.begin(), now.active->copies.begin() + layers);
  good.to.copies[0][experts - 1] = {0};
  auto code = [&](placement_move move) {
    const auto r = e.stage(std::move(move));
    return r ? errc{} : r.error().code;
  };
  placement_move bad = good;
  bad.regroups = 1;
  EXPECT_EQ(code(bad), errc::stale);
  bad = good;
  bad.from = placement_version{0};
  EXPECT_EQ(code(bad), errc::stale);
  bad = good;
  bad.to.version = placement_version{1};
  EXPECT_EQ(code(bad), errc::stale);
  bad = good;
  bad.to.copies.pop_back();
  EXPECT_EQ(code(bad), errc::invalid_argument);
  bad = good;
  bad.to.copies[1][0].clear();
  EXPECT_EQ(code(bad), errc::invalid_argument);
  bad = good;
  bad.to.copies[1][0] = {2};
  EXPECT_EQ(code(bad), errc::invalid_argument);
  bad = good;
  for (auto& layer : bad.to.copies) layer[experts - 1] = {0, 1};
  EXPECT_EQ(code(bad), errc::exhausted);
  EXPECT_EQ(e.flip(placement_version{2}).error().code, errc::stale) << "not staged";
  EXPECT_EQ(e.placement().phase, move_phase::none);

  ASSERT_TRUE(e.stage(good));
  ASSERT_TRUE(e.drop(placement_version{2}));
  EXPECT_EQ(e.placement().phase, move_phase::none);
  EXPECT_EQ(e.flip(placement_version{2}).error().code, errc::stale) << "dropped";
  EXPECT_TRUE(e.flip(placement_version{1})) << "in force already";
  ASSERT_TRUE(e.drop(placement_version{9})) << "no such move";
}

// A rank that is told to flip what another has not staged must not run on with it.
TEST(flips, ranks_that_do_not_agree_stop) {
  const auto m = identity_model();
  ranks g(m, 2, identity_limits(2, 32), 1, {}, 0, std::chrono::seconds(2));
  rng random(11);
  ASSERT_TRUE(g.at(0).stage(drawn_move(*m, g.at(0).placement(), placement_version{2}, random)));
  ASSERT_TRUE(eventually([&] { return g.at(0).placement().phase == move_phase::staged; }));
  ASSERT_TRUE(g.at(0).flip(placement_version{2}));
  const step_result lost = g.engines[1]->next();
  EXPECT_EQ(lost.failure, errc::stale) << lost.failure_text;
  EXPECT_NE(lost.failure_text.find("not staged here"), std::string::npos) << lost.failure_text;
  EXPECT_EQ(version_of(g.at(1)), placement_version{}) << "without a group";
}

TEST(flips, a_rank_lost_in_the_middle_of_a_move_ends_the_move) {
  const auto m = identity_model();
  for (const bool staged : {false, true}) {
    ranks g(m, 3, identity_limits(2, 32), 1, {});
    rng random(5);
    placement_move move = drawn_move(*m, g.at(0).placement(), placement_version{2}, random);
    for (size_t r = 0; r < (staged ? 3u : 2u); ++r) ASSERT_TRUE(g.at(r).stage(move));
    for (size_t r = 0; staged && r < 3; ++r)
      ASSERT_TRUE(eventually([&] { return g.at(r).placement().phase == move_phase::staged; }));
    g.control->kill(2);
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(g.engines[r]->next().failure, errc::peer_lost);
      EXPECT_EQ(g.at(r).placement().phase, move_phase::none);
      EXPECT_EQ(g.at(r).stage(move).error().code, errc::unavailable);
      EXPECT_EQ(g.at(r).flip(placement_version{2}).error().code, errc::stale);
    }
    // The survivors go on in a group of two, where the old move means nothing.
    auto next = ep::make_thread_group(engine_group_shape(*m, identity_limits(2, 32), 2), {});
    ASSERT_TRUE(next);
    for (size_t r = 0; r < 2; ++r)
      ASSERT_TRUE(g.at(r).regroup(std::move(next->ranks[r]), initial_placement(*m, 2, 1, placement_version{100})));
    std::vector<prompt> prompts = mixed_prompts(4);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] { (void)g.engines[r]->complete({prompts[r], prompts[r + 2]}, 64); });
    for (auto& t : threads) t.join();
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(g.at(r).placement().regroups, 1u);
      EXPECT_EQ(version_of(g.at(r)), placement_version{100});
      EXPECT_EQ(g.at(r).stage(move).error().code, errc::stale);
    }
    g.engines[2]->next();
  }
}

// All rows of a workload, counted over ranks and flips: exactly what the routers chose, once each.
TEST(counters, are_exact_over_flips) {
  const auto m = identity_model();
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::vector<std::vector<uint64_t>> want, got;
  auto add = [](std::vector<std::vector<uint64_t>>& to, const expert_window& w) {
    to.resize(std::max(to.size(), w.loads.size()));
    for (size_t l = 0; l < w.loads.size(); ++l) {
      to[l].resize(w.loads[l].size());
      for (size_t e = 0; e < w.loads[l].size(); ++e) to[l][e] += w.loads[l][e];
    }
  };
  const auto prompts = mixed_prompts(12);
  {
    ranks alone(m, 1, identity_limits(6, 48), 0, {});
    outputs(alone, prompts, 0);
    add(want, alone.at(0).take_expert_window(0));
  }
  ranks g(m, 3, identity_limits(6, 48), 1, {1});
  // Moves only, no takes in between.
  rng random(seed);
  std::thread moves([&] {
    for (placement_version v{2}; v.value < 6; ++v.value) {
      const placement_move move = drawn_move(*m, g.at(0).placement(), v, random);
      for (auto& e : g.engines) ASSERT_TRUE(e->get().stage(move));
      for (auto& e : g.engines)
        ASSERT_TRUE(eventually([&] { return e->get().placement().phase == move_phase::staged; }));
      ASSERT_TRUE(g.at(0).flip(v));
      for (auto& e : g.engines) ASSERT_TRUE(eventually([&] { return version_of(e->get()) == v; }));
    }
  });
  outputs(g, prompts, 0);
  moves.join();
  // The last step may still run on a rank whose own sequences have ended.
  EXPECT_TRUE(eventually([&] {
    std::vector<uint64_t> all;
    for (auto& e : g.engines) all.push_back(e->get().take_expert_window(UINT64_MAX).steps);
    return all[0] == all[1] && all[1] == all[2];
  }));
  uint64_t received = 0, sent = 0, steps = 0;
  for (size_t r = 0; r < 3; ++r) {
    const expert_window w = g.at(r).take_expert_window(0);
    add(got, w);
    if (r == 0) steps = w.steps;
    EXPECT_EQ(w.steps, steps) << "the ranks step together";
    EXPECT_EQ(w.placement, placement_version{5});
    EXPECT_LE(w.received_steps, w.steps);
    for (uint64_t n : w.received) received += n;
    for (const auto& layer : w.loads)
      for (uint64_t n : layer) sent += n;
  }
  for (size_t l = 0; l < m->config.num_hidden_layers; ++l)
    EXPECT_EQ(got[l], want[l]) << "layer " << l << ", seed " << seed;
  EXPECT_LE(received, sent) << "received counts start again with each placement";
}

// A step that is abandoned after its first exchanges is run again; its rows count once.
TEST(counters, an_abandoned_step_counts_once) {
  const auto m = identity_model();
  const auto limits = identity_limits(2, 64);
  const prompt p = mixed_prompts(3)[2];
  std::vector<std::vector<uint64_t>> want;
  {
    ranks alone(m, 1, limits, 0, {});
    outputs(alone, {p}, 0);
    want = alone.at(0).take_expert_window(0).loads;
  }
  // The peer is a bare group that takes part in three exchanges and is gone then.
  auto made = ep::make_thread_group(engine_group_shape(*m, limits, 2), {.deadline = std::chrono::seconds(30)});
  ASSERT_TRUE(made);
  cpu_engine_config c;
  c.weights = m;
  c.limits = limits;
  c.group = std::move(made->ranks[0]);
  c.placement = initial_placement(*m, 2);
  for (auto& layer : c.placement.copies)
    for (auto& ranks : layer) ranks = {0};
  engine_driver d(std::move(c));
  step_plan plan;
  plan.id = d.next_plan();
  plan.open.push_back({slot_id{0}, p.tokens, static_cast<uint32_t>(p.tokens.size()), p.sampling, p.stop, false});
  sequence_step step;
  step.slot = slot_id{0};
  step.rows = std::min<uint32_t>(static_cast<uint32_t>(p.tokens.size()), 64);
  step.sample = step.rows == p.tokens.size();
  step.pages = d.pages(slot_id{0}, (step.rows + m->config.sliding_window - 1) / m->config.sliding_window);
  plan.sequences.push_back(step);
  ASSERT_TRUE(d.get().submit(plan));
  std::thread peer([&] {
    ep::group& g = *made->ranks[1];
    for (bool work = false; !work;) {
      const auto agreed = g.begin_step({});
      ASSERT_TRUE(agreed);
      work = agreed->has_work;
    }
    for (uint32_t l = 0; l < 3; ++l) {
      const auto got = g.dispatch(l, {}, {}, 1);
      ASSERT_TRUE(got) << "layer " << l << ": " << got.error().message;
      ASSERT_TRUE(g.combine(l, {}, {}));
    }
    made->control->kill(1);
  });
  EXPECT_EQ(d.next().failure, errc::peer_lost);
  peer.join();
  auto alone = ep::make_local_group(engine_group_shape(*m, limits, 1));
  ASSERT_TRUE(alone);
  ASSERT_TRUE(d.get().regroup(std::move(*alone), initial_placement(*m, 1)));
  step_plan close;
  close.close = {slot_id{0}};
  for (const auto& r : d.run(close))
    for (slot_id s : r.closed) d.give_back(s);
  const auto done = d.complete({p}, 0);
  EXPECT_FALSE(done[0].tokens.empty());
  const auto got = d.get().take_expert_window(0);
  for (size_t l = 0; l < m->config.num_hidden_layers; ++l) EXPECT_EQ(got.loads[l], want[l]) << "layer " << l;
}

}  // namespace
}  // namespace troupe::kernels
