// Time that this process has run, for measuring on machines that others use too.
#pragma once

#include "runtime/base/clock.hpp"

namespace troupe {

/// Processor time of all threads of this process: stands still while others have the cores.
const clock_source& process_clock();

}  // namespace troupe
