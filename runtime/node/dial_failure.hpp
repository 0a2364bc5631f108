// What a failed connect means.
#pragma once

#include <caf/error.hpp>

#include <string>

namespace troupe::node {

/// Why a peer could not be dialled, in words that say what to do; `e` is what CAF answered to a connect. Any thread.
std::string dial_failure(const caf::error& e);

/// Said after it where the director was looked for.
constexpr const char* where_directors_listen =
    "; a cluster is named by the address where its director listens for nodes (`director.listen`, or ACTORS AT of the "
    "director in `troupe status`)";

}  // namespace troupe::node
