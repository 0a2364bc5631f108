// seat_choice, group_patience, silence and role_move: rows.
#include <gtest/gtest.h>

#include "policies/group_patience.hpp"
#include "policies/role_move.hpp"
#include "policies/seat_choice.hpp"
#include "policies/silence.hpp"

namespace troupe::policies {
namespace {

TEST(group_patience, table) {
  struct row {
    const char* rule;
    int64_t waited_ms;
    bool was_ready;
    uint32_t views;
    group_verdict verdict;
    int64_t wait_ms;
  };
  const row table[] = {
      {"a new view has its patience", 9'999, false, 0, group_verdict::wait, 1},
      {"then the same ranks get another", 10'000, false, 0, group_verdict::next_view, 0},
      {"a step that failed waits only for the grace", 1'000, true, 0, group_verdict::next_view, 0},
      {"but for that", 999, true, 0, group_verdict::wait, 1},
      {"the grace is for the first time only", 9'000, true, 1, group_verdict::wait, 1'000},
      {"the first further view has the plain patience", 10'000, false, 1, group_verdict::next_view, 0},
      {"then it doubles", 19'999, false, 2, group_verdict::wait, 1},
      {"and doubles", 39'999, false, 3, group_verdict::wait, 1},
      {"the last one is waited for, too", 79'999, false, 4, group_verdict::wait, 1},
      {"then the group has failed", 80'000, false, 4, group_verdict::failed, 0},
  };
  for (const auto& r : table) {
    group_patience_input in;
    in.since_ms = 5, in.now_ms = 5 + r.waited_ms, in.was_ready = r.was_ready, in.views = r.views;
    const auto plan = plan_group_patience(in);
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->verdict, r.verdict) << r.rule << ": " << plan->reason;
    EXPECT_EQ(plan->wait_ms, r.wait_ms) << r.rule;
  }
  EXPECT_FALSE(plan_group_patience({.now_ms = 1, .since_ms = 2}));
  EXPECT_FALSE(plan_group_patience({.now_ms = 1, .views = 5}));
  EXPECT_FALSE(plan_group_patience({.now_ms = 1, .patience_ms = 0}));
  EXPECT_FALSE(plan_group_patience({.now_ms = 1, .grace_ms = 0}));
  EXPECT_FALSE(plan_group_patience({.now_ms = 1, .max_views = 17}));
}

TEST(seat_choice, table) {
  struct row {
    const char* rule;
    std::vector<uint64_t> holders;  // of front/0, decode-0/0, decode-0/1
    std::vector<std::string> holders_wanted;
    std::string wanted;
    int take, clear;  // -1: none
  };
  const row table[] = {
      {"any seat: the first empty one that needs no name", {0, 0, 0}, {"", "", ""}, "", 1, -1},
      {"no front for a node that asked for nothing", {0, 7, 8}, {"", "", ""}, "", -1, -1},
      {"a front for one that asked for it", {0, 7, 8}, {"", "", ""}, "front/0", 0, -1},
      {"by its group", {0, 7, 0}, {"", "", ""}, "decode-0", 2, -1},
      {"by its name", {0, 0, 0}, {"", "", ""}, "decode-0/1", 2, -1},
      {"a holder that took any seat goes to another", {0, 0, 8}, {"", "", ""}, "decode-0/1", 2, 2},
      {"also one that asked for the group", {0, 0, 8}, {"", "", "decode-0"}, "decode-0/1", 2, 2},
      {"one that has no other stays", {0, 7, 8}, {"", "", ""}, "decode-0/1", -1, -1},
      {"a front seat is no other seat for it", {0, 7, 8}, {"", "decode-0/0", ""}, "decode-0/1", -1, -1},
      {"one that asked by name stays", {0, 0, 8}, {"", "", "decode-0/1"}, "decode-0/1", -1, -1},
      {"nobody is pushed out for a group", {0, 7, 8}, {"", "", ""}, "decode-0", -1, -1},
      {"an unknown seat", {0, 0, 0}, {"", "", ""}, "none", -1, -1},
  };
  for (const auto& r : table) {
    seat_choice_input in;
    in.wanted = r.wanted;
    const char* names[] = {"front/0", "decode-0/0", "decode-0/1"};
    const char* groups[] = {"front", "decode-0", "decode-0"};
    for (size_t i = 0; i < 3; ++i) in.seats.push_back({names[i], groups[i], i == 0, r.holders[i], r.holders_wanted[i]});
    const auto c = choose_seat(in);
    ASSERT_TRUE(c) << r.rule;
    EXPECT_EQ(c->take ? static_cast<int>(*c->take) : -1, r.take) << r.rule << ": " << c->reason;
    EXPECT_EQ(c->clear ? static_cast<int>(*c->clear) : -1, r.clear) << r.rule << ": " << c->reason;
  }
  EXPECT_FALSE(choose_seat({{{"", "g"}}, ""}));
  EXPECT_FALSE(choose_seat({{{"a", "g"}, {"a", "g"}}, ""}));
}

TEST(silence, table) {
  const auto beats = [](int n, double gap) {
    std::vector<double> out;
    for (int i = 0; i < n; ++i) out.push_back(1000 + gap * i);
    return out;
  };
  const struct {
    const char* rule;
    std::vector<double> heartbeats;
    double silent_ms;
    bool lost;
  } table[] = {
      {"a regular node, not before the limit", beats(40, 500), 3000, false},
      {"and then at once", beats(40, 500), 3001, true},
      {"who has just joined is regular", beats(1, 0), 3001, true},
      {"who was late all the time has longer", beats(40, 2500), 4000, false},
      {"but not for ever", beats(40, 2500), 9001, true},
      {"three times the limit is the end, however late it was", beats(40, 8900), 9001, true},
  };
  for (const auto& row : table) {
    const auto plan = plan_silence({row.heartbeats, row.silent_ms, 500, 3000});
    ASSERT_TRUE(plan) << row.rule << ": " << plan.error().message;
    EXPECT_EQ(plan->lost, row.lost) << row.rule << ": " << plan->reason;
  }
  EXPECT_FALSE(plan_silence({{}, 1, 500, 3000})) << "no heartbeat";
  EXPECT_FALSE(plan_silence({{2, 1}, 4000, 500, 3000})) << "not ascending";
  EXPECT_FALSE(plan_silence({{1}, -1, 500, 3000}));
  EXPECT_FALSE(plan_silence({{1}, 1, 500, 1400})) << "less than three intervals";
}

TEST(role_move, table) {
  const role_load idle{2, 1, 4, 0}, busy{2, 1, 4, 1.9}, light{2, 1, 4, 0.1};
  using index = std::optional<uint32_t>;
  const struct {
    const char* rule;
    std::vector<role_load> roles;
    uint32_t spares;
    std::vector<uint32_t> movable;
    index to, from;
  } table[] = {
      {"from the idle to the busy", {light, busy}, 0, {2, 2}, 1, 0},
      {"the other way", {busy, light}, 0, {2, 2}, 0, 1},
      {"a spare goes first", {light, busy}, 1, {2, 2}, 1, {}},
      {"nobody needs more, nobody moves", {idle, light}, 0, {2, 2}, {}, {}},
      {"nor to a spare's joy", {idle, idle}, 3, {2, 2}, {}, {}},
      {"who was started for a seat keeps it", {light, busy}, 0, {0, 2}, {}, {}},
      {"both are busy, so nothing is to be had", {busy, busy}, 0, {2, 2}, {}, {}},
      {"a role that must grow need not wait for one that has just changed",
       {{2, 1, 4, 0.1, 0, 1}, busy},
       0,
       {2, 2},
       1,
       0},
  };
  for (const auto& row : table) {
    role_move_input in;
    in.plan.roles = row.roles;
    in.plan.units = row.spares;
    for (const auto& r : row.roles) in.plan.units += r.units;
    in.spares = row.spares;
    in.movable = row.movable;
    const auto move = plan_role_move(in);
    ASSERT_TRUE(move) << row.rule << ": " << move.error().message;
    EXPECT_EQ(move->to, row.to) << row.rule << ": " << move->reason;
    EXPECT_EQ(move->from, row.from) << row.rule << ": " << move->reason;
  }
  EXPECT_FALSE(plan_role_move({{{light, busy}, 4}, 0, {2}})) << "one entry per role";
}

}  // namespace
}  // namespace troupe::policies
