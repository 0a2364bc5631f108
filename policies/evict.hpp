// Which entries of the KV store go when a disk passes its mark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One extent or block as the owner's index knows it. Times in seconds of one clock.
struct evict_entry {
  uint64_t id = 0;
  uint64_t parent = 0;  // id of the entry that it hangs on; 0 or an id that is not listed: none here
  int64_t expiry_s = 0;
  int64_t written_s = 0;
  uint64_t bytes = 0;
  bool leased = false;  // being read: stays, and so does everything above it
};

/// What there is and how much must go.
struct evict_input {
  int64_t now_s = 0;
  uint64_t need_bytes = 0;
  bool all_expired = true;  // expired entries go even when fewer would do
  std::vector<evict_entry> entries;
};

/// What goes, in this order.
struct evict_plan {
  std::vector<uint64_t> ids;
  uint64_t freed_bytes = 0;
  uint64_t short_bytes = 0;  // of need_bytes, not found: the rest is leased or holds leased ones
  std::string reason;
};

/// Earliest expiry first, then earliest written, then lowest id; but an entry only after all its children, and never a
/// leased one. So at every point the next is the least of those that have no child left. Errors: id 0, an id twice, a
/// cycle. Cost n log n.
result<evict_plan> plan_evict(const evict_input& in);

}  // namespace troupe::policies
