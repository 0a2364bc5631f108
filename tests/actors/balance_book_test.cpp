// The balancer's book by hand: what it chooses, what it forgets, and what it never counts twice.
#include <gtest/gtest.h>

#include "actors/serving/balance_book.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

actor_key rank_key(uint32_t i) { return {node_number{100 + i}, incarnation{100 + i}, "r/" + std::to_string(i)}; }

struct desk {
  explicit desk(role what, uint32_t ranks, uint32_t slots = 4, uint32_t queue = 4) : book(what), what(what) {
    for (uint32_t i = 0; i < ranks; ++i) seats[rank_key(i)] = {what, "group-" + std::to_string(i), true};
    book.follow(seats);
    for (uint32_t i = 0; i < ranks; ++i) answer(i, 0, slots, queue);
  }
  void answer(uint32_t rank, uint32_t requests, uint32_t slots = 4, uint32_t queue = 4) {
    rank_load m;
    m.requests = requests;
    m.slots = slots;
    m.queue_limit = queue;
    m.page_tokens = 16;
    m.pages = 32;
    book.load(rank_key(rank), m);
  }
  place_reply place(uint64_t front, uint64_t lease, place_wish wish, std::vector<actor_key> avoid = {}) {
    return book.place({{}, {}, {{}, incarnation{front}, "f"}, lease_number{lease}, wish, std::move(avoid)}, now);
  }
  void end(uint64_t front, uint64_t lease, errc why = {}, uint32_t retry = 0) {
    book.end({{}, {}, {{}, incarnation{front}, "f"}, lease_number{lease}, why, retry}, now);
  }
  std::vector<uint32_t> leases() const {
    balancer_report r;
    book.describe(r);
    std::vector<uint32_t> out;
    for (auto& x : r.ranks) out.push_back(x.leases);
    return out;
  }
  using counts = std::vector<uint32_t>;

  std::map<actor_key, scheduler_seat> seats;
  balance_book book;
  role what;
  nanoseconds now{seconds(1)};
};

TEST(balance_book, spreads_what_several_fronts_place_and_adds_it_up) {
  for (auto what : {role::prefill, role::decode}) {
    desk d(what, 3);
    const place_wish wish{100, 0, 64, 32};
    for (uint64_t i = 1; i <= 6; ++i) EXPECT_TRUE(d.place(1 + i % 2, i, wish).outcome.ok());
    EXPECT_EQ(d.leases(), (desk::counts{2, 2, 2}));
    // One front's word replaces nothing of the other's.
    d.book.update({{}, {}, {{}, incarnation{1}, "f"}, {{lease_number{2}, rank_key(0), wish}}, {}}, d.now);
    EXPECT_EQ(d.book.leases(), 4u);
    d.book.drop(incarnation{2});
    EXPECT_EQ(d.leases(), (desk::counts{1, 0, 0}));
    d.end(1, 2);
    d.end(1, 2);
    EXPECT_EQ(d.leases(), (desk::counts{0, 0, 0}));
  }
}

TEST(balance_book, looks_at_work_and_not_at_requests) {
  desk d(role::prefill, 2, 64, 64);
  EXPECT_EQ(d.place(1, 1, {4000, 0, 0, 0}).target, rank_key(0));
  for (uint64_t i = 2; i < 8; ++i) EXPECT_EQ(d.place(1, i, {100, 0, 0, 0}).target, rank_key(1)) << i;
  // What the cache brings is not work.
  desk c(role::prefill, 2, 64, 64);
  c.place(1, 1, {64, 4000, 0, 0});
  c.place(1, 2, {3000, 0, 0, 0});
  EXPECT_EQ(c.place(1, 3, {500, 0, 0, 0}).target, rank_key(0));
}

TEST(balance_book, the_same_lease_is_given_once) {
  desk d(role::decode, 2);
  const auto first = d.place(1, 7, {0, 0, 64, 0});
  EXPECT_EQ(d.place(1, 7, {0, 0, 64, 0}).target, first.target);
  EXPECT_EQ(d.book.leases(), 1u);
}

TEST(balance_book, what_is_asked_for_stays_over_an_update) {
  desk d(role::decode, 2);
  d.place(1, 1, {0, 0, 64, 0});
  d.place(1, 2, {0, 0, 64, 0});
  d.book.update({{}, {}, {{}, incarnation{1}, "f"}, {}, {lease_number{2}}}, d.now);
  EXPECT_EQ(d.leases(), (desk::counts{0, 1}));
}

TEST(balance_book, fronts_that_are_not_heard_lose_their_leases) {
  desk d(role::decode, 2);
  d.place(1, 1, {0, 0, 64, 0});
  d.now += seconds(6);
  d.place(2, 1, {0, 0, 64, 0});
  d.now += seconds(5);
  EXPECT_EQ(d.book.expire(d.now - seconds(10)), std::vector<incarnation>{incarnation{1}});
  EXPECT_EQ(d.leases(), (desk::counts{0, 1}));
  EXPECT_TRUE(d.book.expire(d.now - seconds(10)).empty());
}

TEST(balance_book, a_full_pool_says_when_to_try_again) {
  for (auto what : {role::prefill, role::decode}) {
    desk d(what, 2, 1, 1);
    for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(d.place(1, i, {10, 0, 10, 1}).outcome.ok()) << i;
    auto r = d.place(1, 5, {10, 0, 10, 1});
    EXPECT_EQ(r.outcome.code, errc::exhausted);
    EXPECT_GT(r.retry_after_ms, 0u);
    d.end(1, 3);
    EXPECT_TRUE(d.place(1, 5, {10, 0, 10, 1}).outcome.ok());
  }
}

TEST(balance_book, a_rank_that_refused_is_left_alone_for_a_while) {
  for (auto what : {role::prefill, role::decode}) {
    desk d(what, 2);
    EXPECT_EQ(d.place(1, 1, {10, 0, 10, 1}).target, rank_key(0));
    d.end(1, 1, errc::exhausted, 100);
    for (uint64_t i = 2; i < 5; ++i) EXPECT_EQ(d.place(1, i, {10, 0, 10, 1}).target, rank_key(1));
    d.now += milliseconds(101);
    EXPECT_EQ(d.place(1, 5, {10, 0, 10, 1}).target, rank_key(0));
  }
}

TEST(balance_book, decodes_where_there_is_room_and_queues_only_when_there_is_none) {
  desk d(role::decode, 2, 2, 8);
  const auto at = [&](uint64_t lease, uint32_t kv) { return d.place(1, lease, {0, 0, kv, 0}).target; };
  EXPECT_EQ(at(1, 400), rank_key(0));
  EXPECT_EQ(at(2, 16), rank_key(1));
  EXPECT_EQ(at(3, 300), rank_key(1)) << "512 tokens of pages: it does not fit beside the first";
  EXPECT_EQ(at(4, 16), rank_key(0)) << "the slots of the other are taken";
  EXPECT_EQ(at(5, 16), rank_key(1)) << "waits where less is";
}

TEST(balance_book, a_rank_that_left_is_never_chosen_and_one_that_comes_back_counts_what_is_held_on_it) {
  desk d(role::decode, 2);
  d.place(1, 1, {0, 0, 64, 0});
  auto all = d.seats;
  d.seats.erase(rank_key(0));
  d.book.follow(d.seats);
  for (uint64_t i = 2; i < 6; ++i) EXPECT_EQ(d.place(1, i, {0, 0, 16, 0}).target, rank_key(1));
  d.seats[rank_key(1)].ready = false;
  d.book.follow(d.seats);
  EXPECT_EQ(d.place(1, 6, {0, 0, 16, 0}).outcome.code, errc::unavailable);
  d.book.follow(all);
  EXPECT_EQ(d.leases(), (desk::counts{1, 4}));
  EXPECT_EQ(d.place(1, 7, {0, 0, 16, 0}, {rank_key(0)}).target, rank_key(1)) << "a front may rule one out";
  d.book.clear();
  EXPECT_EQ(d.leases(), (desk::counts{0, 0}));
}

TEST(balance_book, counts_requests_that_nobody_here_has_placed) {
  desk d(role::decode, 2);
  d.answer(0, 3);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(d.place(1, i, {0, 0, 16, 0}).target, rank_key(1)) << i;
  d.answer(0, 0);
  EXPECT_EQ(d.place(1, 4, {0, 0, 16, 0}).target, rank_key(0));
}

}  // namespace
}  // namespace troupe::actors
