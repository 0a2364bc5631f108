// The lightning indexer: scores and the two-level top-k.
#include <algorithm>
#include <limits>

#include "kernels/cpu/operators_impl.hpp"
#include "kernels/cpu/top_k.hpp"
#include "kernels/cpu/views.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {
namespace {

constexpr uint32_t chunk_keys = 1024;              // keys of a row that one task scores
constexpr size_t score_budget = size_t(16) << 20;  // floats of scores held at once: rows are taken in groups

/// The groups that a row scores: all visible ones, or those inside its candidate blocks.
struct scored_groups {
  uint32_t count = 0;
  const uint32_t* blocks = nullptr;
  uint32_t block = 0;

  scored_groups(uint32_t visible, uint32_t row, const candidate_blocks* within) : count(visible) {
    if (within == nullptr) return;
    blocks = within->blocks + size_t(row) * within->limit;
    block = within->block;
    uint32_t n = within->counts[row];
    while (n > 0 && size_t(blocks[n - 1]) * block >= visible) --n;
    count = n == 0 ? 0 : (n - 1) * block + std::min(block, visible - blocks[n - 1] * block);  // the last may be partial
  }
  uint32_t group(uint32_t i) const { return blocks == nullptr ? i : blocks[i / block] * block + i % block; }
};

/// Level one: see operators::index_select. keys: of all visible groups, in order.
uint32_t choose_blocks(const int32_t* keys, uint32_t visible, const candidate_blocks& to, uint32_t* out,
                       int32_t* work) {
  const uint32_t blocks = (visible + to.block - 1) / to.block;
  int32_t* best = work;
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t end = std::min(visible, (b + 1) * to.block);
    best[b] = *std::max_element(keys + b * to.block, keys + end);
  }
  if (blocks > 0) best[blocks - 1] = std::numeric_limits<int32_t>::max();  // holds the newest visible group
  uint32_t n = 0;
  top_k(best, blocks, to.limit, work + blocks, [&](uint32_t b) { out[n++] = b; });
  return n;
}

}  // namespace

void cpu_operators::index_select(place, const float* q, const float* w, const row_ref* rows, uint32_t n, uint32_t heads,
                                 uint32_t dim, uint32_t ratio, const paged_view& keys, uint32_t topk,
                                 uint32_t* selected, uint32_t* counts, const candidate_blocks* publish,
                                 const candidate_blocks* within, float* scores, size_t scores_stride) {
  TROUPE_CHECK(publish == nullptr || within == nullptr, "a row cannot publish candidates and be restricted to them");
  auto visible = [&](uint32_t i) { return (rows[i].position + 1) / ratio; };
  for (uint32_t first = 0; first < n;) {
    uint32_t last = first, chunks = 0;
    size_t total = 0;
    // offsets[i]: where the row's scores begin; starts[i]: its first task
    size_t* offsets = c_.shared[1].get<size_t>(n);
    uint32_t* starts = c_.shared[2].get<uint32_t>(n + 1);
    for (; last < n && (last == first || total < score_budget); ++last) {
      const uint32_t count = scored_groups(visible(last), last, within).count;
      offsets[last] = total;
      starts[last] = chunks;
      total += count;
      chunks += (count + chunk_keys - 1) / chunk_keys;
    }
    float* found = c_.shared[0].get<float>(total);
    c_.pool.run(chunks, [&](uint32_t task, uint32_t thread) {
      const uint32_t row = uint32_t(std::upper_bound(starts + first, starts + last, task) - starts) - 1;
      const scored_groups groups(visible(row), row, within);
      const uint32_t begin = (task - starts[row]) * chunk_keys, count = std::min(chunk_keys, groups.count - begin);
      std::byte* memory =
          c_.per_thread[thread].get<std::byte>(chunk_keys * sizeof(void*) + index_scratch(heads, dim) * sizeof(float));
      const std::byte** list = reinterpret_cast<const std::byte**>(memory);
      for (uint32_t i = 0; i < count; ++i) list[i] = paged_entry(keys, rows[row].slot, groups.group(begin + i));
      c_.kernels.index_scores(q + size_t(row) * heads * dim, w + size_t(row) * heads, heads, dim, list, count,
                              found + offsets[row] + begin,
                              reinterpret_cast<float*>(memory + chunk_keys * sizeof(void*)));
    });
    c_.pool.run(last - first, [&](uint32_t task, uint32_t thread) {
      const uint32_t row = first + task;
      const scored_groups groups(visible(row), row, within);
      const float* s = found + offsets[row];
      int32_t* order = c_.per_thread[thread].get<int32_t>(size_t(groups.count) * 3 + 2);
      int32_t* work = order + groups.count;
      for (uint32_t i = 0; i < groups.count; ++i) order[i] = order_key(s[i]);
      uint32_t* out = selected + size_t(row) * topk;
      uint32_t m = 0;
      top_k(order, groups.count, topk, work, [&](uint32_t i) { out[m++] = groups.group(i); });
      counts[row] = m;
      if (publish != nullptr)
        publish->counts[row] =
            choose_blocks(order, groups.count, *publish, publish->blocks + size_t(row) * publish->limit, work);
      if (scores != nullptr) {
        float* to = scores + row * scores_stride;
        std::fill(to, to + scores_stride, -std::numeric_limits<float>::infinity());
        for (uint32_t i = 0; i < groups.count; ++i) to[groups.group(i)] = s[i];
      }
    });
    first = last;
  }
}

}  // namespace troupe::kernels::cpu
