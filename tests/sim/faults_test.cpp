// Fault plans: files, checks, what swarm draws, and the machine that says when faults are due.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/sim/faults/driver.hpp"
#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

// 1 director, 2 fronts, 2 prefill, 4 decode, 3 storage: the twelve nodes of the swarm runs.
const cluster_shape twelve{{0, 1, 2, 2, 4, 3, 0}};

fault_plan parsed(const std::string& text) {
  auto p = parse_fault_plan(text, "plan.yaml");
  EXPECT_TRUE(p) << p.error().message;
  return p ? *p : fault_plan{};
}

const char* const every_kind = R"(name: every kind
why: "two lines,\nand a colon: here"
seed: 9
recover_within: 30s
faults:
  - {name: first, kind: kill, target: storage/2, at: 30s, lasts: 20s, silent: true}
  - {kind: freeze, target: decode/any, when: {submitted: 100}, after: 1s, lasts: 5s}
  - {kind: slow, target: prefill/busiest, when: {finished: 7}, factor: 4, lasts: 1m}
  - {kind: partition, target: front/0, peer: decode/all, one_way: true, at: 1s, lasts: 3s}
  - {kind: flap, target: decode/1, peer: decode/2, at: 1s, lasts: 3s, period: 100ms}
  - {kind: disk_torn, target: storage/0, at: 0s, lasts: 1s, permille: 100}
  - {kind: disk_lost, target: storage/0, at: 2s, lasts: 1s}
  - {kind: disk_rot, target: storage/any, at: 3s, permille: 5}
  - {kind: disk_full, target: storage/1, when: {ended: first}, lasts: 1s}
  - {kind: disk_slow, target: storage/1, when: {began: first}, after: 2s, lasts: 1s}
  - {kind: power_loss, target: any, at: 9s, lasts: 1s}
  - {kind: step_failure, target: any, when: {busy: decode, requests: 64}, lasts: 1s}
  - {kind: director_loss, at: 9s, lasts: 1s}
  - {kind: coordination_outage, at: 9s, lasts: 1s}
  - {kind: rolling_restart, target: storage/all, at: 60s, period: 5s}
  - {kind: clock_jump, target: front/1, at: 5s, jump: -500ms}
)";

TEST(sim_fault_plan, every_kind_is_read_and_printed) {
  const auto p = parsed(every_kind);
  ASSERT_EQ(p.faults.size(), fault_kinds);
  std::set<fault_kind> kinds;
  for (const auto& f : p.faults) kinds.insert(f.kind);
  EXPECT_EQ(kinds.size(), fault_kinds);
  EXPECT_EQ(p.seed, 9u);
  EXPECT_EQ(p.recover_within, seconds(30));
  EXPECT_EQ(p.faults[0].name, "first");
  EXPECT_TRUE(p.faults[0].silent);
  EXPECT_EQ(p.faults[1].name, "freeze-1");
  EXPECT_EQ(p.faults[1].when.count, 100u);
  EXPECT_EQ(p.faults[1].when.at, seconds(1));
  EXPECT_EQ(p.faults[2].target.how, fault_target::pick::busiest);
  EXPECT_EQ(format_target(p.faults[3].peer), "decode/all");
  EXPECT_EQ(p.faults[15].jump_ns, -500'000'000);
  const auto ok = check_plan(p, twelve);
  EXPECT_TRUE(ok) << ok.error().message;
  EXPECT_EQ(parsed(print_fault_plan(p)), p) << print_fault_plan(p);
}

TEST(sim_fault_plan, mistakes_name_file_line_and_key) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "plan.yaml:1:1: the file is empty"},
      {"faults: [", "plan.yaml:"},
      {"fault: []", "plan.yaml:1:1: fault: unknown key; did you mean faults?"},
      {"faults: 3", "plan.yaml:1:9: faults: a list"},
      {"faults:\n  - kill", "plan.yaml:2:5: faults[0]: a fault is a map"},
      {"faults:\n  - {at: 1s}", "faults[0]: has no `kind`"},
      {"faults:\n  - {kind: kil, at: 1s}",
       "plan.yaml:2:12: faults[0].kind: 'kil' is no kind of fault; did you mean kill?"},
      {"faults:\n  - {kind: kill}", "either `at` (a time) or `when`"},
      {"faults:\n  - {kind: kill, at: 1s, when: {finished: 1}}", "either `at` (a time) or `when`"},
      {"faults:\n  - {kind: kill, at: 5}", "faults[0].at: "},
      {"faults:\n  - {kind: kill, at: 1s, factor: 3}", "faults[0].factor: kill has no such key"},
      {"faults:\n  - {kind: kill, at: 1s, lasst: 3s}", "faults[0].lasst: unknown key; did you mean lasts?"},
      {"faults:\n  - {kind: kill, at: 1s, target: store/3}", "faults[0].target: 'store' is no role"},
      {"faults:\n  - {kind: kill, at: 1s, target: 3}", "faults[0].target: '3' names no node"},
      {"faults:\n  - {kind: kill, at: 1s, at: 2s}", "faults[0].at: is given twice"},
      {"faults:\n  - {kind: kill, at: 1s, silent: maybe}", "faults[0].silent: 'maybe': true or false"},
      {"faults:\n  - {kind: kill, at: 1s, after: 1s}", "faults[0].after: belongs to `when`"},
      {"faults:\n  - {kind: kill, when: {requests: 1}}", "faults[0].when: a condition expected"},
      {"faults:\n  - {kind: kill, when: {submitted: 1, finished: 2}}", "these are two"},
      {"faults:\n  - {kind: kill, when: {submitted: -1}}", "faults[0].when.submitted: "},
      {"faults:\n  - {kind: kill, when: {busy: nobody}}", "faults[0].when.busy: 'nobody' is no role"},
      {"faults:\n  - {kind: slow, at: 1s, factor: 4294967296}", "faults[0].factor: 4294967296: at most"},
      {"faults:\n  - {name: a, kind: kill, at: 1s}\n  - {name: a, kind: kill, at: 1s}",
       "plan.yaml:3:5: faults[1].name: another"},
      {"seed: x", "plan.yaml:1:7: seed: "},
      {"seed:", "seed: has no value"},
  };
  for (const auto& [text, words] : rows) {
    const auto p = parse_fault_plan(text, "plan.yaml");
    ASSERT_FALSE(p) << text;
    EXPECT_THAT(p.error().message, HasSubstr(words)) << text;
  }
  EXPECT_EQ(load_fault_plan("/nonexistent.yaml").error().code, errc::io);
}

TEST(sim_fault_plan, must_fit_the_cluster) {
  const std::pair<const char*, const char*> rows[] = {
      {"{kind: kill, target: storage/3, at: 1s}", "storage/3: the cluster has 3 of them"},
      {"{kind: kill, target: encoder/any, at: 1s}", "encoder/any: the cluster has no such node"},
      {"{kind: disk_rot, target: decode/0, at: 1s}", "disk_rot cannot hit decode"},
      {"{kind: step_failure, target: storage/0, at: 1s}", "step_failure cannot hit storage"},
      {"{kind: kill, target: storage/all, at: 1s}", "one node expected"},
      {"{kind: rolling_restart, target: storage/1, at: 1s}", "takes a whole role"},
      {"{kind: rolling_restart, target: all, at: 1s}", "takes a whole role"},
      {"{kind: partition, target: front/0, peer: front/0, at: 1s}", "is the target itself"},
      {"{kind: partition, target: front/0, peer: any, at: 1s}", "peer: a node"},
      {"{kind: partition, target: director/0, peer: director/all, at: 1s}", "nobody but the target"},
      {"{kind: slow, target: front/0, factor: 1, at: 1s}", "factor: 2 to 1000"},
      {"{kind: disk_torn, target: storage/0, permille: 0, at: 1s}", "permille: 1 to 1000"},
      {"{kind: clock_jump, target: front/0, at: 1s}", "jump: a time other than 0"},
      {"{kind: kill, target: any, when: {began: nothing}}", "there is no fault called nothing"},
      {"{name: me, kind: kill, target: any, when: {began: me}}", "waits for itself"},
      {"{kind: kill, target: any, when: {busy: encoder, requests: 1}}", "the cluster has no encoder"},
      {"{name: a, kind: kill, target: any, at: 1s}\n  - {kind: kill, target: any, when: {ended: a}}", "a never ends"},
  };
  for (const auto& [text, words] : rows) {
    const auto ok = check_plan(parsed("faults:\n  - " + std::string(text)), twelve);
    ASSERT_FALSE(ok) << text;
    EXPECT_THAT(ok.error().message, HasSubstr(words)) << text;
  }
}

TEST(sim_fault_plan, those_that_come_with_troupe_are_good) {
  size_t files = 0;
  for (const auto& f : std::filesystem::directory_iterator(std::string(TROUPE_SOURCE_DIR) + "/configs/faults")) {
    const auto p = load_fault_plan(f.path());
    ASSERT_TRUE(p) << p.error().message;
    const auto ok = check_plan(*p, twelve);
    EXPECT_TRUE(ok) << f.path() << ": " << ok.error().message;
    EXPECT_FALSE(p->why.empty()) << f.path();
    ++files;
  }
  EXPECT_GE(files, 3u);
}

// Every action as "TIME WHAT NAME TARGET", polled at the times that the driver names.
std::vector<std::string> played(fault_driver& d, const fault_plan& p, nanoseconds until) {
  constexpr const char* names[] = {"begin", "end", "cut", "join", "next"};
  std::vector<std::string> out;
  for (;;) {
    const auto at = d.next();
    if (!at || *at > until) return out;
    for (const auto& a : d.due(*at))
      out.push_back(std::to_string(*at / milliseconds(1)) + " " + names[static_cast<size_t>(a.does)] + " " +
                    p.faults[a.index].name + " " + format_node(a.target));
  }
}

TEST(sim_fault_driver, begins_and_ends_at_times) {
  const auto p = parsed(
      "faults:\n"
      "  - {name: a, kind: kill, target: storage/2, at: 2s, lasts: 3s}\n"
      "  - {name: b, kind: flap, target: front/0, at: 1s, lasts: 250ms, period: 200ms}\n"
      "  - {name: c, kind: rolling_restart, target: front/all, at: 7s, period: 1s}\n"
      "  - {name: d, kind: disk_rot, target: storage/0, when: {ended: a}, after: 500ms}\n");
  fault_driver d(p, twelve);
  EXPECT_FALSE(d.over());
  EXPECT_EQ(played(d, p, minutes(1)),
            (std::vector<std::string>{"1000 begin b front/0", "1100 join b front/0", "1200 cut b front/0",
                                      "1250 end b front/0", "2000 begin a storage/2", "5000 end a storage/2",
                                      "5500 begin d storage/0", "7000 begin c front/0", "7000 next c front/0",
                                      "8000 next c front/1", "9000 end c front/0"}));
  EXPECT_TRUE(d.over());
  EXPECT_EQ(d.last_action(), seconds(9));
  EXPECT_EQ(d.outcomes()[3].ended, nanoseconds(milliseconds(5500)));
  // Nothing was seen of any of them.
  EXPECT_EQ(d.without_effect().size(), 4u);
  EXPECT_THAT(d.without_effect()[0], HasSubstr("fault a (kill of storage/2) had no effect"));
  EXPECT_FALSE(d.observe(0, fault_effect::slowed, seconds(3)));  // proves nothing about a kill
  EXPECT_TRUE(d.observe(0, fault_effect::process_down, seconds(3)));
  EXPECT_TRUE(d.observe(1, fault_effect::message_swallowed, seconds(3)));
  EXPECT_TRUE(d.observe(2, fault_effect::process_up, seconds(8)));
  EXPECT_THAT(d.without_effect()[0], HasSubstr("(1 of 2 times)"));  // one of the two fronts
  EXPECT_TRUE(d.observe(2, fault_effect::process_up, seconds(9)));
  EXPECT_EQ(d.without_effect().size(), 1u);
}

TEST(sim_fault_driver, conditions_arm_faults) {
  const auto p = parsed(
      "faults:\n"
      "  - {name: a, kind: kill, target: decode/busiest, when: {submitted: 10}, after: 1s, lasts: 1s}\n"
      "  - {name: b, kind: freeze, target: decode/any, when: {busy: decode, requests: 8}, lasts: 1s}\n"
      "  - {name: c, kind: kill, target: front/0, when: {finished: 99}}\n");
  fault_driver d(p, twelve);
  EXPECT_FALSE(d.next());
  d.requests_submitted(9);
  EXPECT_TRUE(d.due(seconds(1)).empty());
  d.requests_submitted(10);
  EXPECT_TRUE(d.due(seconds(2)).empty());
  EXPECT_EQ(d.next(), nanoseconds(seconds(3)));
  d.node_load({node_role::decode, 2}, 5);
  d.node_load({node_role::decode, 1}, 2);
  auto due = d.due(seconds(3));
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].target, (node_ref{node_role::decode, 2}));
  d.node_load({node_role::decode, 0}, 1);
  due = d.due(milliseconds(3500));
  ASSERT_EQ(due.size(), 1u);  // the busy one; the drawn target is not the one that is down
  EXPECT_EQ(due[0].index, 1u);
  EXPECT_NE(due[0].target, (node_ref{node_role::decode, 2}));
  d.due(minutes(1));
  EXPECT_TRUE(d.over());
  EXPECT_THAT(d.without_effect().back(), HasSubstr("fault c (kill) never began"));
}

TEST(sim_fault_driver, partitions_name_the_other_side) {
  const auto p = parsed(
      "faults:\n"
      "  - {kind: partition, target: front/0, peer: decode/all, at: 1s, lasts: 1s}\n"
      "  - {kind: partition, target: storage/1, at: 1s, lasts: 1s}\n");
  fault_driver d(p, twelve);
  const auto due = d.due(seconds(1));
  ASSERT_EQ(due.size(), 2u);
  EXPECT_EQ(due[0].peers.size(), 4u);
  EXPECT_EQ(due[1].peers.size(), 11u);
  for (const auto& n : due[1].peers) EXPECT_NE(n, due[1].target);
}

TEST(sim_swarm, draws_every_kind_within_its_rules) {
  std::map<fault_kind, int> kinds;
  size_t faults = 0;
  const uint64_t seeds = std::getenv("TROUPE_LONG") ? 10'000 : 300;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto p = draw_swarm(seed, twelve, minutes(2));
    ASSERT_EQ(p, draw_swarm(seed, twelve, minutes(2))) << seed;
    ASSERT_EQ(parsed(print_fault_plan(p)), p) << seed;
    faults += p.faults.size();
    fault_driver d(p, twelve);
    std::map<node_ref, int> down;
    int storage = 0;
    for (const auto& f : p.faults) ++kinds[f.kind];
    for (std::optional<nanoseconds> at; (at = d.next());) {
      ASSERT_LE(*at, seconds(92)) << seed;
      for (const auto& a : d.due(*at)) {
        const bool of_storage = a.target.role == node_role::storage;
        if (a.does == fault_action::what::begin) {
          ASSERT_EQ(down[a.target]++, 0) << "seed " << seed << ": " << format_node(a.target);
          storage += of_storage;
          ASSERT_LE(storage, 1) << seed;
        }
        const auto o = d.outcomes()[a.index];
        if (a.does == fault_action::what::end || o.ended == o.began) --down[a.target], storage -= of_storage;
      }
    }
    ASSERT_TRUE(d.over());
  }
  EXPECT_EQ(kinds.size(), fault_kinds);
  EXPECT_GT(faults, seeds * 3);
  EXPECT_LT(faults, seeds * 30);
  std::printf("%.1f faults a run\n", static_cast<double>(faults) / static_cast<double>(seeds));
  // A cluster without storage and with single nodes has what can hit it.
  const cluster_shape small{{0, 1, 1, 1, 1, 0, 0}};
  for (uint64_t seed = 1; seed <= 50; ++seed)
    for (const auto& f : draw_swarm(seed, small, seconds(10)).faults) EXPECT_NE(f.kind, fault_kind::disk_rot);
}

}  // namespace
}  // namespace troupe::sim
