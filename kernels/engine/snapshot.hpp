// Window snapshots: what a hit starts from instead of running tokens again. Their layout is in engine.hpp.
#pragma once

#include <span>

#include "kernels/engine/engine.hpp"
#include "kernels/model/state.hpp"

namespace troupe::kernels {

/// CRC32C, as whoever keeps snapshots compares it.
uint32_t snapshot_checksum(std::span<const std::byte> bytes);

/// Puts the snapshot of the window before `position` (plan.snapshot_bytes() of host memory) into the rings of `slot`.
void read_snapshot(const model& m, operators& ops, place where, kv_state& state, uint32_t slot, uint32_t position,
                   std::span<const std::byte> in);

}  // namespace troupe::kernels
