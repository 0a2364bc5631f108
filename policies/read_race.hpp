// How long a rank waits for cached blocks before it computes them.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::policies {

/// What the decision needs to know.
struct read_race_input {
  uint32_t tokens = 0;      // that need not be computed when the read succeeds
  int64_t row_ns = 0;       // nanoseconds that this rank needs for a prompt token, as measured; 0: not known yet
  int64_t at_least_ns = 0;  // a read gets so long whatever computing would take
  int64_t at_most_ns = 0;   // and never longer
};

/// The decision.
struct read_race_plan {
  int64_t deadline_ns = 0;
  std::string reason;
};

/// A read that takes longer than computing what it would save has lost: deadline = tokens x row_ns, within
/// [at_least, at_most]; at_most where the rank's speed is not known yet. (A slow read so costs at most as much time as
/// the tokens themselves.)
read_race_plan plan_read_race(const read_race_input& in);

}  // namespace troupe::policies
