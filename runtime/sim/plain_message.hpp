// Which messages can be handed from node to node as they are: those in which no handle can be. Encoding everything is
// the better proof, and costs most of the time of a large simulation.
#pragma once

#include <caf/message.hpp>

#include <cstdint>
#include <optional>

namespace troupe::sim {

/// About the bytes that the message would take on the wire; nothing for one that must be encoded, because a handle may
/// be in it (a handle means another thing on every node) or because it is not one of the house's messages.
std::optional<uint64_t> plain_size(const caf::message& m);

}  // namespace troupe::sim
