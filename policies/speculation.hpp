// Whether a decode step drafts at all: an off-switch by what drafting is measured to bring, so that it is never a net
// loss.
#pragma once

#include <cstdint>
#include <string>

#include "policies/verify_lengths.hpp"
#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Where a measurement belongs: requests and mean context length in powers of two. Acceptance depends on both.
struct speculation_bucket {
  uint32_t requests = 0, context = 0;
  bool operator==(const speculation_bucket&) const = default;
};

/// floor(log2) of both, 0 for 0.
speculation_bucket bucket_of(uint32_t requests, uint64_t context_tokens);

/// What was measured in one bucket; moving averages over about 32 steps, tokens and drafts over 256 requests in them if
/// those are more. Plain state, kept by the caller per bucket.
struct speculation_cell {
  double accepted = 0;                   // tokens per request and step while drafting, the sampled one included
  double verified = 0;                   // drafts verified per request and step
  double slower_on = 1, slower_off = 1;  // measured time / time by the cost table
  uint32_t seen_on = 0, seen_off = 0;
  uint32_t seen_requests = 0;  // requests of the seen_on steps, summed
  bool on = true;
  uint32_t probe_in = 0;       // while off: steps until drafting is measured anew
  uint32_t probe_every = 512;  // doubles up to 4,096 while that changes nothing
  uint32_t check_in = 16;      // while on: drafting steps until steps without are measured anew
  uint32_t check_every = 16;   // doubles up to 512
};

/// One finished step.
struct speculation_sample {
  bool drafted = false;
  uint32_t requests = 0;
  uint32_t verified = 0;  // drafts, over all requests
  uint32_t tokens = 0;    // emitted, over all requests
  uint32_t other_rows = 0;
  double ns = 0;
};

/// Draft or not in the next step, and why.
struct speculation_plan {
  bool draft = true;
  double gain = 0;  // tokens per time with drafting over without, by the measurements; 1 = even
  std::string reason;
};

/// Whether drafting was measured often enough to decide: 3 steps and 24 requests in them. A step of many requests says
/// as much as many steps of one, and where drafting does not pay it costs the most.
bool is_decided(const speculation_cell& cell);

/// Tokens per time with and without drafting, by the cell's acceptance and the cost table corrected by measured times.
/// Off when it falls below 1, on again above 1.02; undecided cells draft. While off, drafting is measured anew after
/// 512 steps, or more where that would cost over 1 % of the time, later after 4,096. While on, 3 steps after 16, then
/// 32 and so on up to every 512 do not draft: a machine that was busy, or caches that were cold, when those were
/// measured would else make drafting look good for ever. A gain above 1.5 needs no such check.
speculation_plan plan_speculation(const speculation_cell& cell, const step_cost_table& table, uint32_t requests,
                                  uint32_t other_rows = 0);

/// Takes in a finished step of this bucket and moves the switch. Refuses (invalid_argument) what cannot be: no
/// requests, fewer tokens than requests, drafts verified or extra tokens without drafting, no time.
result<void> observe(speculation_cell& cell, const step_cost_table& table, const speculation_sample& sample);

}  // namespace troupe::policies
