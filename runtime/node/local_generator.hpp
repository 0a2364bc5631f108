// A generator with its engine in this process, for offline use: the actors of the cluster (director, a front node, a
// decode node) in one actor system without a network.
#pragma once

#include <memory>

#include "runtime/base/clock.hpp"
#include "runtime/config/config.hpp"
#include "runtime/gateway/generator.hpp"

namespace troupe::node {

/// Loads `s.model` and runs one decode rank with the limits of `s.decode` (its `ranks` and `ep` are taken as 1).
/// Returns when a canary request went through. Errors: what the engine said about the checkpoint; timeout after
/// `ready_within`. Destroying the generator ends what runs. Call it from a thread that is not an actor's.
result<std::unique_ptr<gateway::generator>> make_local_generator(config::settings s,
                                                                 nanoseconds ready_within = std::chrono::minutes(10));

}  // namespace troupe::node
