// Attention over window records and selected entries, and the drafter's attention.
#include <algorithm>

#include "kernels/cpu/operators_impl.hpp"
#include "kernels/cpu/views.hpp"

namespace troupe::kernels::cpu {
namespace {

/// Heads per task: all of a row's where there are rows enough for the threads. A head's result does not depend on it.
uint32_t heads_per_task(const context& c, uint32_t rows, uint32_t heads) {
  if (rows >= c.pool.size() || c.pool.size() == 1) return heads;
  const uint32_t parts = (c.pool.size() + rows - 1) / rows;
  return ((heads + parts - 1) / parts + 3) / 4 * 4;
}

/// First position of a window that ends at `last`.
uint32_t window_begin(uint32_t last, uint32_t window, uint32_t floor) {
  return std::max(floor, last + 1 > window ? last + 1 - window : 0);
}

/// Runs `rows` x head groups; list(row, pointers) fills the row's keys, at most `most`, and returns the list.
template <class List>
void attend(context& c, const float* q, uint32_t rows, uint32_t heads, uint32_t dim, float scale, const float* sink,
            uint32_t most, float* out, List&& list) {
  if (rows == 0) return;
  const uint32_t per_task = heads_per_task(c, rows, heads), parts = (heads + per_task - 1) / per_task;
  c.pool.run(rows * parts, [&](uint32_t task, uint32_t thread) {
    const uint32_t row = task / parts, head = task % parts * per_task, count = std::min(per_task, heads - head);
    const size_t pointer_bytes = (most * sizeof(void*) + 63) / 64 * 64;
    std::byte* memory =
        c.per_thread[thread].get<std::byte>(pointer_bytes + attention_scratch(per_task, dim, most) * sizeof(float));
    const std::byte** pointers = reinterpret_cast<const std::byte**>(memory);
    const key_list keys = list(row, pointers);
    const size_t at = (size_t(row) * heads + head) * dim;
    c.kernels.attention(q + at, count, dim, keys, scale, sink + head, out + at,
                        reinterpret_cast<float*>(memory + pointer_bytes));
  });
}

}  // namespace

void cpu_operators::attention(place, const float* q, const row_ref* rows, uint32_t n, uint32_t heads, uint32_t dim,
                              uint32_t window, float scale, const float* sink, const ring_view& ring,
                              const std::byte* records, const uint32_t* selected, const uint32_t* counts, uint32_t topk,
                              const paged_view& entries, float* out) {
  const uint32_t most = window + (selected != nullptr ? topk : 0);
  attend(c_, q, n, heads, dim, scale, sink, most, out, [&](uint32_t i, const std::byte** pointers) {
    const row_ref& row = rows[i];
    uint32_t k = 0;
    for (uint32_t p = window_begin(row.position, window, row.window_floor); p <= row.position; ++p)
      pointers[k++] = p >= row.first_position
                          ? records + (size_t(row.first_row) + (p - row.first_position)) * ring.record_bytes
                          : ring_record(ring, row.slot, p);
    key_list keys{pointers, k, pointers + k, 0};
    if (selected != nullptr) {
      keys.entry_count = counts[i];
      for (uint32_t e = 0; e < counts[i]; ++e)
        pointers[k++] = paged_entry(entries, row.slot, selected[size_t(i) * topk + e]);
    }
    return keys;
  });
}

void cpu_operators::draft_attention(place, const float* q, const draft_ref* sequences, uint32_t n, uint32_t block,
                                    uint32_t heads, uint32_t dim, uint32_t window, float scale, const float* sink,
                                    const ring_view& ring, const std::byte* context, const std::byte* slots,
                                    float* out) {
  attend(c_, q, n * block, heads, dim, scale, sink, window + block, out, [&](uint32_t i, const std::byte** pointers) {
    const draft_ref& s = sequences[i / block];
    uint32_t k = 0;
    for (uint32_t p = window_begin(s.last, window, s.floor); p <= s.last; ++p)
      pointers[k++] = p >= s.first_position
                          ? context + (size_t(s.first_row) + (p - s.first_position)) * ring.record_bytes
                          : ring_record(ring, s.slot, p);
    for (uint32_t j = 0; j < block; ++j) pointers[k++] = slots + (size_t(i / block) * block + j) * ring.record_bytes;
    return key_list{pointers, k, nullptr, 0};
  });
}

}  // namespace troupe::kernels::cpu
