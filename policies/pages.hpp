// Pages of the KV pool: how many a sequence needs, and who gets them when there are not enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::policies {

/// Pages that hold `tokens` tokens; a page holds `window` > 0 of them.
constexpr uint32_t pages_needed(uint32_t tokens, uint32_t window) { return tokens / window + (tokens % window != 0); }

/// One running sequence, oldest first.
struct page_holder {
  uint32_t held = 0;    // pages it has
  uint32_t needed = 0;  // pages after the next step, at worst
};

/// What the decision needs to know.
struct page_input {
  uint32_t free = 0;
  uint32_t returning = 0;            // of slots that are being closed: free soon
  std::vector<page_holder> running;  // oldest first
};

/// The decision.
struct page_plan {
  std::vector<uint32_t> grow;   // pages to add, per sequence; a sequence whose need is not met does not run in the step
  std::vector<bool> runs;       // its need is met
  std::vector<size_t> preempt;  // indexes to give up, youngest first: their pages come back and they start again later
  std::string reason;
};

/// Oldest first: each sequence gets all that it may need in the step, or nothing. When the oldest that goes without
/// cannot be served from `free`, the youngest ones are given up until their pages and the returning ones would serve
/// it; the one that goes without just waits when that is not enough. So the oldest always makes progress, which needs
/// only that one sequence fits the pool.
page_plan plan_pages(const page_input& in);

}  // namespace troupe::policies
