// Shared memory by UCX, as the transport's arena wants it.
#pragma once

#include "runtime/transport/arena.hpp"

namespace troupe::transport {

/// unavailable with what UCX said.
result<std::unique_ptr<shared_space>> open_ucx_space();

}  // namespace troupe::transport
