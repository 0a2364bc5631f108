// A group whose ranks are threads of one process: the same protocol as between processes, over plain memory or
// in-process messages. For tests and for running several ranks in one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/ep/transport_group.hpp"

namespace troupe::kernels::ep {

/// How the ranks of a thread group meet.
struct thread_group_options {
  group_epoch epoch{1};
  nanoseconds deadline = std::chrono::seconds(5);
  wait_policy wait;
  bool messages = false;  // exchange by messages, as between hosts, instead of direct stores
};

/// What a test can do to the ranks of a thread group. Any thread. Outlives or not the groups, as it likes.
class thread_group_control {
 public:
  virtual ~thread_group_control() = default;
  /// The others get the death notice of `rank`, as after SIGKILL; its own calls fail with peer_lost.
  virtual void kill(uint32_t rank) = 0;
  /// Bytes written into `to`'s inbox as if `from` had sent them as a message; to test header checks.
  virtual void inject(uint32_t from, uint32_t to, std::vector<std::byte> message) = 0;
  virtual ep_counters counters(uint32_t rank) const = 0;
};

/// A group of threads and the handle by which a test disturbs it.
struct thread_group {
  std::vector<std::unique_ptr<group>> ranks;  // one for each thread
  std::shared_ptr<thread_group_control> control;
};

/// All ranks of one group in this process. Same errors as check_shape.
result<thread_group> make_thread_group(const group_shape& shape, const thread_group_options& options = {});

}  // namespace troupe::kernels::ep
