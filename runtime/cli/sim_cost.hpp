// `troupe sim --check-cost FILE`: what a cost model says of the points that it was fitted to; and a cost model of an
// engine in this process.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::cli {

/// Prints the points with their residuals: JSON to stdout, a table to stderr. Exit codes: ok; failed when a residual is
/// beyond its point's tolerance; usage for a file that cannot be read or evaluated.
int check_cost(const std::string& file);

/// `troupe sim --measure-cost DIR`: measures the steps of the CPU engine with the model in `folder` and prints a cost
/// file to stdout. Takes minutes. Exit codes: ok, or failed with the reason.
int measure_cost(const std::string& folder, uint32_t threads);

}  // namespace troupe::cli
