// Named stories: what happens to running requests when something breaks, stops or is full.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/actors/sim_cluster.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

cluster_options with_seed(uint64_t seed) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  cluster_options o;
  o.seed = seed;
  return o;
}

void submit(sim_cluster& c, int n, const std::string& front = "front-0") {
  for (int i = 0; i < n; ++i) c.submit(c.random_request(), front);
}

client_submit long_request(sim_cluster& c) {
  auto r = c.random_request();
  r.stop.max_tokens = 300;
  r.stop.ignore_eos = true;
  r.speculate = false;
  return r;
}

TEST(faults, a_lost_front_leaves_nothing_behind) {
  for (auto kind : {sim::crash_kind::killed, sim::crash_kind::silent}) {
    auto o = with_seed(21);
    o.fronts = 2;
    sim_cluster c{o};
    c.wait_ready();
    submit(c, 20, "front-0");
    submit(c, 20, "front-1");
    c.run_for(milliseconds(15));
    c.crash("front-0", kind);
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
    c.run_for(seconds(8));
    for (auto& x : c.clients) EXPECT_EQ(x->ends, 1);
    c.expect_clean();
  }
}

// The director gives a silent rank up about when the step that waits for it does: whichever comes first, the group goes
// on with the ranks that are left.
TEST(faults, a_step_that_fails_after_the_new_view_does_not_end_it) {
  for (int late = -400; late <= 1200; late += 100) {
    auto o = with_seed(36);
    o.engine.deadline = seconds(3) + milliseconds(late);  // the director's patience is 3 s
    sim_cluster c{o};
    c.wait_ready();
    for (int i = 0; i < 6; ++i) c.submit(long_request(c));
    c.run_for(milliseconds(30));
    c.crash("decode-1", sim::crash_kind::silent);
    EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60))) << late << " ms";
    c.expect_clients_right(true);
    const auto report = c.ask_now<rank_report>(
        caf::actor_cast<rank_actor>(c.node("decode-0").named.at("decode-0/0/rank")), rank_query{});
    EXPECT_EQ(report.state, role_state::ready) << late << " ms";
    if (HasFailure()) return;
  }
}

TEST(faults, tokens_swallowed_by_the_network_come_again) {
  sim_cluster c{with_seed(22)};
  c.wait_ready();
  submit(c, 20);
  c.run_for(milliseconds(10));
  const size_t from = c.net().find("decode-0"), to = c.net().find("front-0");
  c.net().cut(from, to);
  c.run_for(milliseconds(700));
  c.net().heal(from, to);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(seconds(8));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(faults, a_node_that_the_director_cannot_hear_comes_back_as_another) {
  sim_cluster c{with_seed(23)};
  c.wait_ready();
  submit(c, 20);
  c.run_for(milliseconds(10));
  c.cut_both("decode-1", "director", true);
  c.run_for(seconds(5));
  EXPECT_FALSE(c.status().complete);
  c.cut_both("decode-1", "director", false);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  c.wait_ready();
  submit(c, 5);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(seconds(8));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(faults, a_spare_takes_the_seat) {
  auto o = with_seed(24);
  o.spares = 1;
  sim_cluster c{o};
  c.wait_ready();
  c.start_node("spare-0");
  c.run_for(milliseconds(50));
  submit(c, 20);
  c.run_for(milliseconds(10));
  c.crash("decode-1", sim::crash_kind::killed);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  c.wait_ready();
  EXPECT_TRUE(c.node("spare-0").named.contains("decode-0/1/rank"));
  c.run_for(seconds(8));
  c.expect_clean();
}

TEST(faults, a_seat_goes_to_the_node_that_asks_for_it_by_name) {
  auto o = with_seed(37);
  o.spares = 1;
  sim_cluster c{o};
  c.wait_ready();
  for (const char* name : {"front-0", "decode-0", "decode-1"}) c.crash(name, sim::crash_kind::killed);
  c.run_for(seconds(5));
  c.node("spare-0").wanted_seat.clear();
  c.start_node("spare-0");
  c.run_for(seconds(1));
  EXPECT_TRUE(c.node("spare-0").named.contains("decode-0/0/rank")) << "not the front's seat, though it comes first";
  c.restart("decode-0");
  c.restart("front-0");
  c.run_for(seconds(3));
  c.wait_ready();
  EXPECT_TRUE(c.node("decode-0").named.contains("decode-0/0/rank"));
  EXPECT_TRUE(c.node("spare-0").named.contains("decode-0/1/rank")) << "it made room and took the empty one";
  submit(c, 5);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
}

TEST(faults, a_node_that_takes_any_seat_is_never_a_front) {
  auto o = with_seed(38);
  o.spares = 1;
  sim_cluster c{o};
  c.wait_ready();
  c.node("spare-0").wanted_seat.clear();
  c.start_node("spare-0");
  c.crash("front-0", sim::crash_kind::killed);
  c.run_for(seconds(10));
  EXPECT_TRUE(c.node("spare-0").named.empty()) << c.node("spare-0").named.begin()->first;
  auto s = c.status();
  ASSERT_EQ(s.empty_seats.size(), 1u);
  EXPECT_EQ(s.empty_seats[0].seat(), "front/0");
  c.restart("front-0");
  c.wait_ready();
  submit(c, 5);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
}

uint64_t epoch_of(sim_cluster& c, const std::string& group) {
  for (auto& g : c.status().view.groups)
    if (g.group == group) return g.epoch.value;
  return 0;
}

std::map<std::string, std::string> failed_ranks(sim_cluster& c) {
  std::map<std::string, std::string> out;
  for (auto& n : c.status().view.nodes)
    for (auto& r : n.roles)
      if (r.state == role_state::failed) out[r.assignment.seat()] = r.text;
  return out;
}

// A step fails on one rank and it can name nobody: the ranks would wait for a view for ever, if the director looked at
// suspects only.
TEST(faults, a_group_that_fails_without_a_suspect_gets_another_view) {
  auto o = with_seed(39);
  auto failures = std::make_shared<int>(0);
  o.engine.step_fails = [failures] { return *failures > 0 && (*failures)-- > 0; };
  sim_cluster c{o};
  c.wait_ready();
  const auto before = epoch_of(c, "decode-0");
  for (int i = 0; i < 6; ++i) c.submit(long_request(c));
  c.run_for(milliseconds(100));
  *failures = 1;
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  EXPECT_EQ(*failures, 0);
  EXPECT_EQ(epoch_of(c, "decode-0"), before + 1);
  c.wait_ready();
  EXPECT_TRUE(failed_ranks(c).empty());
  c.run_for(seconds(30));
  EXPECT_EQ(epoch_of(c, "decode-0"), before + 1) << "a group that is well is left alone";
  c.expect_clean();
}

TEST(faults, a_group_that_cannot_form_is_tried_a_few_times_and_then_reported) {
  auto o = with_seed(40);
  auto broken = std::make_shared<bool>(true);
  auto tries = std::make_shared<int>(0);
  o.engine.regroup_fails = [broken, tries](const group_view& v) {
    *tries += v.group == "decode-0";
    return *broken && v.group == "decode-0";
  };
  sim_cluster c{o};
  c.run_for(seconds(60));
  EXPECT_TRUE(failed_ranks(c).empty()) << "not yet";
  EXPECT_GE(*tries, 3 * 2) << "they try on";
  c.run_for(seconds(240));
  EXPECT_FALSE(c.status().complete);
  auto failed = failed_ranks(c);
  ASSERT_EQ(failed.size(), 2u);
  for (const char* part : {"4 further group views", "decode-0/", "rank 1 did not answer", "restart one of its ranks"})
    EXPECT_NE(failed["decode-0/0"].find(part), std::string::npos) << failed["decode-0/0"];
  const int tried = *tries;
  EXPECT_LE(tried, 2 * 4 * 5) << "two ranks, four tries a view, five views";
  EXPECT_EQ(epoch_of(c, "decode-0"), 5u);
  c.run_for(seconds(3600));
  EXPECT_EQ(*tries, tried) << "it is over";
  EXPECT_EQ(epoch_of(c, "decode-0"), 5u);
  *broken = false;
  c.crash("decode-1", sim::crash_kind::killed);
  c.restart("decode-1");
  c.wait_ready();
  EXPECT_TRUE(failed_ranks(c).empty());
  submit(c, 5);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
}

TEST(faults, the_director_may_be_away) {
  sim_cluster c{with_seed(25)};
  c.wait_ready();
  submit(c, 10);
  c.run_for(milliseconds(5));
  c.crash_director();
  submit(c, 10);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(30)));
  c.expect_clients_right(true);
  c.start_director();
  c.run_for(seconds(6));
  c.wait_ready();
  submit(c, 10);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(30)));
  c.run_for(seconds(8));
  c.expect_clients_right(true);
  c.expect_clean();
}

TEST(faults, without_a_new_group_view_requests_end_with_a_reason) {
  sim_cluster c{with_seed(26)};
  c.wait_ready();
  submit(c, 10);
  c.run_for(milliseconds(10));
  c.crash_director();
  c.crash("decode-1", sim::crash_kind::killed);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(120)));
  c.run_for(seconds(8));
  c.expect_clients_right(false);
  int failed = 0;
  for (auto& x : c.clients) {
    failed += x->last.failure != errc{};
    EXPECT_TRUE(x->last.failure == errc{} || x->last.failure == errc::unavailable || x->last.failure == errc::peer_lost)
        << x->last.failure_text;
  }
  EXPECT_GT(failed, 0);
}

TEST(faults, draining_a_rank_lets_its_requests_finish) {
  sim_cluster c{with_seed(27)};
  c.wait_ready();
  submit(c, 20);
  c.run_for(milliseconds(10));
  auto reply = c.ask_now<stop_reply>(c.node("decode-1").agent, stop_request{20'000});
  EXPECT_TRUE(reply.outcome.ok()) << reply.outcome.text;
  EXPECT_EQ(reply.left, 0u);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  submit(c, 5);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.expect_clients_right(true);
  auto s = c.status();
  ASSERT_EQ(s.empty_seats.size(), 1u);
  EXPECT_EQ(s.empty_seats[0].seat(), "decode-0/1");
}

TEST(faults, draining_the_front_finishes_and_refuses) {
  sim_cluster c{with_seed(28)};
  c.wait_ready();
  submit(c, 10);
  c.run_for(milliseconds(5));
  auto front = c.node("front-0").entrypoint;
  post(front, client_cancel{"nobody"});
  auto reply = c.ask_now<drain_reply>(front, drain_request{20'000});
  EXPECT_TRUE(reply.outcome.ok()) << reply.outcome.text;
  EXPECT_TRUE(all_ended(c));
  c.expect_clients_right(true);
  auto late = c.submit(c.random_request());
  c.run_for(milliseconds(10));
  EXPECT_EQ(late->last.failure, errc::unavailable);
}

TEST(faults, a_drain_that_runs_out_of_time_cuts_off) {
  sim_cluster c{with_seed(29)};
  c.wait_ready();
  for (int i = 0; i < 4; ++i) c.submit(long_request(c));
  c.run_for(milliseconds(20));
  auto reply = c.ask_now<stop_reply>(c.node("front-0").agent, stop_request{30});
  EXPECT_EQ(reply.outcome.code, errc::timeout);
  EXPECT_EQ(reply.left, 4u);
  for (auto& x : c.clients) {
    EXPECT_EQ(x->ends, 1);
    EXPECT_EQ(x->last.failure, errc::unavailable);
  }
}

TEST(faults, full_queues_refuse_at_the_front_and_wait_behind_it) {
  auto o = with_seed(30);
  o.scheduler.queue_limit = 2;
  o.engine.limits.slots = 2;
  o.entrypoint.max_requests = 40;
  o.entrypoint.place_patience = seconds(60);
  sim_cluster c{o};
  c.wait_ready();
  submit(c, 60);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(120)));
  int refused = 0;
  for (auto& x : c.clients) {
    if (x->last.failure != errc{}) {
      EXPECT_EQ(x->last.failure, errc::exhausted);
      EXPECT_GT(x->last.retry_after_ms, 0u);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 20);
  c.run_for(seconds(5));
  c.expect_clients_right(false);
  c.expect_clean();
}

TEST(faults, requests_that_cannot_work_are_refused) {
  sim_cluster c{with_seed(31)};
  c.wait_ready();
  auto r = c.random_request();
  r.prompt.clear();
  auto empty = c.submit(r);
  r = c.random_request();
  r.prompt.assign(512, 7);
  auto too_long = c.submit(r);
  r = c.random_request();
  r.stop.max_tokens = 0;
  auto nothing = c.submit(r);
  c.run_for(milliseconds(100));
  for (auto& x : {empty, too_long, nothing}) {
    EXPECT_EQ(x->ends, 1);
    EXPECT_EQ(x->last.failure, errc::invalid_argument) << x->last.failure_text;
  }
}

TEST(faults, joins_that_are_refused) {
  sim_cluster c{with_seed(32)};
  c.wait_ready();
  join_request j{"other", "x", "x", 1, 1, "", {}};
  EXPECT_EQ(c.ask_now<join_reply>(c.director(), j).outcome.code, errc::invalid_argument);
  j = {"troupe", "", "x", 1, 1, "", {}};
  EXPECT_EQ(c.ask_now<join_reply>(c.director(), j).outcome.code, errc::invalid_argument);
  j = {"troupe", "x", "x", 1, 1, "decode-9/9", {}};
  const auto bogus = c.ask_now<join_reply>(c.director(), j).outcome;
  EXPECT_EQ(bogus.code, errc::invalid_argument);
  EXPECT_NE(bogus.text.find("decode-0/1"), std::string::npos) << bogus.text;
  j = {"troupe", "decode-0", "elsewhere", 1, 1, "", {}};
  EXPECT_EQ(c.ask_now<join_reply>(c.director(), j).outcome.code, errc::unavailable) << "a living node has this name";
  heartbeat h{cluster_epoch{1}, node_number{1}, incarnation{77}, 0, {}};
  EXPECT_EQ(c.ask_now<heartbeat_reply>(c.director(), h).outcome.code, errc::stale);
  EXPECT_TRUE(c.status().complete);
}

/// Asks an actor of another node for something that takes long, and notes when the error came.
class long_asker_state {
 public:
  using interface = actor_type<takes<tick>>;
  static inline const char* name = "asker";
  explicit long_asker_state(interface::pointer self) : self_(self), links_(self) {}
  interface::behavior_type make_behavior(scheduler_actor to, std::shared_ptr<std::vector<std::string>> out) {
    links_.ask(
        self_, to, seconds(30), drain_request{29'000}, [out](const drain_reply&) { out->push_back("answer"); },
        [out](const error& e) { out->push_back(to_string(e.code)); });
    return {[](const tick&) {}};
  }

 private:
  interface::pointer self_;
  peer_links links_;
};

TEST(faults, an_open_request_fails_at_once_when_its_node_goes_down) {
  sim_cluster c{with_seed(33)};
  c.wait_ready();
  c.submit(long_request(c));
  c.submit(long_request(c));
  c.run_for(milliseconds(50));
  auto out = std::make_shared<std::vector<std::string>>();
  const size_t front = c.net().find("front-0");
  auto far = c.net().view(front, c.node("decode-1").named.at("decode-0/1/scheduler"));
  spawn_on<long_asker_state>(c.system(), c.net().id(front), c.scheduler().unit(), caf::actor_cast<scheduler_actor>(far),
                             out);
  c.run_for(milliseconds(2));
  EXPECT_TRUE(out->empty());
  c.crash("decode-1", sim::crash_kind::killed);
  c.run_for(milliseconds(1));
  EXPECT_EQ(*out, std::vector<std::string>{"peer_lost"});
}

TEST(faults, answered_requests_leave_no_timer) {
  sim_cluster c{with_seed(34)};
  c.wait_ready();
  submit(c, 100);
  EXPECT_TRUE(c.run_until([&] { return all_ended(c); }, seconds(60)));
  c.run_for(milliseconds(20));
  EXPECT_LE(c.scheduler().clock().request_timeouts(), 8u) << "each node may have a heartbeat under way";
}

}  // namespace
}  // namespace troupe::actors
