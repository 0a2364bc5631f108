// Hand-over in the batch and the rank's books, by hand: every state of a transfer x every way to end it, and thousands
// of random aborts; afterwards no page, slot or place is left over, and tokens are right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "runtime/base/rng.hpp"
#include "tests/actors/batch_bench.hpp"

namespace troupe::actors::batch_handoff_cases {
namespace {

constexpr uint64_t victim = 3;

void crowd(bench& t) {
  t.add(1, 30, 25);
  t.add(victim, 50, 25, 1, 1, bench::ticket_of(victim, 50));
  t.add(4, 20, 25, 1, 1, bench::ticket_of(4, 20));
}

/// The fetches of `victim` and of 4, begun.
std::pair<uint64_t, uint64_t> begin(bench& t) {
  crowd(t);
  t.plan();
  EXPECT_EQ(t.fetching.size(), 2u);
  return t.fetching.size() == 2 ? std::pair{t.fetching[0], t.fetching[1]} : std::pair<uint64_t, uint64_t>{};
}

struct state {
  const char* name;
  std::function<void(bench&)> reach;
};

const state states[] = {
    {"waiting with a ticket", [](bench& t) { crowd(t); }},
    {"asking", [](bench& t) { begin(t); }},
    {"pulling",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.pull(b);
     }},
    {"too slow, still pulling",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.too_slow(a);
     }},
    {"here, not planned",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.arrive(a);
     }},
    {"here, its plan is out",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.arrive(a);
       t.step();
       t.plan();
     }},
    {"did not come whole",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.arrive(a, false);
     }},
    {"decoding after the import",
     [](bench& t) {
       auto [a, b] = begin(t);
       t.pull(a);
       t.arrive(a);
       for (int i = 0; i < 8; ++i) {
         t.plan();
         t.step();
       }
     }},
};

void fail_step(bench& t) {
  t.peer_missing = true;
  t.plan();
  while (t.b.plans_out() > 0 && t.step()) {
  }
  t.peer_missing = false;
  (void)t.engine->regroup(nullptr, {});
}

struct ending {
  const char* name;
  std::function<void(bench&)> act;
};

const ending endings[] = {
    {"nothing", [](bench&) {}},
    {"cancel",
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"cancel twice",
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
       t.orders();
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"newer attempt", [](bench& t) { EXPECT_TRUE(t.add(victim, 60, 25, 2).outcome.ok()); }},
    {"front gone", [](bench& t) { t.b.drop_front(1); }},
    {"everything failed", [](bench& t) { t.b.fail_all(errc::peer_lost, "test"); }},
    {"step fails", fail_step},
    {"step fails, then cancel",
     [](bench& t) {
       fail_step(t);
       t.b.cancel({1, request_number{victim}, 1});
     }},
    {"cancel, then step fails",
     [](bench& t) {
       t.b.cancel({1, request_number{victim}, 1});
       fail_step(t);
     }},
};

/// Everything that is under way ends, then everything that is left finishes.
void settle(bench& t) {
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) {
      t.plan();
      t.step();
    }
    for (uint64_t n : std::vector<uint64_t>(t.fetching)) {
      auto* f = t.book->find(n);
      if (!f) {
        std::erase(t.fetching, n);
        continue;
      }
      if (f->at == transfer_book::incoming::stage::asking) t.pull(n);
      if (f->at == transfer_book::incoming::stage::pulling) t.arrive(n);
    }
  }
  t.finish();
}

TEST(batch_handoff, every_state_times_every_end) {
  for (const auto& s : states)
    for (const auto& e : endings) {
      SCOPED_TRACE(std::string(s.name) + " / " + e.name);
      bench t(role::decode, 48, 16, 3);
      s.reach(t);
      e.act(t);
      settle(t);
      int ends = 0;
      for (auto& i : t.items_of(victim)) ends += i.last();
      EXPECT_LE(ends, 1);
      if (std::string(e.name) == "nothing" || std::string(e.name) == "step fails") {
        expect_tokens(t, victim, 51, 24);
        expect_tokens(t, 4, 21, 24);
        expect_tokens(t, 1, 30, 25);
      }
      t.expect_empty();
      if (::testing::Test::HasFailure()) return;
    }
}

TEST(batch_handoff, tickets_that_are_not_used_are_given_up) {
  bench t(role::decode, 48, 16, 3);
  crowd(t);
  t.b.cancel({1, request_number{victim}, 1});
  t.orders();
  EXPECT_EQ(t.given_up, std::vector<uint64_t>{victim});
  auto odd = bench::ticket_of(9, 33);
  odd.rows = 20;  // of another length: the request is computed again
  t.add(9, 33, 5, 1, 1, odd);
  t.orders();
  EXPECT_EQ(t.given_up.back(), 9u);
  settle(t);
  expect_tokens(t, 9, 34, 4);
  t.expect_empty();
}

TEST(batch_handoff, room_is_kept_before_a_request_comes) {
  bench t(role::decode, 12, 16, 3);
  const auto lease = [&](uint64_t request, uint32_t rows) {
    return t.b.lease(1, {cluster_epoch{}, incarnation{}, request_number{request}, 1, rows}, true, nanoseconds(10));
  };
  EXPECT_TRUE(lease(1, 50).outcome.ok());
  EXPECT_TRUE(lease(1, 50).outcome.ok()) << "the same again is the same";
  EXPECT_TRUE(lease(2, 90).outcome.ok());
  EXPECT_EQ(lease(3, 50).outcome.code, errc::exhausted) << "pages";
  EXPECT_TRUE(lease(4, 20).outcome.code == errc{}) << "4 + 6 + 2 pages";
  EXPECT_EQ(lease(5, 10).outcome.code, errc::exhausted) << "pages and places";
  scheduler_report r;
  t.b.describe(r);
  EXPECT_EQ(r.leased, 3u);
  EXPECT_EQ(r.pages_free, 0u);
  // One is used for what it was kept for, one comes to be computed, one is cancelled; what is left expires.
  EXPECT_TRUE(t.add(1, 50, 10, 1, 1, bench::ticket_of(1, 50)).outcome.ok());
  t.orders();
  EXPECT_EQ(t.fetching.size(), 1u) << "without a plan";
  EXPECT_TRUE(t.add(4, 20, 10).outcome.ok());
  EXPECT_EQ(t.b.cancel({1, request_number{2}, 1}), batch::cancelled::done);
  EXPECT_TRUE(lease(6, 10).outcome.code == errc::exhausted) << "4 waits";
  settle(t);
  expect_tokens(t, 1, 51, 9);
  expect_tokens(t, 4, 20, 10);
  EXPECT_TRUE(lease(7, 10).outcome.ok());
  t.b.expire_leases(nanoseconds(9));
  EXPECT_TRUE(t.b.has_leases());
  t.b.expire_leases(nanoseconds(10));
  EXPECT_FALSE(t.b.has_leases());
  EXPECT_TRUE(lease(8, 10).outcome.ok());
  t.b.drop_front(1);
  t.expect_empty();
}

TEST(batch_handoff, prefill_keeps_the_pages_of_a_ticket) {
  bench t(role::prefill, 12, 16, 2);
  for (uint64_t r = 1; r <= 3; ++r) t.add(r, 60, 30);
  t.finish();
  // Two places: the third is to be computed again.
  std::vector<uint64_t> transfers;
  int recompute = 0;
  for (uint64_t r = 1; r <= 3; ++r) {
    const auto items = t.items_of(r);
    ASSERT_EQ(items.size(), 2u);
    EXPECT_TRUE(items[0].last_chunk);
    const auto h = items[1].handoff;
    if (h.kind == handoff_kind::pull) transfers.push_back(h.transfer);
    recompute += h.kind == handoff_kind::recompute;
  }
  EXPECT_EQ(transfers.size(), 2u);
  EXPECT_EQ(recompute, 1);
  EXPECT_EQ(t.pool->held(), 8u);
  scheduler_report r;
  t.b.describe(r);
  EXPECT_EQ(r.pages_held, 8u);
  EXPECT_EQ(r.pages_free, 4u);
  // What is held is not given away: the next prompt of 8 pages waits until a transfer is over.
  t.add(5, 120, 1);
  t.finish();
  EXPECT_TRUE(t.items_of(5).empty());
  EXPECT_TRUE(t.book->open(transfers[0], 1, nanoseconds(0)).outcome.ok());
  EXPECT_EQ(t.book->open(transfers[0], 2, nanoseconds(0)).outcome.code, errc::stale) << "another puller";
  EXPECT_TRUE(t.book->close(transfers[0], errc{}));
  EXPECT_EQ(t.book->open(transfers[0], 1, nanoseconds(0)).outcome.code, errc::stale) << "let go";
  EXPECT_FALSE(t.book->close(transfers[0], errc{}));
  t.b.held(t.pool->held());
  t.finish();
  EXPECT_EQ(t.items_of(5).size(), 2u);
  t.book->expire(transfer_book::offer_patience - nanoseconds(1));
  EXPECT_EQ(t.book->counts().offered, 1u);
  t.book->expire(transfer_book::offer_patience);
  EXPECT_EQ(t.book->counts().out_expired, 1u);
  t.b.held(t.pool->held());
  t.expect_empty();
}

// Both sides at once: prompts on one bench, answers on another, pulls that last, and aborts at random moments.
TEST(batch_handoff, thousands_of_random_aborts) {
  const uint64_t seed = entropy_seed();
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  SCOPED_TRACE("seed=" + std::to_string(seed));
  rng random(seed);
  bench p(role::prefill, 40, 64, 4), d(role::decode, 40, 64, 4);
  struct request {
    uint32_t prompt = 0;
    bool at_decode = false, over = false;
    handoff_ticket ticket;
  };
  std::map<uint64_t, request> all;  // running
  uint64_t next = 1;
  size_t seen_p = 0, seen_d = 0, aborts = 0, pulled = 0, fallbacks = 0;
  const auto close = [&](uint64_t transfer, errc why) {
    p.book->close(transfer, why);
    p.b.held(p.pool->held());
  };
  const auto acknowledge = [](bench& t, size_t& seen) {
    for (; seen < t.items.size(); ++seen) {
      auto& i = t.items[seen];
      t.b.acknowledge(1, {i.request, i.attempt, i.first_position + static_cast<uint32_t>(i.tokens.size()), i.last()});
    }
  };
  const size_t wanted = 4000;
  while (aborts < wanted || !all.empty()) {
    if (aborts < wanted && all.size() < 12) {
      const uint64_t r = next++;
      all[r].prompt = 1 + static_cast<uint32_t>(random.below(100));
      ASSERT_TRUE(p.add(r, all[r].prompt, 2 + static_cast<uint32_t>(random.below(20))).outcome.ok());
    }
    p.plan();
    if (random.below(3)) p.step();
    const size_t before = seen_p;
    acknowledge(p, seen_p);
    for (size_t i = before; i < seen_p; ++i) {
      const auto item = p.items[i];
      const auto it = all.find(item.request.value);
      if (it == all.end()) {
        if (item.handoff.kind == handoff_kind::pull) close(item.handoff.transfer, errc::cancelled);
        continue;
      }
      if (!item.last()) continue;
      if (item.handoff.kind == handoff_kind::none) {
        all.erase(it);
        continue;
      }
      it->second.ticket = item.handoff;
      auto ticket = item.handoff;
      const uint64_t transfer = ticket.transfer;
      ticket.transfer = item.request.value;  // the stand-in's contents are told by the request
      it->second.at_decode = true;
      if (ticket.kind == handoff_kind::recompute) ++fallbacks;
      ASSERT_TRUE(
          d.add(item.request.value, it->second.prompt, 2 + static_cast<uint32_t>(random.below(30)), 1, 1, ticket)
              .outcome.ok());
      it->second.ticket.transfer = transfer;
    }
    d.plan();
    if (random.below(3)) d.step();
    acknowledge(d, seen_d);
    for (auto& i : d.items) {
      if (!i.last()) continue;
      all.erase(i.request.value);
    }
    d.items.clear();
    seen_d = 0;
    for (uint64_t r : std::exchange(d.given_up, {}))
      if (auto it = all.find(r); it != all.end()) close(it->second.ticket.transfer, errc::cancelled);
    // Pulls go on, end well or badly, or lose against computing again.
    for (uint64_t n : std::vector<uint64_t>(d.fetching)) {
      auto* f = d.book->find(n);
      if (!f || f->at == transfer_book::incoming::stage::here) {
        if (!f) std::erase(d.fetching, n);
        continue;
      }
      const auto it = all.find(f->ticket.transfer);
      const uint64_t transfer = it == all.end() ? 0 : it->second.ticket.transfer;
      const auto dice = random.below(10);
      if (f->at == transfer_book::incoming::stage::asking) {
        if (dice < 5) {
          const auto g = p.book->open(transfer, 1, nanoseconds(0));
          if (g.outcome.ok()) {
            d.pull(n);
          } else {
            d.book->drop(n, true);
            d.b.fetched({n, g.outcome, false, d.pool->held(), 0, 0});
          }
        }
      } else if (dice < 4) {
        const bool whole = random.below(8) != 0;
        pulled += whole;
        d.arrive(n, whole);
        close(transfer, errc{});
      } else if (dice == 9 && f->wanted) {
        d.too_slow(n);
        close(transfer, errc::timeout);
      }
    }
    // Aborts: a client, a puller that ends, patience of the source, a step of either group.
    if (!all.empty() && random.below(4) != 0) {
      auto it = all.begin();
      std::advance(it, static_cast<ptrdiff_t>(random.below(all.size())));
      const batch::key k{1, request_number{it->first}, 1};
      (it->second.at_decode ? d : p).b.cancel(k);
      if (it->second.ticket.kind == handoff_kind::pull) close(it->second.ticket.transfer, errc::cancelled);
      all.erase(it);
      ++aborts;
    }
    if (random.below(60) == 0) p.book->puller_lost(1);
    if (random.below(60) == 0) p.book->expire(transfer_book::offer_patience);
    if (random.below(50) == 0) fail_step(random.below(2) ? p : d);
    p.b.held(p.pool->held());
    p.check();
    d.check();
    if (::testing::Test::HasFailure()) return;
  }
  for (int i = 0; i < 50; ++i) settle(d);
  p.finish();
  p.book->expire(nanoseconds(std::chrono::hours(1)));
  p.b.held(p.pool->held());
  p.expect_empty();
  d.expect_empty();
  const auto c = d.book->counts();
  EXPECT_EQ(c.in, c.in_done + c.in_failed + c.in_dropped);
  EXPECT_GT(c.in_dropped, 50u);
  EXPECT_GT(pulled, 200u);
  std::printf("%zu aborts, %llu fetches: %llu here, %llu failed, %llu dropped; %zu without a place\n", aborts,
              static_cast<unsigned long long>(c.in), static_cast<unsigned long long>(c.in_done),
              static_cast<unsigned long long>(c.in_failed), static_cast<unsigned long long>(c.in_dropped), fallbacks);
}

}  // namespace
}  // namespace troupe::actors::batch_handoff_cases
