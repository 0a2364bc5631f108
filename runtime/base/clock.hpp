// Time as a parameter. The only place in the house that reads a clock of the operating system.
#pragma once

#include <chrono>
#include <cstdint>

namespace troupe {

using nanoseconds = std::chrono::nanoseconds;

/// A monotonic clock. Implementations are safe to call from any thread.
class clock_source {
 public:
  virtual ~clock_source() = default;
  /// Time since an arbitrary fixed point; never goes back.
  virtual nanoseconds now() const = 0;
};

/// The machine's monotonic clock.
const clock_source& steady_clock();

/// A clock that a test moves by hand. Not thread safe.
class manual_clock final : public clock_source {
 public:
  nanoseconds now() const override { return now_; }
  void advance(nanoseconds d) { now_ += d; }

 private:
  nanoseconds now_{0};
};

/// Seconds since 1970 by the machine's wall clock, for people and for `created` fields, never for decisions.
int64_t wall_seconds();

/// Sleeps the calling thread; for process supervision and bounded back-off only, never in a test or an actor.
void sleep_for(nanoseconds d);

}  // namespace troupe
