// Whose turn it is in a queue of requests.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A request as it comes into a queue. Times in ns.
struct queue_order_input {
  int64_t arrived_ns = 0;      // on the queue's clock
  double work_ns = 0;          // what its prompt costs (prefill_cost.hpp); 0 where that is not known
  uint32_t priority = 0;       // 0 to 9, higher is sooner
  double longest_ns = 5e9;     // work beyond this does not put it further back
  double head_start_ns = 1e9;  // of one step of priority
};

/// Requests with a smaller key go first; the key is for good. Ties: the one that came first.
struct queue_order_plan {
  int64_t key_ns = 0;
  std::string reason;
};

/// key = arrived + min(work, longest) - priority * head start: first come, first served, where a short prompt overtakes
/// those that came at most their length before it, and a priority is worth a fixed head start. Nobody starves: one that
/// waits is overtaken only by what comes within longest + 9 * head start after it. Errors: work or weights negative or
/// not finite, priority above 9.
result<queue_order_plan> plan_queue_order(const queue_order_input& in);

}  // namespace troupe::policies
