// The wire over UCX's active messages.
#pragma once

#include "runtime/transport/wire.hpp"

namespace troupe::transport {

/// What a destroyed wire over UCX leaves in its process at most: its workers, which cannot be destroyed safely (see
/// ucx_core.hpp). So a process makes one and keeps it; one that makes them over and over grows by this each time.
inline constexpr double left_descriptors = 16, left_kib = 4096;

/// Opens it on a network device (empty = all). unavailable with what UCX said. A process may be aborted by UCX 1.13.1
/// when a peer dies within the first milliseconds of their connection.
result<std::unique_ptr<wire>> open_ucx_wire(const std::string& interface);

}  // namespace troupe::transport
