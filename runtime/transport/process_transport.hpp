// The transport between processes: messages over TCP, shared memory for bulk on one host.
#pragma once

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// Starts a transport and its thread, which owns all connections, polls while there is work and sleeps otherwise.
/// Errors: unavailable with what the system or UCX said (no such interface), invalid_argument for
/// options out of bounds. The destructor completes what is outstanding with cancelled and joins the thread; it must not
/// run on it. Regions outlive the transport safely, but peers lose them. Nothing is left in /dev/shm, also after
/// SIGKILL.
result<std::unique_ptr<transport>> make_process_transport(const options& options);

}  // namespace troupe::transport
