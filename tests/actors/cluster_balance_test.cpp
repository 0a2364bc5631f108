// Balancers in a whole cluster: several fronts, one view of the load, and what is left when a front or a balancer dies.
#include "tests/actors/sim_cluster.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options two_fronts(uint64_t seed, uint32_t prefill = 2, uint32_t decode = 4) {
  cluster_options o;
  o.seed = seed;
  o.fronts = 2;
  o.prefill = prefill;
  o.decode = decode;
  return o;
}

balancer_actor balancer_of(sim_cluster& c, const std::string& front, role what) {
  auto& named = c.node(front).named;
  auto it = std::find_if(named.begin(), named.end(),
                         [&](auto& n) { return n.first.ends_with(std::string(to_string(what)) + "_balancer"); });
  return it == named.end() ? balancer_actor{} : caf::actor_cast<balancer_actor>(it->second);
}

balancer_report report_of(sim_cluster& c, const std::string& front, role what) {
  return c.ask_now<balancer_report>(balancer_of(c, front, what), balancer_query{});
}

front_report front_of(sim_cluster& c, const std::string& front) {
  return c.ask_now<front_report>(c.node(front).entrypoint, front_query{});
}

// Ready, and the fronts have found the balancers. The director named the front that came first.
struct pair_of_fronts {
  std::string active, other;
};
pair_of_fronts settle(sim_cluster& c) {
  c.wait_ready();
  c.run_for(seconds(1));
  const bool first = c.status().view.balancer.seat == "front/0";
  return first ? pair_of_fronts{"front-0", "front-1"} : pair_of_fronts{"front-1", "front-0"};
}

client_submit steady_request(sim_cluster& c, uint32_t tokens) {
  auto r = c.random_request();
  r.prompt.resize(20);
  r.stop.max_tokens = tokens;
  r.stop.ignore_eos = true;
  r.speculate = false;
  return r;
}

uint32_t most(const balancer_report& r) {
  uint32_t out = 0;
  for (auto& x : r.ranks) out = std::max(out, x.leases);
  return out;
}

TEST(balance, two_fronts_spread_over_all_ranks_by_one_view) {
  sim_cluster c{two_fronts(61)};
  const auto f = settle(c);
  EXPECT_TRUE(report_of(c, f.active, role::decode).active);
  EXPECT_FALSE(report_of(c, f.other, role::decode).active);
  for (int i = 0; i < 16; ++i) c.submit(steady_request(c, 300), i % 4 == 0 ? f.active : f.other);
  c.run_for(milliseconds(150));
  auto d = report_of(c, f.active, role::decode);
  EXPECT_EQ(d.leases, 16u);
  EXPECT_EQ(d.fronts, 2u);
  ASSERT_EQ(d.ranks.size(), 4u);
  EXPECT_EQ(most(d), 4u) << "round robin of two fronts by themselves could not know";
  EXPECT_EQ(report_of(c, f.active, role::prefill).leases, 0u) << "prompts are through";
  EXPECT_EQ(report_of(c, f.active, role::prefill).placed, 16u);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(seconds(6));
  c.expect_clients_right(true);
  c.expect_clean();
  EXPECT_EQ(report_of(c, f.active, role::decode).leases, 0u);
  for (const auto& front : {f.active, f.other}) EXPECT_EQ(front_of(c, front).alone, 0u);
}

TEST(balance, a_dead_front_frees_what_it_has_placed) {
  for (auto kind : {sim::crash_kind::killed, sim::crash_kind::silent}) {
    sim_cluster c{two_fronts(62)};
    const auto f = settle(c);
    for (int i = 0; i < 12; ++i) c.submit(steady_request(c, 300), i % 2 ? f.active : f.other);
    c.run_for(milliseconds(60));
    c.crash(f.other, kind);
    c.run_for(kind == sim::crash_kind::killed ? milliseconds(20) : milliseconds(3800));  // lost_after is 3 s
    auto d = report_of(c, f.active, role::decode);
    EXPECT_EQ(d.fronts, kind == sim::crash_kind::killed ? 1u : d.fronts);
    EXPECT_EQ(d.freed + report_of(c, f.active, role::prefill).freed, 6u);
    EXPECT_LE(d.leases, 6u);
    // The other goes on.
    c.submit(steady_request(c, 10), f.active);
    EXPECT_TRUE(c.run_until(
        [&] {
          for (size_t i = 0; i < c.clients.size(); ++i)
            if ((i % 2 || i >= 12) && c.clients[i]->ends == 0) return false;
          return true;
        },
        seconds(60)));
    c.run_for(seconds(8));
    c.expect_clean();
    EXPECT_EQ(report_of(c, f.active, role::decode).leases, 0u);
  }
}

TEST(balance, leases_of_a_front_that_is_not_heard_expire_and_it_places_by_itself) {
  sim_cluster c{two_fronts(63)};
  const auto f = settle(c);
  auto slow = steady_request(c, 300);
  for (int i = 0; i < 4; ++i) c.submit(slow, f.other);
  c.run_for(milliseconds(50));
  EXPECT_EQ(report_of(c, f.active, role::decode).leases, 4u);
  c.cut_both(f.active, f.other, true);  // the director hears both
  c.run_for(seconds(14));
  auto d = report_of(c, f.active, role::decode);
  EXPECT_EQ(d.leases, 0u);
  EXPECT_EQ(d.expired, 4u);
  for (int i = 0; i < 4; ++i) c.submit(steady_request(c, 20), f.other);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  EXPECT_GE(front_of(c, f.other).alone, 4u);
  c.cut_both(f.active, f.other, false);
  c.run_for(seconds(2));
  const auto before = front_of(c, f.other).balanced;
  for (int i = 0; i < 4; ++i) c.submit(steady_request(c, 20), f.other);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  EXPECT_GT(front_of(c, f.other).balanced, before) << "found again";
  c.expect_clients_right(true);
}

TEST(balance, the_balancers_of_another_front_take_over_with_what_is_held) {
  for (auto kind : {sim::crash_kind::killed, sim::crash_kind::silent}) {
    sim_cluster c{two_fronts(64)};
    const auto f = settle(c);
    for (int i = 0; i < 8; ++i) c.submit(steady_request(c, 400), f.other);
    c.run_for(milliseconds(40));
    const auto term = report_of(c, f.other, role::decode).term;
    c.crash(f.active, kind);
    for (int i = 0; i < 4; ++i) c.submit(steady_request(c, 400), f.other);
    c.run_for(milliseconds(30));
    if (kind == sim::crash_kind::killed) {
      c.run_for(milliseconds(400));
      auto d = report_of(c, f.other, role::decode);
      EXPECT_TRUE(d.active);
      EXPECT_GT(d.term, term);
      uint32_t open = 0;
      for (auto& x : c.clients) open += x->ends == 0;
      EXPECT_EQ(d.leases + report_of(c, f.other, role::prefill).leases, open);
    }
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
    c.run_for(seconds(6));
    EXPECT_TRUE(report_of(c, f.other, role::decode).active);
    c.restart(f.active);
    settle(c);
    EXPECT_TRUE(report_of(c, f.other, role::decode).active) << "it stays where it is";
    const auto placed = report_of(c, f.other, role::decode).placed;
    for (int i = 0; i < 4; ++i) c.submit(steady_request(c, 20), f.active);
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
    EXPECT_EQ(report_of(c, f.other, role::decode).placed, placed + 4);
    c.run_for(seconds(6));
    c.expect_clients_right(true);
    c.expect_clean();
  }
}

TEST(balance, without_director_and_balancer_a_front_places_by_itself) {
  sim_cluster c{two_fronts(65)};
  const auto f = settle(c);
  c.crash_director();
  c.crash(f.active, sim::crash_kind::killed);
  for (int i = 0; i < 10; ++i) c.submit(steady_request(c, 30), f.other);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(30)));
  c.expect_clients_right(true);
  EXPECT_GE(front_of(c, f.other).alone, 10u);
}

TEST(balance, what_is_stale_is_refused) {
  sim_cluster c{two_fronts(66)};
  const auto f = settle(c);
  const auto view = c.status().view;
  const auto active = balancer_of(c, f.active, role::decode);
  const auto key_of = [&](const std::string& name) {
    for (auto& n : view.nodes)
      if (n.name == name) return actor_key{n.node, n.inc, n.roles.front().assignment.seat() + "/entrypoint"};
    return actor_key{};
  };
  const auto me = key_of(f.other);
  place_request m{view.epoch, view.balancer.term, me, lease_number{1000}, {0, 0, 10, 1}, {}};
  EXPECT_TRUE(c.ask_now<place_reply>(active, m).outcome.ok());
  m.lease = lease_number{1001};
  m.epoch = cluster_epoch{view.epoch.value + 1};
  EXPECT_EQ(c.ask_now<place_reply>(active, m).outcome.code, errc::stale);
  m.epoch = view.epoch;
  m.term = balancer_term{view.balancer.term.value - 1};
  EXPECT_EQ(c.ask_now<place_reply>(active, m).outcome.code, errc::stale);
  m.term = view.balancer.term;
  EXPECT_EQ(c.ask_now<place_reply>(balancer_of(c, f.other, role::decode), m).outcome.code, errc::stale)
      << "not the active one";
  c.crash(f.other, sim::crash_kind::killed);
  c.run_for(seconds(1));
  EXPECT_EQ(c.ask_now<place_reply>(active, m).outcome.code, errc::stale) << "this incarnation was given up";
  lease_update u{view.epoch, view.balancer.term, me, {{lease_number{5}, {}, {}}}, {}};
  EXPECT_EQ(c.ask_now<ack>(active, u).outcome.code, errc::stale);
  EXPECT_EQ(report_of(c, f.active, role::decode).leases, 0u);
  c.restart(f.other);
  settle(c);
  EXPECT_EQ(c.ask_now<place_reply>(active, m).outcome.code, errc::stale) << "the old one is not the new one";
  EXPECT_GE(report_of(c, f.active, role::decode).stale, 5u);
}

TEST(balance, draining_the_front_with_the_balancers_hands_them_on) {
  sim_cluster c{two_fronts(67)};
  const auto f = settle(c);
  for (int i = 0; i < 8; ++i) c.submit(steady_request(c, 200), i % 2 ? f.active : f.other);
  c.run_for(milliseconds(30));
  auto reply = c.ask_now<stop_reply>(c.node(f.active).agent, stop_request{20'000});
  EXPECT_TRUE(reply.outcome.ok()) << reply.outcome.text;
  EXPECT_EQ(reply.left, 0u);
  EXPECT_TRUE(report_of(c, f.other, role::decode).active);
  for (int i = 0; i < 4; ++i) c.submit(steady_request(c, 20), f.other);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
}

}  // namespace
}  // namespace troupe::actors
