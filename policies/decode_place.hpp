// Which decode rank a request goes to, and which requests would even out the ranks if they moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// What a decode step costs a rank: so much per request (dispatch, experts) and per KV token (attention). Only the
/// ratio decides; the defaults weigh the two the same at 12,000 tokens of context.
struct decode_cost {
  double request_ns = 12'000;
  double kv_token_ns = 1;
};

/// One rank as its scheduler last reported it, plus what the balancer has placed there since.
struct decode_candidate {
  bool usable = true;                         // ready, not draining, not suspected
  uint32_t requests = 0;                      // running or waiting there
  uint32_t slots = UINT32_MAX;                // takes no more at this many
  uint64_t kv_tokens = 0;                     // that its requests hold now
  uint64_t growth_tokens = 0;                 // that they are expected to add
  uint64_t capacity_tokens = UINT64_MAX / 4;  // pages * page size
};

/// A request to place and the ranks to choose from.
struct decode_place_input {
  uint64_t kv_tokens = 0;  // that it brings
  uint64_t growth_tokens =
      0;  // that it is expected to add, e.g. the mean answer of its traffic class, at most its max_tokens
  decode_cost cost;
  double kind_weight =
      0.5;  // how much the balance of requests and of KV, each, counts beside the balance of the sum, >= 0
  std::vector<decode_candidate> ranks;
};

/// The choice. `choice` is SIZE_MAX when nobody can take it.
struct decode_place_plan {
  size_t choice = SIZE_MAX;
  double score_ns = 0;  // of the choice, lower is better
  bool tight = false;   // it fits now, but not with all expected growth: preemption is likely
  bool full = false;    // some are usable, none has a slot and the room
  std::string reason;
};

/// Among usable ranks with a slot and room for kv_tokens, those that have room for all expected growth come first;
/// among those, the least cost of a step there + kind_weight * (cost of each kind, weighted by this request's share of
/// it), growth included; ties to the lowest index. Keeps KV (now and expected) and request counts even, the two
/// objectives of the published V3/R1 decode balancer. Errors: costs negative or not finite; token counts of 2^62 or
/// more. One pass, no allocation except the reason.
result<decode_place_plan> place_decode(const decode_place_input& in);

/// A running request that could move.
struct movable_request {
  uint64_t id = 0;
  uint64_t kv_tokens = 0;
};

/// One rank of decode_rebalance_input.
struct decode_load {
  bool usable = true;  // false: keeps what it has (a draining rank is emptied elsewhere)
  uint64_t capacity_tokens = UINT64_MAX / 4;
  uint32_t slots = UINT32_MAX;
  std::vector<movable_request> requests;
};

/// The loads of a pool, and when moving pays.
struct decode_rebalance_input {
  decode_cost cost;
  double tolerance = 0.1;  // nothing moves while busiest / mean - 1 is at most this
  uint32_t max_moves = 8;
  std::vector<decode_load> ranks;
};

/// `request` (an id) from one rank to another.
struct decode_move {
  uint64_t request = 0;
  size_t from = 0, to = 0;
};

/// Hints: the pool works without them. Applied in order, every prefix of `moves` keeps all limits.
struct decode_rebalance_plan {
  std::vector<decode_move> moves;
  double imbalance_before = 1, imbalance_after = 1;  // busiest / mean of the usable ranks
  std::string reason;
};

/// Greedy: from the busiest rank to the idlest, the request whose move lowers the larger of the two most; stops at the
/// tolerance, at max_moves, or when the best move gains less than a hundredth of the mean. Never moves a request twice
/// and never raises the busiest. Errors: as place_decode; tolerance negative or not finite.
result<decode_rebalance_plan> rebalance_decode(const decode_rebalance_input& in);

}  // namespace troupe::policies
