// What a failed connect means.
#pragma once

#include <caf/error.hpp>

#include <string>

namespace troupe::node {

/// Why a peer could not be dialled, in words that say what to do; `e` is what CAF answered to a connect. Any thread.
std::string dial_failure(const caf::error& e);

}  // namespace troupe::node
