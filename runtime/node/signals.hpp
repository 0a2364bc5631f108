// Signals as values. Made by the main thread before any other thread starts, so that all threads inherit the mask.
#pragma once

#include <csignal>
#include <initializer_list>

#include "runtime/base/clock.hpp"

namespace troupe::node {

/// Blocks the given signals for the process and hands them out one by one. One thread.
class signal_reader {
 public:
  explicit signal_reader(std::initializer_list<int> signals);
  ~signal_reader();
  signal_reader(const signal_reader&) = delete;
  signal_reader& operator=(const signal_reader&) = delete;

  /// The next signal, or 0 when none came within `limit`.
  int wait(nanoseconds limit);

 private:
  int fd_ = -1;
  sigset_t old_mask_{};
};

/// After the first stop signal has been read: from now on SIGINT and SIGTERM end the process at once (exit by the
/// signal), and SIGALRM does after `limit`, so that a stop that hangs still ends.
void arm_hard_stop(nanoseconds limit);

}  // namespace troupe::node
