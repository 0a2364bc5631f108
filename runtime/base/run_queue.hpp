// How long a thread has waited for a core: what a busy machine takes away from a measurement.
#pragma once

#include <cstdint>

namespace troupe {

/// Time that the thread which made this has spent runnable without running, as the kernel counts it
/// (/proc/thread-self/schedstat, second field). Use it on that thread only. Where the kernel does not say, it stays 0.
class run_queue_meter {
 public:
  run_queue_meter();
  ~run_queue_meter();
  run_queue_meter(const run_queue_meter&) = delete;
  run_queue_meter& operator=(const run_queue_meter&) = delete;
  /// Nanoseconds since the thread began; costs one system call, allocates nothing.
  int64_t waited() const;

 private:
  int fd_ = -1;
};

}  // namespace troupe
