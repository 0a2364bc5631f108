// The two kinds of sources that open_workload chooses from.
#pragma once

#include <memory>

#include "runtime/sim/workload/workload.hpp"

namespace troupe::sim {

/// Reads options.trace; the options have been checked.
result<std::unique_ptr<workload_source>> open_trace_source(const workload_options& options);

/// Draws from options.generator; scales are applied by the caller except length, which scales drawn lengths. Errors
/// name the option that is out of its bounds.
result<std::unique_ptr<workload_source>> open_generator(const workload_options& options);

}  // namespace troupe::sim
