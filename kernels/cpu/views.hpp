// Addresses inside the views of kernels/ops.hpp.
#pragma once

#include "kernels/ops.hpp"

namespace troupe::kernels::cpu {

/// The ring's record of a position.
inline std::byte* ring_record(const ring_view& ring, uint32_t slot, uint32_t position) {
  return ring.base + slot * ring.slot_stride + size_t(position % ring.rows) * ring.record_bytes;
}

/// Entry `group` of a slot in the page pool.
inline std::byte* paged_entry(const paged_view& v, uint32_t slot, uint32_t group) {
  const uint32_t page = v.table[size_t(slot) * v.table_stride + group / v.per_page];
  return v.pages + page * v.page_bytes + v.offset + size_t(group % v.per_page) * v.entry_bytes;
}

}  // namespace troupe::kernels::cpu
