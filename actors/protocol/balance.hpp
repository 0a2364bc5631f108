// Where a request goes: fronts ask the balancers, one for each role of a model, which know what all fronts have placed.
// Every front process has a pair of them; the director says whose pair is active (cluster_view::balancer).
//
//   entrypoint                          balancer of a role                     scheduler
//     | lease_update{all that I hold}      |   when it attaches, and every 2.5 s
//     |----------------------------------->|
//     |<---------------------------- ack --|   stale: not active (in this term), or this front was given up
//     |                                    | rank_load_query   every 250 ms while somebody holds a lease
//     |                                    |------------------------------------>|
//     |                                    |<--------------------- rank_load ----|
//     | place_request{lease, wish}         |
//     |----------------------------------->|   policies/prefill_place, policies/decode_place
//     |<---------------------- place_reply |   a scheduler, or when to try again
//     | lease_request (decode), enqueue_request                                  |
//     |------------------------------------------------------------------------->|
//     | lease_end{lease}                   |   prefilled, finished, refused there, or given up
//     |----------------------------------->|
//     |<---------------------------- ack --|
//
// A lease belongs to the front that asked. It ends with lease_end, with a lease_update that does not name it, with its
// front (its connection or its place in the cluster view), or when its front was not heard for 10 s. A lease is a word
// about load, not a permit: a scheduler takes or refuses what comes by its own books (serving.hpp: enqueue_request, and
// lease_request, which makes it keep room for what the decode lease was given for).
//
// A balancer remembers nothing that its fronts do not tell it again: after a change of the active pair every front
// sends what it holds. Meanwhile, and whenever the balancer does not answer, a front places by itself, round robin.
#pragma once

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// What a request brings to a rank.
struct place_wish {
  uint32_t new_tokens = 0;     // prefill: to run
  uint32_t cached_tokens = 0;  // prefill: in front of them, expected from the cache
  uint32_t kv_tokens = 0;      // decode: in place when it starts
  uint32_t growth_tokens = 0;  // decode: that it is expected to add
  bool operator==(const place_wish&) const = default;
};
TROUPE_FIELDS(place_wish, new_tokens, cached_tokens, kv_tokens, growth_tokens)

/// From a front. Asked again with the same number it is answered with the same place.
struct place_request {
  cluster_epoch epoch;
  balancer_term term;
  actor_key front;
  lease_number lease;
  place_wish wish;
  std::vector<actor_key> avoid;  // schedulers that this front cannot use now, or that have just refused
  bool operator==(const place_request&) const = default;
};
TROUPE_FIELDS(place_request, epoch, term, front, lease, wish, avoid)

/// outcome: exhausted (every rank is full; retry_after_ms says when to try again), unavailable (there is no rank that
/// can be used), stale (ask somebody else).
struct place_reply {
  status outcome;
  actor_key target;  // the scheduler
  uint32_t retry_after_ms = 0;
  std::string reason;  // of the policy
  bool operator==(const place_reply&) const = default;
};
TROUPE_FIELDS(place_reply, outcome, target, retry_after_ms, reason)

/// From a front: the lease is over. `why` other than 0: the scheduler did not take the request; it gets nothing more
/// before retry_after_ms is over.
struct lease_end {
  cluster_epoch epoch;
  balancer_term term;
  actor_key front;
  lease_number lease;
  errc why{};
  uint32_t retry_after_ms = 0;
  bool operator==(const lease_end&) const = default;
};
TROUPE_FIELDS(lease_end, epoch, term, front, lease, why, retry_after_ms)

/// A lease as its front knows it.
struct held_lease {
  lease_number lease;
  actor_key target;
  place_wish wish;  // as it is now: what has been generated is in kv_tokens
  bool operator==(const held_lease&) const = default;
};
TROUPE_FIELDS(held_lease, lease, target, wish)

/// From a front: everything that it holds, and what it has asked for without an answer so far. The whole state: losing
/// one does no harm.
struct lease_update {
  cluster_epoch epoch;
  balancer_term term;
  actor_key front;
  std::vector<held_lease> held;
  std::vector<lease_number> asked;
  bool operator==(const lease_update&) const = default;
};
TROUPE_FIELDS(lease_update, epoch, term, front, held, asked)

/// Asks a scheduler how it stands, for a balancer.
struct rank_load_query {
  cluster_epoch epoch;
  bool operator==(const rank_load_query&) const = default;
};
TROUPE_FIELDS(rank_load_query, epoch)

/// What a rank has and can hold.
struct rank_load {
  status outcome;                       // unavailable: no engine yet; stale
  uint32_t requests = 0;                // waiting, fetching and running
  uint32_t slots = 0, queue_limit = 0;  // sequences at once, and that may wait
  uint32_t page_tokens = 0, pages = 0;  // capacity
  uint32_t max_chunk = 0;
  uint64_t kv_tokens = 0;                     // that are in place
  double cost_a = 0, cost_b = 0, cost_d = 0;  // of a prefill chunk, in ns (policies/prefill_cost); 0: not measured yet
  bool operator==(const rank_load&) const = default;
};
TROUPE_FIELDS(rank_load, outcome, requests, slots, queue_limit, page_tokens, pages, max_chunk, kv_tokens, cost_a,
              cost_b, cost_d)

struct balancer_query {
  bool operator==(const balancer_query&) const = default;
};
TROUPE_NO_FIELDS(balancer_query)

/// What a balancer knows of a rank.
struct balanced_rank {
  actor_key target;
  bool usable = false;
  uint32_t leases = 0;
  uint64_t tokens = 0;  // prefill: to run; decode: in place and expected
  bool operator==(const balanced_rank&) const = default;
};
TROUPE_FIELDS(balanced_rank, target, usable, leases, tokens)

/// For `troupe status`. Counters are since the start of the actor.
struct balancer_report {
  role what = role::none;
  bool active = false;
  balancer_term term;
  uint32_t fronts = 0, leases = 0;
  uint64_t placed = 0, refused = 0, stale = 0;
  uint64_t freed = 0;    // leases of fronts that are gone
  uint64_t expired = 0;  // leases of fronts that were not heard
  std::vector<balanced_rank> ranks;
  std::vector<std::string> reasons;  // of the latest decisions, oldest first, at most 16
  bool operator==(const balancer_report&) const = default;
};
TROUPE_FIELDS(balancer_report, what, active, term, fronts, leases, placed, refused, stale, freed, expired, ranks,
              reasons)

using balancer_actor =
    actor_type<answers<place_request, place_reply>, answers<lease_end, ack>, answers<lease_update, ack>,
               takes<cluster_view>, answers<balancer_query, balancer_report>, takes<tick>>;

}  // namespace troupe::actors
