// Processor time, for measuring on cores that others use too: it stands still while they have them.
#pragma once

#include "runtime/base/clock.hpp"

namespace troupe {

/// Of all threads of this process.
const clock_source& process_clock();

/// Of the thread that asks. Times of different threads have nothing to do with each other.
const clock_source& thread_clock();

}  // namespace troupe
