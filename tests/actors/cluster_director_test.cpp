// What the director does when it is started again, when nodes are silent, and when the load changes.
#include <gtest/gtest.h>

#include <cstdio>

#include "actors/cluster/takeover.hpp"
#include "tests/actors/sim_cluster.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options seeded(uint64_t seed) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  cluster_options o;
  o.seed = seed;
  return o;
}

void send_batch(sim_cluster& c, int n) {
  for (int i = 0; i < n; ++i) c.submit(c.random_request());
}

// Incarnation of every node, and epoch of every group.
std::map<std::string, uint64_t> lives(sim_cluster& c) {
  std::map<std::string, uint64_t> out;
  const auto s = c.status();
  for (const auto& n : s.view.nodes) out[n.name] = n.inc.value;
  for (const auto& g : s.view.groups) out["group " + g.group] = g.epoch.value;
  return out;
}

TEST(takeover, a_restarted_director_goes_on_with_what_runs) {
  auto o = seeded(61);
  o.fronts = 2;
  sim_cluster c{o};
  c.wait_ready();
  const auto before = lives(c);
  const auto balancers = c.status().view.balancer;
  for (int round = 0; round < 3; ++round) {
    send_batch(c, 10);
    c.run_for(milliseconds(5));
    c.crash_director();
    send_batch(c, 10);
    c.run_for(milliseconds(400 * round));
    c.start_director();
    send_batch(c, 10);
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
    c.wait_ready();
    EXPECT_EQ(lives(c), before) << "round " << round;
    EXPECT_EQ(c.status().view.balancer, balancers);
  }
  c.run_for(seconds(8));
  c.expect_clients_right(true);
  c.expect_clean();
  EXPECT_EQ(c.ask_now<front_report>(c.node("front-0").entrypoint, front_query{}).resumed, 0u);
}

TEST(takeover, who_died_in_the_meantime_is_missed_and_comes_back_as_another) {
  sim_cluster c{seeded(62)};
  c.wait_ready();
  const auto before = lives(c);
  send_batch(c, 20);
  c.run_for(milliseconds(10));
  c.crash_director();
  c.crash("decode-1", sim::crash_kind::killed);
  c.start_director();
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  auto after = lives(c);
  EXPECT_FALSE(after.contains("decode-1"));
  EXPECT_GT(after["group decode-0"], before.at("group decode-0") + 1) << "views that nobody knows of are skipped";
  EXPECT_EQ(after["decode-0"], before.at("decode-0"));
  c.restart("decode-1");
  c.wait_ready();
  after = lives(c);
  EXPECT_GT(after["decode-1"], before.at("decode-1"));
  send_batch(c, 10);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(seconds(25));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(takeover, a_process_that_was_started_again_without_a_director_gets_its_seat) {
  sim_cluster c{seeded(63)};
  c.wait_ready();
  const auto before = lives(c);
  c.crash_director();
  c.crash("prefill-0", sim::crash_kind::killed);
  c.restart("prefill-0");
  c.run_for(seconds(1));
  c.start_director();
  c.wait_ready();
  auto after = lives(c);
  EXPECT_GT(after["prefill-0"], before.at("prefill-0"));
  for (const char* same : {"front-0", "decode-0", "decode-1", "group decode-0"})
    EXPECT_EQ(after[same], before.at(same)) << same;
  send_batch(c, 10);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
}

TEST(takeover, what_an_older_director_says_is_not_obeyed) {
  sim_cluster c{seeded(64)};
  c.wait_ready();
  c.crash_director();
  c.start_director();
  c.wait_ready();
  const auto s = c.status();
  auto old = s.view;
  old.term = director_term{old.term.value - 1};
  old.version += 100;
  old.nodes.clear();
  old.groups.clear();
  for (const char* name : {"front-0", "decode-0"}) {
    post(c.node(name).agent, old);
    const auto& n = *std::find_if(s.view.nodes.begin(), s.view.nodes.end(), [&](auto& x) { return x.name == name; });
    post(c.node(name).agent, assign_roles{s.view.epoch, n.inc, {{role::decode, "decode-0", 1, 2}}, old.term});
  }
  c.run_for(seconds(1));
  EXPECT_EQ(c.ask_now<agent_report>(c.node("decode-0").agent, agent_query{}).roles.size(), 1u);
  send_batch(c, 10);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(30)));
  c.expect_clients_right(true);
  // And an older one that a node finds at the address takes nobody over.
  rejoin_request m;
  m.self.cluster = "troupe";
  m.epoch = s.view.epoch;
  m.term = director_term{s.view.term.value + 1};
  const auto reply = c.ask_now<join_reply>(c.director(), m);
  EXPECT_EQ(reply.outcome.code, errc::unavailable) << reply.outcome.text;
}

// Seats of a role that are filled and ready.
uint32_t ready_seats(sim_cluster& c, role what) {
  uint32_t n = 0;
  for (const auto& x : c.status().view.nodes)
    for (const auto& r : x.roles) n += r.assignment.what == what && r.state == role_state::ready;
  return n;
}

// Clients that come one after the other, `at_once` at a time, until `until` holds; returns whether it did.
bool keep_busy(sim_cluster& c, size_t at_once, uint32_t prompt, uint32_t output, const std::function<bool()>& until) {
  for (int i = 0; i < 1200; ++i) {
    size_t open = 0;
    for (const auto& x : c.clients) open += x->ends == 0;
    for (; open < at_once; ++open) {
      auto r = c.random_request();
      r.prompt.assign(prompt, 7);
      r.stop.max_tokens = output;
      r.stop.ignore_eos = true;
      c.submit(r);
    }
    c.run_for(milliseconds(100));
    if (i % 10 == 0 && until()) return true;
  }
  return false;
}

TEST(roles, ranks_go_where_the_load_is_and_back_without_losing_a_token) {
  auto o = seeded(66);
  o.prefill = 2;
  o.decode = 2;
  o.changes.on = true;
  o.changes.every = seconds(2);
  o.changes.drain = seconds(5);
  o.engine.per_row = milliseconds(1);
  o.engine.limits.pages = 200;
  sim_cluster c{o};
  c.wait_ready();
  ASSERT_EQ(ready_seats(c, role::prefill), 2u);
  ASSERT_EQ(ready_seats(c, role::decode), 2u);
  EXPECT_TRUE(keep_busy(c, 24, 400, 1, [&] {
    return ready_seats(c, role::prefill) == 3 && ready_seats(c, role::decode) == 1;
  })) << "prompts";
  EXPECT_TRUE(keep_busy(c, 24, 4, 100, [&] {
    return ready_seats(c, role::prefill) == 1 && ready_seats(c, role::decode) == 3;
  })) << "answers";
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(seconds(60));
  EXPECT_EQ(ready_seats(c, role::decode), 3u) << "an idle cluster stays as it is";
  c.expect_clients_right(true);
  c.expect_clean();
  // The director may die: what runs is what there is.
  c.crash_director();
  c.start_director();
  c.run_for(seconds(5));
  EXPECT_EQ(ready_seats(c, role::prefill), 1u);
  EXPECT_EQ(ready_seats(c, role::decode), 3u);
}

// A node whose heartbeats were late before is waited for longer than one that was regular.
TEST(detector, silence_is_judged_by_what_a_node_did_before) {
  sim_cluster c{seeded(65)};
  c.wait_ready();
  const auto silence = [&](const std::string& name, nanoseconds how_long) {
    const size_t node = c.net().find(name), director = c.net().find("director");
    c.net().cut(node, director);
    c.run_for(how_long);
    c.net().heal(node, director);
    c.run_for(milliseconds(700));
  };
  for (int i = 0; i < 10; ++i) silence("decode-0", milliseconds(2300));
  c.run_for(seconds(3));
  const auto before = lives(c);
  silence("decode-0", milliseconds(3900));
  silence("prefill-0", milliseconds(3900));
  c.run_for(seconds(3));
  const auto after = lives(c);
  EXPECT_EQ(after.at("decode-0"), before.at("decode-0"));
  EXPECT_NE(after.at("prefill-0"), before.at("prefill-0"));
  silence("decode-0", seconds(10));
  c.run_for(seconds(3));
  EXPECT_NE(lives(c).at("decode-0"), before.at("decode-0")) << "three times lost_after is the end";
}

// A director that stood still for longer than any node may be silent gives nobody up for that.
TEST(detector, a_director_that_was_frozen_blames_nobody) {
  sim_cluster c{seeded(67)};
  c.wait_ready();
  const auto before = lives(c);
  const size_t director = c.net().find("director");
  send_batch(c, 10);
  c.net().freeze(director, true);
  c.run_for(seconds(8));  // asks of heartbeats time out meanwhile, and lost_after is 3 s
  c.net().freeze(director, false);
  c.run_for(seconds(4));
  EXPECT_EQ(lives(c), before);
  EXPECT_TRUE(all_ended(c));
  c.expect_clients_right(true);
}

// Who cannot go on is told so, with the reason, and begins anew.
TEST(takeover, what_does_not_fit_is_refused) {
  sim_cluster c{seeded(68)};
  c.wait_ready();
  const auto s = c.status();
  const auto ask = [&](auto change) {
    rejoin_request m;
    m.self.cluster = "troupe";
    m.self.name = "stranger";
    m.epoch = s.view.epoch;
    m.node = node_number{77};
    m.inc = incarnation{5};
    m.term = director_term{s.view.term.value - 1};
    change(m);
    return c.ask_now<join_reply>(c.director(), m).outcome;
  };
  EXPECT_EQ(ask([](auto& m) { m.self.cluster = "other"; }).code, errc::stale);
  EXPECT_EQ(ask([](auto&) {}).code, errc::stale) << "the cluster runs, and it is no part of it";
  EXPECT_EQ(ask([&](auto& m) { m.term = s.view.term; }).code, errc::stale) << "this director has given it up";
  // A node that does not come back keeps the next director waiting, undecided.
  c.crash("decode-1", sim::crash_kind::silent);
  c.crash_director();
  c.start_director();
  c.run_for(milliseconds(1200));
  const auto no_seat = ask([](auto& m) {
    m.roles = {{{role::decode, "decode-9", 0, 1}, role_state::ready, {}, {}, {}}};
  });
  EXPECT_EQ(no_seat.code, errc::stale);
  EXPECT_NE(no_seat.text.find("no seat decode-9/0"), std::string::npos) << no_seat.text;
  const auto held = ask([](auto& m) { m.roles = {{{role::decode, "decode-0", 0, 2}, role_state::ready, {}, {}, {}}}; });
  EXPECT_EQ(held.code, errc::stale);
  EXPECT_NE(held.text.find("has its seat"), std::string::npos) << held.text;
  c.restart("decode-1");
  c.wait_ready();
  EXPECT_EQ(c.status().view.nodes.size(), s.view.nodes.size());
}

TEST(takeover, waits_for_all_of_the_newest_view) {
  takeover t(cluster_epoch{7}, nanoseconds(100));
  EXPECT_TRUE(t.missing().empty());
  rejoin_request m;
  m.node = node_number{1};
  m.inc = incarnation{11};
  m.view.epoch = cluster_epoch{7};
  m.view.version = 5;
  auto& nodes = m.view.nodes;
  nodes.resize(3);
  for (uint32_t i = 0; i < 3; ++i) {
    nodes[i].node = node_number{i + 1};
    nodes[i].inc = incarnation{11 + i};
    nodes[i].name = "n" + std::to_string(i + 1);
  }
  t.add(m);
  EXPECT_EQ(t.missing(), (std::vector<std::string>{"n2", "n3"}));
  EXPECT_FALSE(t.over(nanoseconds(99)));
  EXPECT_TRUE(t.over(nanoseconds(100)));
  rejoin_request second = m;
  second.node = node_number{2};
  second.inc = incarnation{12};
  second.view.version = 4;  // an older view changes nothing
  second.view.nodes.clear();
  t.add(second);
  EXPECT_EQ(t.missing(), (std::vector<std::string>{"n3"}));
  t.replaced("n3");
  EXPECT_TRUE(t.over(nanoseconds(0)));
  second.view.version = 6;
  second.view.nodes = {nodes[0], nodes[1]};
  second.view.nodes[1].inc = incarnation{20};  // n2 has come in an older life only
  t.add(second);
  EXPECT_EQ(t.missing(), (std::vector<std::string>{"n2"}));
  EXPECT_EQ(t.newest().version, 6u);
}

}  // namespace
}  // namespace troupe::actors
