// What a balancer knows: the ranks of its role, and what every front has placed on them, as plain state without CAF. It
// is the same book for prefill and decode; the choice is policies/prefill_place or policies/decode_place.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "actors/protocol/balance.hpp"
#include "actors/serving/scheduler_seats.hpp"
#include "policies/prefill_place.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::actors {

/// The leases of one role. Plain state: no clock, no messages. Fronts are named by their incarnation.
class balance_book {
 public:
  static constexpr size_t max_leases = 1 << 17;  // of all fronts; at it nothing more is placed (exhausted)

  explicit balance_book(role what) : what_(what) {}

  /// The schedulers of the newest view; those of another role are left out. What is held of one that is gone stays
  /// until its front ends it.
  void follow(const std::map<actor_key, scheduler_seat>& seats);
  /// What a scheduler has answered.
  void load(const actor_key& target, const rank_load& m);

  /// Chooses a rank and gives the lease, or says why not. The front is heard.
  place_reply place(const place_request& m, nanoseconds now);
  /// Ends a lease; one that is not there is ignored. With `why` its rank gets nothing for retry_after_ms (at most 1 s).
  void end(const lease_end& m, nanoseconds now);
  /// What the front holds from now on. The front is heard.
  void update(const lease_update& m, nanoseconds now);
  /// The front is gone: everything that it held is free.
  void drop(incarnation front);
  /// Drops the fronts that were not heard since `limit`; who they were.
  std::vector<incarnation> expire(nanoseconds limit);
  /// Forgets all fronts; the ranks stay.
  void clear();

  bool knows(incarnation front) const { return fronts_.contains(front); }
  size_t fronts() const { return fronts_.size(); }
  size_t leases() const { return leases_; }
  /// Ready ranks, in order of key.
  std::vector<actor_key> ready() const;
  /// Every ready rank has answered.
  bool complete() const;
  /// Fills rate and queue; `since`: the time since the last call.
  void measure(pool_load& out, nanoseconds since);
  /// Fills everything but role, term and `active`.
  void describe(balancer_report& out) const;

 private:
  struct lease {
    actor_key target;
    place_wish wish;
    policies::prefill_work work;
    uint8_t tier = 0;
  };
  struct front {
    std::map<lease_number, lease> leases;
    nanoseconds heard{0};
  };
  struct rank {
    std::string group;
    bool ready = false, answered = false;
    rank_load told;
    uint32_t unknown = 0;  // requests that it had when it answered and nobody here had a lease for
    uint32_t leases = 0;
    double attention_ns = 0, linear_ns = 0;
    std::vector<uint32_t> tiers;  // leases by tier
    uint64_t new_tokens = 0, kv_tokens = 0, growth_tokens = 0;
    nanoseconds refuses_until{0};
  };
  struct choice {
    size_t index = SIZE_MAX;
    bool full = false;
    std::string reason;
    lease made;
  };
  lease lease_for(const actor_key& target, const place_wish& wish) const;
  void add(const lease& l);
  void remove(const lease& l);
  void remove_front(std::map<incarnation, front>::iterator it);
  choice choose_prefill(const place_request& m, nanoseconds now) const;
  choice choose_decode(const place_request& m, nanoseconds now) const;
  bool usable(const rank& r, const actor_key& key, const place_request& m) const;
  uint32_t limit_of(const rank& r) const;
  uint32_t retry_after() const;
  void note(std::string reason);

  const role what_;
  std::map<actor_key, rank> ranks_;      // bounded by the seats of the view
  std::map<incarnation, front> fronts_;  // bounded by who asks this (balancer.cpp)
  size_t leases_ = 0;
  policies::prefill_cost cost_ = policies::prefill_place_input{}.cost;
  uint32_t chunk_tokens_ = policies::prefill_place_input{}.chunk_tokens;
  double placed_ns_ = 0;             // prefill work given out since it was measured last
  std::deque<std::string> reasons_;  // the last 16
  balancer_report counters_;
};

}  // namespace troupe::actors
