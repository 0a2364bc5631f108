// Events: their hash and file, and that every invariant fires on a sequence that breaks it, and only then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runtime/base/rng.hpp"
#include "runtime/sim/events/invariants.hpp"

namespace troupe::sim {
namespace {

using namespace happened;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr nanoseconds at(int64_t s) { return seconds(s); }

// Actors of the sequences below, in the order in which `checked` names them.
constexpr actor_number front = 1, rank_a = 2, rank_b = 3, director = 4, other_director = 5, target = 6;

std::string checked(const std::vector<event>& events, std::string* report = nullptr) {
  event_log log;
  for (const char* n : {"front/0", "decode/0", "decode/1", "director/0", "director/1", "storage/0"}) log.actor(n);
  invariant_checker check({.seed = 42, .command = "troupe sim --seed 42"});
  log.add(check);
  for (const auto& e : events) log.record(e);
  if (!check.broken()) return "";
  if (report) *report = check.report(log);
  return sentence_of(check.broken()->broken);
}

// What every sequence begins with: request 1 is there and has a place in attempt 0.
std::vector<event> then(std::vector<event> more) {
  std::vector<event> all{request_submitted(at(1), front, 1, 100, 10, 1, 0),
                         request_placed(at(1), front, 1, 0, pool_kind::decode, rank_a, 7)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct sequence {
  invariant broken;
  std::vector<event> good, bad;  // the bad one differs by what breaks it
};

TEST(sim_invariants, each_fires_on_what_breaks_it_and_only_then) {
  using i = invariant;
  const std::vector<sequence> table{
      {i::pages_add_up,
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), page_account(at(3), rank_a, 5, 8)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), page_account(at(3), rank_a, 6, 8)})},
      {i::pages_add_up, then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 8)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 9)})},
      {i::pages_add_up,
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), pages_given_back(at(3), rank_a, 1, 3)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), pages_given_back(at(3), rank_a, 1, 4)})},
      {i::owners_live,
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3),
             request_ended(at(3), front, 1, request_end::cancelled, 0), page_account(at(63), rank_a, 5, 8)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3),
             request_ended(at(3), front, 1, request_end::cancelled, 0), page_account(at(64), rank_a, 5, 8)})},
      {i::owners_live, then({pool_opened(at(2), rank_a, 8), page_account(at(3), rank_a, 8, 8)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 99, 1), page_account(at(3), rank_a, 7, 8)})},
      {i::transfers_keep_pages,
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), transfer_began(at(3), rank_a, 70, 1, 2),
             pages_given_back(at(3), rank_a, 1, 1), transfer_ended(at(4), rank_a, 70, 99, true),
             pages_given_back(at(4), rank_a, 1, 2)}),
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), transfer_began(at(3), rank_a, 70, 1, 2),
             pages_given_back(at(3), rank_a, 1, 2)})},
      {i::transfers_keep_pages,
       then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), transfer_began(at(3), rank_a, 70, 1, 3)}),
       then(
           {pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3), transfer_began(at(3), rank_a, 70, 1, 4)})},
      {i::one_decode_owner,
       then(
           {decode_owned(at(2), rank_a, 1, 0), decode_dropped(at(3), rank_a, 1, 0), decode_owned(at(3), rank_b, 1, 0)}),
       then({decode_owned(at(2), rank_a, 1, 0), decode_owned(at(3), rank_b, 1, 0)})},
      {i::one_decode_owner,
       then({decode_owned(at(2), rank_a, 1, 0), request_placed(at(3), front, 1, 1, pool_kind::decode, rank_b, 8),
             decode_owned(at(3), rank_b, 1, 1), request_tokens(at(4), front, 1, 1, 0, 2)}),
       then({decode_owned(at(2), rank_a, 1, 0), request_placed(at(3), front, 1, 1, pool_kind::decode, rank_b, 8),
             decode_owned(at(3), rank_b, 1, 1), request_tokens(at(4), front, 1, 0, 0, 2)})},
      {i::one_decode_owner, then({request_placed(at(3), front, 1, 1, pool_kind::decode, rank_b, 8)}),
       then({request_placed(at(3), front, 1, 1, pool_kind::decode, rank_b, 8),
             request_placed(at(3), front, 1, 0, pool_kind::decode, rank_b, 8)})},
      {i::ends_once, then({request_ended(at(3), front, 1, request_end::finished, 0), run_ended(at(4), true)}),
       then({request_ended(at(3), front, 1, request_end::finished, 0),
             request_ended(at(4), front, 1, request_end::failed, 0)})},
      {i::ends_once, then({run_ended(at(4), false)}), then({run_ended(at(4), true)})},
      {i::ends_once,
       then({request_tokens(at(2), front, 1, 0, 0, 1), request_ended(at(3), front, 1, request_end::finished, 1)}),
       then({request_ended(at(3), front, 1, request_end::finished, 0), request_tokens(at(4), front, 1, 0, 0, 1)})},
      {i::ends_once, then({request_submitted(at(2), front, 2, 1, 1, 0, 0)}),
       then({request_submitted(at(2), front, 1, 1, 1, 0, 0)})},
      {i::tokens_in_order, then({request_tokens(at(2), front, 1, 0, 0, 3), request_tokens(at(3), front, 1, 0, 3, 2)}),
       then({request_tokens(at(2), front, 1, 0, 0, 3), request_tokens(at(3), front, 1, 0, 2, 2)})},
      {i::tokens_in_order, then({request_tokens(at(2), front, 1, 0, 0, 1)}),
       then({request_tokens(at(2), front, 1, 0, 1, 1)})},
      {i::tokens_in_order,
       then({request_tokens(at(2), front, 1, 0, 0, 3), request_ended(at(3), front, 1, request_end::finished, 3)}),
       then({request_tokens(at(2), front, 1, 0, 0, 3), request_ended(at(3), front, 1, request_end::finished, 4)})},
      {i::blocks_true, {block_served(at(1), rank_a, 5, 5, 7, 7, 100)}, {block_served(at(1), rank_a, 5, 6, 7, 7, 100)}},
      {i::blocks_true, {block_served(at(1), rank_a, 5, 5, 7, 7, 100)}, {block_served(at(1), rank_a, 5, 5, 7, 8, 100)}},
      {i::leases_unexpired,
       {lease_granted(at(1), rank_a, 7, front, at(10)), lease_renewed(at(9), rank_a, 7, at(20)),
        lease_used(at(20), rank_a, 7)},
       {lease_granted(at(1), rank_a, 7, front, at(10)), lease_used(at(11), rank_a, 7)}},
      {i::leases_unexpired,
       {lease_granted(at(1), rank_a, 7, front, at(10)), lease_used(at(2), rank_a, 7)},
       {lease_granted(at(1), rank_a, 7, front, at(10)), lease_used(at(2), rank_b, 7)}},
      {i::leases_unexpired,
       {lease_granted(at(1), rank_a, 7, front, at(10))},
       {lease_granted(at(1), rank_a, 7, front, at(10)), lease_renewed(at(11), rank_a, 7, at(30))}},
      {i::experts_live,
       {expert_account(at(1), rank_a, 3, 2), step(at(2), rank_b, 4, pool_kind::decode, at(1), at(1), 1, 1),
        expert_account(at(3), rank_a, 3, 0), step(at(4), rank_a, 3, pool_kind::decode, at(1), at(1), 1, 1)},
       {expert_account(at(1), rank_a, 3, 2), step(at(4), rank_a, 3, pool_kind::decode, at(1), at(1), 1, 1)}},
      {i::epochs_grow,
       {epoch_seen(at(1), front, epoch_kind::cluster, 0, 5, 1), epoch_seen(at(2), front, epoch_kind::group, 0, 1, 1),
        epoch_seen(at(3), rank_a, epoch_kind::cluster, 0, 4, 1),
        epoch_seen(at(4), front, epoch_kind::cluster, 0, 4, 2)},
       {epoch_seen(at(1), front, epoch_kind::cluster, 0, 5, 1),
        epoch_seen(at(2), front, epoch_kind::cluster, 0, 4, 1)}},
      {i::epochs_grow,
       {leader(at(1), director, 3), leader(at(2), other_director, 4)},
       {leader(at(1), director, 3), leader(at(2), other_director, 2)}},
      {i::one_leader,
       {leader(at(1), director, 3), leader(at(2), director, 3)},
       {leader(at(1), director, 3), leader(at(2), other_director, 3)}},
      {i::queues_bounded, {queue_length(at(1), rank_a, 1, 8, 8)}, {queue_length(at(1), rank_a, 1, 9, 8)}},
      {i::entries_have_shards,
       {shard_written(at(1), target, 1, 2, 0), shard_written(at(1), target, 1, 2, 1),
        extent_indexed(at(2), target, 1, 2, 2)},
       {shard_written(at(1), target, 1, 2, 0), shard_written(at(1), target, 1, 2, 0),
        extent_indexed(at(2), target, 1, 2, 2)}},
      {i::serves_again,
       then({faults_over(at(10), at(5)), request_submitted(at(11), front, 2, 1, 1, 0, 0),
             request_ended(at(14), front, 2, request_end::finished, 0), queue_length(at(99), front, 0, 0, 1)}),
       then({faults_over(at(10), at(5)), request_submitted(at(11), front, 2, 1, 1, 0, 0),
             request_ended(at(14), front, 1, request_end::finished, 0), queue_length(at(99), front, 0, 0, 1)})},
      {i::serves_again,
       then({faults_over(at(10), at(5)), request_ended(at(14), front, 1, request_end::finished, 0),
             queue_length(at(99), front, 0, 0, 1)}),
       then({faults_over(at(10), at(5)), queue_length(at(15), front, 0, 0, 1), queue_length(at(16), front, 0, 0, 1)})},
  };
  std::vector<bool> seen(invariants);
  for (size_t k = 0; k < table.size(); ++k) {
    EXPECT_EQ(checked(table[k].good), "") << k;
    EXPECT_EQ(checked(table[k].bad), sentence_of(table[k].broken)) << k;
    seen[static_cast<size_t>(table[k].broken)] = true;
  }
  for (size_t k = 0; k < invariants; ++k) EXPECT_TRUE(seen[k]) << sentence_of(static_cast<invariant>(k));
}

TEST(sim_invariants, a_report_says_how_it_came_and_how_to_see_it_again) {
  std::string report;
  checked(then({decode_owned(at(2), rank_a, 1, 0), decode_owned(at(3), rank_b, 1, 0)}), &report);
  for (const char* words :
       {"seed 42", "3.000000000 s", "at most one decode owner", "attempt 0 of request 1 has a second decode owner",
        "2.000000000 s decode/0 decode_owned: request 1, attempt 0", "decode/1 decode_owned",
        "again: troupe sim --seed 42"})
    EXPECT_THAT(report, HasSubstr(words));
}

// A pool that is opened again forgets owners and readers: its process was started anew.
TEST(sim_invariants, a_new_life_of_a_rank_begins_with_free_pages) {
  EXPECT_EQ(checked(then({pool_opened(at(2), rank_a, 8), pages_taken(at(2), rank_a, 1, 3),
                          transfer_began(at(3), rank_a, 70, 1, 2), pool_opened(at(4), rank_a, 8),
                          page_account(at(5), rank_a, 8, 8), transfer_ended(at(6), rank_a, 70, 0, false),
                          pages_taken(at(7), rank_a, 1, 2), pages_given_back(at(8), rank_a, 1, 2)})),
            "");
}

TEST(sim_event_log, the_hash_depends_on_everything_and_on_the_order) {
  const auto a = request_tokens(at(1), front, 1, 0, 0, 3), b = request_tokens(at(1), front, 1, 0, 3, 2);
  const auto hash = [](std::vector<event> events) {
    event_hash h;
    for (const auto& e : events) h.add(e);
    return h.value();
  };
  EXPECT_NE(hash({a, b}), hash({b, a}));
  EXPECT_NE(hash({a}), hash({a, a}));
  auto c = a;
  c.actor = rank_a;
  EXPECT_NE(hash({a}), hash({c}));
  c = a, c.at += 1;
  EXPECT_NE(hash({a}), hash({c}));
  c = a, c.v[3] = 4;
  EXPECT_NE(hash({a}), hash({c}));
  // A figure that must not change from build to build.
  EXPECT_EQ(hash({a, b}), 0xeb756b74424694a5u);
}

TEST(sim_event_log, keeps_the_last_events_of_each_actor) {
  event_log log(3);
  const auto x = log.actor("x"), y = log.actor("y");
  EXPECT_EQ(log.actor("x"), x);
  for (uint64_t k = 0; k < 10; ++k) log.record(queue_length(at(static_cast<int64_t>(k)), k % 2 ? x : y, 0, k, 99));
  const auto last = log.last(x);
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[0].v[1], 5u);
  EXPECT_EQ(last[2].v[1], 9u);
  const auto story = log.story({x, y, x}, 4);
  ASSERT_EQ(story.size(), 4u);
  EXPECT_EQ(story.back(), "9.000000000 s x queue_length: queue 0, length 9, bound 99");
  EXPECT_THAT(story[0], HasSubstr("6.0"));
}

std::string recorded(event_log& log, std::vector<event>* events = nullptr) {
  std::ostringstream out;
  event_writer writer(out, log, 42);
  log.add(writer);
  const auto x = log.actor("front/0"), y = log.actor("decode/0");
  rng random(3);
  for (int64_t k = 0; k < 200; ++k) {
    event e = request_placed(at(k), x, random.next(), 1, pool_kind::decode, y, 9);
    if (k % 3 == 0) e = lease_used(at(k), y, random.next());
    if (events) events->push_back(e);
    log.record(e);
  }
  EXPECT_TRUE(writer.finish());
  return out.str();
}

TEST(sim_event_log, a_file_gives_back_what_was_written) {
  event_log log;
  std::vector<event> events;
  const auto bytes = recorded(log, &events);
  const auto r = read_events(bytes, "run.events");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->events, events);
  EXPECT_EQ(r->seed, 42u);
  EXPECT_EQ(r->hash, log.hash());
  EXPECT_EQ(r->names.at(1), "front/0");
  EXPECT_EQ(r->names.at(2), "decode/0");
}

TEST(sim_event_log, a_damaged_file_is_refused) {
  event_log log;
  const auto bytes = recorded(log);
  for (size_t n = 0; n < bytes.size(); n += n < 100 ? 1 : 37) {
    const auto r = read_events(std::string_view(bytes).substr(0, n), "cut");
    ASSERT_FALSE(r) << n;
    EXPECT_EQ(r.error().code, errc::corrupt);
  }
  EXPECT_FALSE(read_events(bytes + bytes, "twice"));
  rng random(17);
  for (int k = 0; k < 3'000; ++k) {
    auto damaged = bytes;
    for (uint64_t i = 0; i <= random.below(3); ++i)
      damaged[random.below(damaged.size())] = static_cast<char>(random.next());
    if (damaged == bytes) continue;
    const auto r = read_events(damaged, "damaged");
    // Names are not hashed; everything else is.
    if (r) {
      EXPECT_EQ(r->hash, log.hash()) << k;
    }
  }
}

}  // namespace
}  // namespace troupe::sim
