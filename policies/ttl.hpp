// How long a block of the KV store lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Whose traffic a block belongs to; the key of the request says so (the API key's class).
enum class traffic_class : uint8_t { agent = 0, chatbot = 1 };

/// What touches the chain. Only `write` and `read` extend: `probe` is a match, a scrub, a repair or a listing.
enum class ttl_touch : uint8_t { write = 0, read = 1, probe = 2 };

/// A touched chain of blocks. Times in seconds of one clock.
struct ttl_input {
  int64_t now_s = 0;
  traffic_class traffic = traffic_class::agent;
  ttl_touch touch = ttl_touch::read;
  int64_t agent_s = 3 * 86'400;    // published retention: agent 3 days, ...
  int64_t chatbot_s = 7 * 86'400;  // ... chatbot 7 days
  int64_t step_s = 3'600;          // expiries are multiples of this, so that hot blocks are not rewritten all the time
  std::vector<int64_t> expiry_s;   // of the chain, root first, the touched block last; 0 = does not exist yet
};

/// One record to write.
struct ttl_change {
  size_t index = 0;  // into expiry_s
  int64_t expiry_s = 0;
};

/// What to do, in this order: ancestors before children, so that after a crash no block outlives its parent.
struct ttl_plan {
  size_t visible = 0;               // blocks from the root that exist and have not expired: what a match may return
  std::vector<ttl_change> changes;  // root first
  std::string reason;
};

/// A block is expired when expiry < now; expired ones are invisible at once and are never revived by a read: they are
/// written anew. New expiry = ceil((now + ttl) / step) * step; it is only ever raised, for the touched block and for
/// every ancestor that would go before it, whatever their class. A read touches the visible part only. Errors: step <=
/// 0, a ttl <= 0, negative times, times beyond 2^61, a write to a chain whose ancestors are not all visible.
result<ttl_plan> plan_ttl(const ttl_input& in);

}  // namespace troupe::policies
