// The transport over UCX: TCP between hosts, shared memory for bulk on one host.
#pragma once

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// What a destroyed transport leaves in its process at most: its UCX workers, which cannot be destroyed safely (see
/// ucx_core.hpp). So a process makes one and keeps it; one that makes them over and over grows by this each time.
inline constexpr double left_descriptors = 16, left_kib = 4096;

/// Starts a transport and its thread, which owns all of UCX, polls while there is work and sleeps otherwise. Errors:
/// unavailable with what UCX said (no such interface, no shared memory), invalid_argument for options out of bounds.
/// The destructor completes what is outstanding with cancelled and joins the thread; it must not run on it. Regions
/// outlive the transport safely, but peers lose them. Nothing is left in /dev/shm, also after SIGKILL.
result<std::unique_ptr<transport>> make_ucx_transport(const options& options);

}  // namespace troupe::transport
