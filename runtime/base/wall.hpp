// The wall clock where whole seconds are too coarse.
#pragma once

#include <cstdint>

namespace troupe {

/// Tenths of a second since 1970 by the machine's wall clock, for numbers that must grow from start to start of a
/// process (a director's term), never for decisions.
int64_t wall_tenths();

}  // namespace troupe
