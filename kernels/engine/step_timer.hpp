// Time for an engine whose steps only take time: when to go on. Live it is a thread and the machine's clock, in a
// simulation the agenda.
#pragma once

#include <functional>
#include <memory>

#include "runtime/base/clock.hpp"

namespace troupe::kernels {

/// Runs what is due, one after the other: all of it on one thread at a time, and never inside a call of `schedule`.
/// Entries run in the order of their due times, those of the same instant in any order. Thread rules: both functions
/// may be called from any thread that the implementation allows; live from any, in a simulation from its only one.
class step_timer {
 public:
  virtual ~step_timer() = default;
  /// Time since an arbitrary fixed point; never goes back.
  virtual nanoseconds now() const = 0;
  /// Runs `what` once, `after` from now. What has not run when the timer is destroyed is dropped.
  virtual void schedule(nanoseconds after, std::function<void()> what) = 0;
};

/// The machine's monotonic clock and one thread, which the destructor joins (unless it runs on that very thread).
std::shared_ptr<step_timer> make_live_timer();

}  // namespace troupe::kernels
