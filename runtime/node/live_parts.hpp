// What the roles of a live process are made of: engines with threads, disks, the data plane.
#pragma once

#include "runtime/node/roles.hpp"

namespace troupe::node {

/// `reachable`: KV pages lie in memory that other processes can read; false: the process is alone, without a cache.
std::shared_ptr<role_parts> make_live_parts(const config::settings& s, bool reachable);

}  // namespace troupe::node
