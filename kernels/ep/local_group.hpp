// The group of one rank: dispatch and combine are bookkeeping, no byte moves.
#pragma once

#include <memory>

#include "kernels/ep/ep.hpp"

namespace troupe::kernels::ep {

/// A group whose only rank is 0. `shape.ranks` must be 1, `hidden`, `top_k` and `max_rows` at least 1, else
/// invalid_argument. Parking sleeps on a condition variable.
result<std::unique_ptr<group>> make_local_group(const group_shape& shape);

/// The copies of `layers` MoE layers of `experts` experts spread over `ranks` in contiguous blocks, one copy each: the
/// placement before any balancing. Any count may be zero except `ranks`.
placement contiguous_placement(uint32_t ranks, uint32_t layers, uint32_t experts);

}  // namespace troupe::kernels::ep
