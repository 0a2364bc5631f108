// What a load run says: latencies, rates, and where the ranks' time went meanwhile.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/cli/load/run.hpp"
#include "runtime/node/status_client.hpp"

namespace troupe::cli {

/// Rates, counts and latencies in milliseconds; docs/benchmark.md names every member.
nlohmann::ordered_json to_json(const load_summary& s);

/// What the ranks did between two pictures that were taken `wall` apart: a list with one entry per rank, and sums by
/// role. `idle` is the time outside of steps; parts are of the time inside. A rank that was started again in between
/// counts from its start.
nlohmann::ordered_json ranks_json(const node::cluster_picture& before, const node::cluster_picture& after,
                                  nanoseconds wall);

/// A few lines for people.
std::string to_text(const load_summary& s);

}  // namespace troupe::cli
