// Which prefill rank a prompt goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/prefill_cost.hpp"
#include "runtime/base/result.hpp"

namespace troupe::policies {

/// What one prompt costs, by kind. Both in ns on one rank.
struct prefill_work {
  double attention_ns = 0, linear_ns = 0;
  double total() const { return attention_ns + linear_ns; }
};

/// Work of `fresh` tokens behind `cached` ones in chunks of `chunk_tokens` > 0: a q^2 + b q c is attention, d q linear.
/// Closed form, exact for that chunking.
prefill_work work_of(const prefill_cost& cost, uint32_t chunk_tokens, uint32_t fresh, uint32_t cached);

/// `work`, scaled down so that its total is at most `horizon_ns`: what a waiting prompt can use of the steps that come
/// next. A million-token prompt then does not make its rank look busy for longer than its neighbours, and does not push
/// all short prompts into the queues of the others.
prefill_work within_horizon(const prefill_work& work, double horizon_ns);

/// One rank as its scheduler last reported it, plus what the balancer has placed there since.
struct prefill_candidate {
  bool usable = true;           // ready, not draining, not suspected
  uint32_t waiting = 0;         // prompts placed there and not finished
  uint32_t limit = UINT32_MAX;  // takes no more at this many
  double attention_ns = 0;      // sum over prompts of within_horizon(work placed there and not done), by kind
  double linear_ns = 0;
  uint8_t longest_tier = 0;  // tier of the longest prompt not finished in this rank's lock-step group
};

/// A prompt to place and the ranks to choose from. There is no affinity: every rank reads any prefix from the store.
struct prefill_place_input {
  uint32_t new_tokens = 0;     // to run
  uint32_t cached_tokens = 0;  // in front of them
  prefill_cost cost{2e-3, 2e-2,
                    9e3};  // fitted per deployment; the default is the published illustration, not a measurement
  uint32_t chunk_tokens = 32'768;  // largest chunk: a longer prompt is run in several
  std::vector<uint32_t> tiers{4'096, 32'768,
                              262'144};  // a prompt's tier = number of bounds that its new tokens exceed; ascending
  double horizon_ns = 3e8;               // about one step's time budget, > 0
  double isolation_ns = 5e7;  // how much more queued work is accepted per tier of distance to keep lengths apart
  double kind_weight = 0.5;   // how much the balance of each kind of work counts beside the balance of the sum, >= 0
  std::vector<prefill_candidate> ranks;
};

/// The choice. `choice` is SIZE_MAX when nobody can take it; then `reason` says whether all are full or none is usable.
struct prefill_place_plan {
  size_t choice = SIZE_MAX;
  uint8_t tier = 0;     // to be counted into longest_tier of the chosen rank's group
  prefill_work work;    // within the horizon; to be added to the chosen candidate
  double score_ns = 0;  // of the choice, lower is better
  bool full = false;    // some are usable, all of them at their limit
  std::string reason;
};

/// Tier of a prompt with so many new tokens.
uint8_t tier_of(const std::vector<uint32_t>& tiers, uint32_t new_tokens);

/// The usable rank below its limit with the least
///   queued work + kind_weight * (queued work of each kind, weighted by this prompt's share of that kind)
///   + isolation_ns * (tier distance to the longest prompt of the rank's group, when that is longer than this one);
/// ties to the lowest index. The first term equalises work, the second attention and tokens each (the two objectives of
/// the published V3/R1 prefill balancer: core attention and token counts), the third lets ranks drift into length
/// tiers, so that a short prompt does not share a group's long steps while there is room elsewhere. Errors: a cost that
/// is not finite or is negative, chunk_tokens 0, horizon 0, tiers not ascending or more than 250. One pass, no
/// allocation except the reason.
result<prefill_place_plan> place_prefill(const prefill_place_input& in);

}  // namespace troupe::policies
