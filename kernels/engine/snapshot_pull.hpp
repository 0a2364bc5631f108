// Brings a snapshot that somebody keeps into this process's snapshot memory.
#pragma once

#include "kernels/engine/handoff_pull.hpp"

namespace troupe::kernels {

/// From the keeper's memory to a place of the importing engine's.
struct snapshot_route {
  transport::peer_id peer;
  transport::remote_region from;
  uint64_t from_offset = 0;
  transport::region_ptr to;
  uint64_t to_offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C of what is to come
};

/// Starts the pull. `done` is called once, inside `run`, when nothing writes into the place any more: success when what
/// came holds the checksum, corrupt when it does not, else the transport's error. `t` outlives the pull. Any thread.
void pull_snapshot(transport::transport& t, snapshot_route route, task_runner run,
                   std::function<void(result<void>)> done);

}  // namespace troupe::kernels
