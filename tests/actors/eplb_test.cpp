// The rebalancer of a group in virtual time: windows, moves in two phases, and everything that can end one.
#include <cstdio>

#include "tests/actors/sim_cluster.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options balanced(uint64_t seed, uint32_t decode = 2) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  cluster_options o;
  o.seed = seed;
  o.decode = decode;
  o.balance.interval = 20;
  o.balance.poll = milliseconds(50);
  o.balance.move_timeout = seconds(2);
  return o;
}

eplb_rebalancer_actor rebalancer(sim_cluster& c, uint32_t rank) {
  const auto n = std::to_string(rank);
  return caf::actor_cast<eplb_rebalancer_actor>(c.node("decode-" + n).named.at("decode-0/" + n + "/eplb_rebalancer"));
}

expert_shard_actor shard(sim_cluster& c, uint32_t rank) {
  const auto n = std::to_string(rank);
  return caf::actor_cast<expert_shard_actor>(c.node("decode-" + n).named.at("decode-0/" + n + "/expert_shard"));
}

eplb_report report(sim_cluster& c, uint32_t rank = 0) {
  return c.ask_now<eplb_report>(rebalancer(c, rank), eplb_query{});
}

void send_some(sim_cluster& c, int n) {
  for (int i = 0; i < n; ++i) c.submit(c.random_request());
}

// Keeps requests coming until `done`, for at most `limit`.
template <class F>
bool serve_until(sim_cluster& c, F done, nanoseconds limit = seconds(60)) {
  const auto end = c.agenda().now() + limit;
  while (!done()) {
    if (c.agenda().now() > end) return false;
    send_some(c, 4);
    for (int i = 0; i < 10 && !done(); ++i) c.run_for(milliseconds(10));  // what it waits for may not last
  }
  return true;
}

void finish_all(sim_cluster& c) {
  EXPECT_TRUE(c.run_until(
      [&] { return std::all_of(c.clients.begin(), c.clients.end(), [](const auto& x) { return x->ends > 0; }); },
      seconds(60)));
  c.expect_clients_right(true);
  c.run_for(seconds(5));
  c.expect_clean();
}

TEST(eplb, moves_when_a_window_is_full) {
  sim_cluster c{balanced(71)};
  c.wait_ready();
  const auto before = report(c);
  EXPECT_TRUE(before.leads);
  EXPECT_FALSE(report(c, 1).leads) << "one of a group";
  EXPECT_TRUE(serve_until(c, [&] { return report(c).moves > 0; }));
  finish_all(c);
  const auto r = report(c);
  EXPECT_GE(r.looks, 1u);
  EXPECT_EQ(r.abandoned, 0u) << r.text;
  EXPECT_GT(r.placement, kernels::first_placement_version(r.view));
  std::vector<placement_report> in_force;
  for (uint32_t i = 0; i < 2; ++i) {
    in_force.push_back(c.ask_now<placement_report>(shard(c, i), placement_query{r.view}));
    EXPECT_TRUE(in_force.back().outcome.ok()) << in_force.back().outcome.text;
    EXPECT_EQ(in_force.back().placement, r.placement);
    EXPECT_EQ(in_force.back().flips, r.moves);
  }
  EXPECT_EQ(in_force[0].slots, in_force[1].slots);
  // Expert 2 has half of all rows: a copy on each rank makes it even.
  for (const auto& layer : in_force[0].slots) EXPECT_EQ(std::count(layer.begin(), layer.end(), 2), 2);
  EXPECT_LT(r.lb_after, 1.1);
}

// Plans are made elsewhere: until one comes back nothing moves, and one that a new group view has made old is ignored.
TEST(eplb, a_plan_that_takes_long_holds_nothing_up_and_an_old_one_is_ignored) {
  struct held_worker final : kv::worker {
    bool submit(kv::task t) override {
      tasks.push_back(std::move(t));
      return true;
    }
    std::vector<kv::task> tasks;
  };
  auto work = std::make_shared<held_worker>();
  auto o = balanced(78, 3);
  o.balance.planner = work;
  sim_cluster c{o};
  c.wait_ready();
  EXPECT_TRUE(serve_until(c, [&] { return !work->tasks.empty(); }));
  EXPECT_EQ(report(c).phase, "planning");
  const auto view = report(c).view;
  c.crash("decode-2", sim::crash_kind::killed);
  EXPECT_TRUE(serve_until(c, [&] { return report(c).view > view; }));
  EXPECT_TRUE(serve_until(c, [&] { return work->tasks.size() > 1; })) << "the new group looks again";
  work->tasks[0]();
  c.run_for(seconds(1));
  auto r = report(c);
  EXPECT_EQ(r.phase, "planning") << "the old plan changes nothing";
  EXPECT_EQ(r.moves, 0u);
  work->tasks[1]();
  EXPECT_TRUE(serve_until(c, [&] { return report(c).moves > 0 || work->tasks.size() > 2; }));
  for (size_t i = 2; i < work->tasks.size(); ++i) work->tasks[i]();
  finish_all(c);
}

TEST(eplb, a_rank_that_does_not_finish_is_named_and_the_move_given_up) {
  bool hangs = true;
  auto o = balanced(72);
  o.engine.stage_hangs = [&] { return hangs; };
  sim_cluster c{o};
  c.wait_ready();
  EXPECT_TRUE(serve_until(c, [&] { return report(c).abandoned > 0; }));
  auto r = report(c);
  EXPECT_NE(r.text.find("decode-0/"), std::string::npos) << r.text;
  EXPECT_NE(r.text.find("has not loaded its experts within 2 s"), std::string::npos) << r.text;
  EXPECT_EQ(r.moves, 0u);
  const auto s = c.ask_now<placement_report>(shard(c, 1), placement_query{r.view});
  EXPECT_EQ(s.placement, kernels::first_placement_version(r.view)) << "nobody has moved";
  hangs = false;
  EXPECT_TRUE(serve_until(c, [&] { return report(c).moves > 0; }));
  finish_all(c);
}

// After the order to flip there is no way back: the move is reported as overdue, nothing else is staged meanwhile, and
// the next group view ends it.
TEST(eplb, a_rank_that_does_not_flip_is_named_and_the_next_view_ends_the_move) {
  bool hangs = true;
  auto o = balanced(76, 3);
  o.engine.flip_hangs = [&] { return hangs; };
  sim_cluster c{o};
  c.wait_ready();
  EXPECT_TRUE(serve_until(c, [&] { return report(c).text.find("has not taken") != std::string::npos; }));
  auto r = report(c);
  EXPECT_NE(r.text.find("decode-0/"), std::string::npos) << r.text;
  EXPECT_EQ(r.moves, 0u);
  EXPECT_EQ(r.placement, kernels::first_placement_version(r.view));
  EXPECT_TRUE(serve_until(c, [&] { return report(c).abandoned > 0; })) << "the next one is refused";
  EXPECT_NE(report(c).text.find("the last one is flipping"), std::string::npos) << report(c).text;
  hangs = false;
  c.crash("decode-2", sim::crash_kind::killed);
  EXPECT_TRUE(serve_until(c, [&] { return report(c).moves > 0; })) << report(c).text;
  EXPECT_GT(report(c).view, r.view);
  c.restart("decode-2");
  finish_all(c);
}

TEST(eplb, a_rank_lost_in_the_middle_of_a_move_ends_it) {
  for (const std::string lost : {"decode-1", "decode-0"}) {
    SCOPED_TRACE(lost);
    auto o = balanced(lost == "decode-0" ? 74 : 73, 3);
    o.engine.stage = seconds(1);
    sim_cluster c{o};
    c.wait_ready();
    EXPECT_TRUE(serve_until(c, [&] { return report(c).phase == "staging"; }));
    const auto before = report(c);
    c.crash(lost, sim::crash_kind::killed);
    const uint32_t leader = lost == "decode-0" ? 1 : 0;
    EXPECT_TRUE(c.run_until([&] { return false; }, seconds(3)) || report(c, leader).leads);
    EXPECT_GT(report(c, leader).view, before.view);
    if (leader == 0) {
      EXPECT_EQ(report(c).abandoned, 1u);
    }
    EXPECT_TRUE(serve_until(c, [&] { return report(c, leader).moves > 0; })) << report(c, leader).text;
    EXPECT_GT(report(c, leader).placement, before.placement) << "versions grow over group views";
    const auto view = report(c, leader).view;
    c.restart(lost);
    EXPECT_TRUE(c.run_until([&] { return false; }, seconds(10)) || report(c, 0).view > view);
    EXPECT_TRUE(report(c, 0).leads);
    const auto moves = report(c, 0).moves;
    EXPECT_TRUE(serve_until(c, [&] { return report(c, 0).moves > moves; })) << report(c, 0).text;
    finish_all(c);
  }
}

TEST(eplb, stale_orders_are_refused) {
  sim_cluster c{balanced(75)};
  c.wait_ready();
  const auto r = report(c);
  const auto to = shard(c, 0);
  const auto now = c.ask_now<placement_report>(to, placement_query{r.view});
  const group_epoch old{r.view.value - 1}, next{r.view.value + 1};
  const placement_version newer{now.placement.value + 1};
  for (const auto group : {old, next}) {
    EXPECT_EQ(c.ask_now<load_report>(to, load_query{group, 0}).outcome.code, errc::stale);
    EXPECT_EQ(c.ask_now<placement_report>(to, placement_query{group}).outcome.code, errc::stale);
    EXPECT_EQ(c.ask_now<placement_reply>(to, stage_placement{group, now.placement, newer, now.slots, 4}).outcome.code,
              errc::stale);
    EXPECT_EQ(c.ask_now<placement_reply>(to, flip_placement{group, newer}).outcome.code, errc::stale);
    EXPECT_EQ(c.ask_now<placement_reply>(to, drop_placement{group, newer}).outcome.code, errc::stale);
  }
  auto stage = [&](placement_version from, placement_version v, std::vector<std::vector<int32_t>> slots) {
    return c.ask_now<placement_reply>(to, stage_placement{r.view, from, v, std::move(slots), 4}).outcome;
  };
  EXPECT_EQ(stage(newer, placement_version{newer.value + 1}, now.slots).code, errc::stale);
  EXPECT_EQ(stage(now.placement, now.placement, now.slots).code, errc::stale);
  auto bad = now.slots;
  bad[1][0] = 99;
  EXPECT_EQ(stage(now.placement, newer, bad).code, errc::invalid_argument);
  EXPECT_EQ(c.ask_now<placement_reply>(to, flip_placement{r.view, newer}).outcome.code, errc::stale) << "not staged";
  EXPECT_TRUE(stage(now.placement, newer, now.slots).ok());
  EXPECT_TRUE(c.ask_now<placement_reply>(to, drop_placement{r.view, newer}).outcome.ok());
  EXPECT_EQ(c.ask_now<placement_reply>(to, flip_placement{r.view, newer}).outcome.code, errc::stale) << "dropped";
}

}  // namespace
}  // namespace troupe::actors
