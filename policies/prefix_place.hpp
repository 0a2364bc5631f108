// Which of several private caches a prompt goes to: the affinity routing of fleets without a shared store. Troupe does
// not route so (prefill_place.hpp; every rank reads every prefix from the store); the simulator's simple mode compares
// with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One instance with a cache of its own.
struct prefix_candidate {
  uint64_t matched = 0;  // blocks of the prompt, from its beginning, that its cache has
  uint64_t missed = 0;   // blocks that prompts placed there so far did not find: the work it was given
};

/// The instances, in a fixed order.
struct prefix_place_input {
  std::vector<prefix_candidate> instances;
};

/// The decision.
struct prefix_place_plan {
  size_t choice = SIZE_MAX;
  int64_t score = 0;  // of the choice, in blocks
  std::string reason;
};

/// "Prefix + load": the greatest matched - (missed - least missed of all), ties to the lowest index. The first term
/// alone sends all prompts that begin alike to one instance; the second is what its extra work costs. invalid_argument
/// without instances or with counts of 2^62 and more.
result<prefix_place_plan> place_by_prefix(const prefix_place_input& in);

}  // namespace troupe::policies
