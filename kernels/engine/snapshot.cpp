#include "kernels/engine/snapshot.hpp"

#include <isa-l/crc.h>

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kernels {

uint32_t snapshot_checksum(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffffu;
  for (size_t at = 0; at < bytes.size();) {  // the library counts in int
    const size_t n = std::min<size_t>(bytes.size() - at, 1u << 30);
    crc = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data() + at)), static_cast<int>(n),
                      crc);
    at += n;
  }
  return ~crc;
}

void read_snapshot(const model& m, operators& ops, place where, kv_state& state, uint32_t slot, uint32_t position,
                   std::span<const std::byte> in) {
  TROUPE_CHECK(in.size() == m.plan.snapshot_bytes() && position >= m.plan.window, "a snapshot of {} B at {}", in.size(),
               position);
  const std::byte* from = in.data();
  for (uint32_t l = 0; l <= m.plan.encoder_layers; ++l) {
    const ring_view& ring = state.window(l);
    for (uint32_t p = position - m.plan.window; p < position;) {
      const uint32_t row = p % ring.rows, n = std::min(position - p, ring.rows - row);
      const size_t bytes = size_t{n} * ring.record_bytes;
      ops.copy(where, ring.base + slot * ring.slot_stride + size_t{row} * ring.record_bytes, from, bytes);
      from += bytes;
      p += n;
    }
  }
  ops.synchronise(where);
}

}  // namespace troupe::kernels
