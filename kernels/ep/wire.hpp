// What lies in a rank's inbox region and in the messages between ranks. All members of a group run the same binary on
// machines of one byte order; sizes are checked by the reader.
//
// Inbox region of a rank (one per epoch), for each source rank s:
//   step[2]   slot header + step header      two, because a rank may publish step n+1 before this one has read step n
// and for each micro-batch, with its most rows R, for each source
//   dispatch  slot header + wire_item[R * top_k] + float[R * hidden]
//   combine   slot header + uint32_t[notes]
// and one combine area float[R * top_k * hidden], where the sources put vectors at (row * k + i): their places
// are disjoint. One dispatch and one combine slot are enough: a source sends layer n+1's dispatch only after it has
// this rank's combine of layer n, which this rank sends after it is done with that dispatch; the same holds for
// combine. Micro-batches share nothing, so neither waits for the other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/ep/ep.hpp"

namespace troupe::kernels::ep {

/// What a slot or message is. Sent between processes: append only.
enum class slot_kind : uint32_t { step = 1, dispatch = 2, combine = 3, wake = 4, nudge = 5, abandon = 6, hello = 7 };

/// First 64 bytes of every slot and message. In shared memory `stamp` is written last (release) and read first
/// (acquire).
struct alignas(64) slot_header {
  uint64_t stamp = 0;  // step: its number; dispatch, combine: number of the micro-batch's exchange since the group was
                       // made, from 1
  uint64_t epoch = 0;
  uint64_t incarnation = 0;  // of the source's process
  uint64_t step = 0;
  slot_kind kind = slot_kind::step;
  uint32_t source = 0;  // rank
  uint32_t layer = 0;   // exchange of the step, as the engine counts
  uint32_t rows = 0;    // dispatch: rows that follow; combine: notes that follow
  uint32_t items = 0;   // dispatch, combine: items that follow; abandon: ranks that follow
  uint32_t k = 0;       // dispatch: routes per row
  uint32_t micro = 0;   // dispatch, combine: micro-batch
};
static_assert(sizeof(slot_header) == 64);

/// A step header as it travels.
struct wire_step {
  uint64_t chunk_budget_ns = 0, flip_step = 0, flip_version = 0;
  uint32_t micro_batches = 0;
  uint32_t flags = 0;  // 1 has_work, 2 encoder, 4 decoder, 8 draft, 16 leaving, 32 moving
};
static_assert(sizeof(wire_step) == 32);

/// One (row, expert) pair as it travels.
struct wire_item {
  uint32_t row = 0;  // of the rows that were sent
  uint32_t expert = 0;
  float weight = 0;
  uint32_t place = 0;  // row * k + i at home
};
static_assert(sizeof(wire_item) == 16);

/// Start of an inbox region.
struct alignas(64) inbox_control {
  std::atomic<uint32_t> sleeping;  // the owner sleeps, or is about to: a writer sends a nudge
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// Offsets of an inbox region; the same on all ranks of a group.
struct inbox_layout {
  explicit inbox_layout(const group_shape& shape);
  size_t step_slot(uint32_t source, uint64_t step) const {
    return steps + (size_t{source} * 2 + step % 2) * step_bytes;
  }
  struct micro_layout {
    size_t dispatch_slot(uint32_t source) const { return dispatches + source * dispatch_bytes; }
    size_t combine_slot(uint32_t source) const { return combines + source * combine_bytes; }

    size_t dispatch_bytes, combine_bytes;
    size_t items_bytes;  // of the items in a dispatch slot
    size_t dispatches, combines, combine_area;
  };

  size_t step_bytes;
  size_t steps, total;
  std::array<micro_layout, 2> micro;  // as many as the shape has
};

}  // namespace troupe::kernels::ep
