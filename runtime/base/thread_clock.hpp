// Time that a thread has run, for measuring what it does on cores that it shares.
#pragma once

#include "runtime/base/clock.hpp"

namespace troupe {

/// Processor time of the thread that asks: stands still while others have the core. Times of different threads have
/// nothing to do with each other.
const clock_source& thread_clock();

}  // namespace troupe
