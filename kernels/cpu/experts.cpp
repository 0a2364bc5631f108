// Router, expert MLPs grouped by expert, and the combine in top-k order.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/operators_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

void cpu_operators::route(place, const float* logits, uint32_t n, uint32_t experts, const float* bias,
                          float temperature, uint32_t k, float scale, uint32_t* ids, float* weights) {
  TROUPE_CHECK(k <= experts, "top {} of {} experts", k, experts);
  float* all = c_.shared[0].get<float>(size_t(n) * experts);
  each_row(c_, n, [&](uint32_t i) {
    float* s = all + size_t(i) * experts;
    uint32_t* chosen = ids + size_t(i) * k;
    c_.kernels.router_scores(logits + size_t(i) * experts, experts, temperature, s);
    float total = 0;
    for (uint32_t j = 0; j < k; ++j) {
      uint32_t best = experts;
      for (uint32_t e = 0; e < experts; ++e) {
        if (std::find(chosen, chosen + j, e) != chosen + j) continue;
        if (best == experts || s[e] + bias[e] > s[best] + bias[best]) best = e;
      }
      chosen[j] = best;
      total += s[best];
    }
    for (uint32_t j = 0; j < k; ++j) weights[size_t(i) * k + j] = s[chosen[j]] / (total + 1e-20f) * scale;
  });
}

namespace {

size_t bytes_of(const weight& w) {
  const size_t values = size_t{w.rows} * w.cols;
  return w.format == weight_format::f32     ? values * 4
         : w.format == weight_format::bf16  ? values * 2
         : w.format == weight_format::mxfp4 ? values / 2
                                            : values;
}

/// Up to tile_rows items of one expert, neighbours in the sorted order.
struct expert_block {
  uint32_t expert, first, rows;
};

}  // namespace

// The weights lie in the mapped checkpoint: the kernel is asked to have their pages in memory.
void cpu_operators::fetch_expert(place, const expert_weights& e) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const weight* w : {&e.w1, &e.w2, &e.w3}) {
    const auto at = reinterpret_cast<uintptr_t>(w->data), from = at / page * page;
    (void)madvise(reinterpret_cast<void*>(from), at + bytes_of(*w) - from, MADV_WILLNEED);  // only a hint
  }
}

void cpu_operators::expert_mlp(place, const float* x, const expert_item* items, uint32_t count,
                               const expert_weights* experts, uint32_t expert_count, float limit, float* y) {
  if (count == 0) return;
  // Items sorted by expert (stable), cut into blocks.
  uint32_t* starts = c_.shared[0].get<uint32_t>(expert_count + 1);
  uint32_t* order = c_.shared[1].get<uint32_t>(count);
  expert_block* blocks = c_.shared[2].get<expert_block>(count);
  memset(starts, 0, (expert_count + 1) * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    TROUPE_CHECK(items[i].expert < expert_count, "item {} names expert {} of {}", i, items[i].expert, expert_count);
    ++starts[items[i].expert + 1];
  }
  uint32_t n = 0;
  for (uint32_t e = 0; e < expert_count; ++e) {
    const uint32_t rows = starts[e + 1];
    starts[e + 1] += starts[e];
    if (rows == 0) continue;
    const uint32_t parts = (rows + tile_rows - 1) / tile_rows, part = (rows + parts - 1) / parts;
    for (uint32_t first = 0; first < rows; first += part)
      blocks[n++] = {e, starts[e] + first, std::min(part, rows - first)};
  }
  for (uint32_t i = 0; i < count; ++i) order[starts[items[i].expert]++] = i;  // starts[e] is now the end of e

  const expert_weights& shape = experts[blocks[0].expert];
  const uint32_t ffn = shape.w1.rows, hidden = shape.w2.rows, in = shape.w1.cols;
  float* gate = c_.shared[3].get<float>(size_t(count) * ffn);  // sorted order; becomes h
  float* up = c_.shared[4].get<float>(size_t(count) * ffn);

  auto split = [&](uint32_t outputs, auto&& body) {  // body(block, begin, end, scratch)
    const uint32_t tasks_wanted = c_.pool.size() == 1 ? 1 : c_.pool.size() * 6;
    const uint32_t strips_wanted = (tasks_wanted + n - 1) / n;
    const uint32_t width =
        ((outputs + strips_wanted - 1) / strips_wanted + tile_columns - 1) / tile_columns * tile_columns;
    const uint32_t strips = (outputs + width - 1) / width;
    c_.pool.run(n * strips, [&](uint32_t task, uint32_t thread) {
      const uint32_t begin = task % strips * width;
      body(blocks[task / strips], begin, std::min(begin + width, outputs),
           c_.per_thread[thread].get<float>(linear_scratch_bytes / sizeof(float)));
    });
  };
  split(ffn, [&](const expert_block& b, uint32_t begin, uint32_t end, float* scratch) {
    const expert_weights& e = experts[b.expert];
    const float* xs[tile_rows];
    float *gates[tile_rows], *ups[tile_rows];
    for (uint32_t r = 0; r < b.rows; ++r) {
      xs[r] = x + size_t(items[order[b.first + r]].row) * in;
      gates[r] = gate + size_t(b.first + r) * ffn;
      ups[r] = up + size_t(b.first + r) * ffn;
    }
    c_.kernels.linear_tile(xs, b.rows, e.w1, begin, end, gates, scratch);
    c_.kernels.linear_tile(xs, b.rows, e.w3, begin, end, ups, scratch);
    for (uint32_t r = 0; r < b.rows; ++r)
      c_.kernels.swiglu(gates[r] + begin, ups[r] + begin, end - begin, limit, items[order[b.first + r]].route_weight,
                        gates[r] + begin);
  });
  split(hidden, [&](const expert_block& b, uint32_t begin, uint32_t end, float* scratch) {
    const float* hs[tile_rows];
    float* ys[tile_rows];
    for (uint32_t r = 0; r < b.rows; ++r) {
      hs[r] = gate + size_t(b.first + r) * ffn;
      ys[r] = y + size_t(order[b.first + r]) * hidden;
    }
    c_.kernels.linear_tile(hs, b.rows, experts[b.expert].w2, begin, end, ys, scratch);
  });
}

void cpu_operators::combine_add(place, const float* parts, uint32_t n, uint32_t k, uint32_t hidden, const float* shared,
                                float* y) {
  each_row(c_, n, [&](uint32_t i) {
    const float* p = parts + size_t(i) * k * hidden;
    float* out = y + size_t(i) * hidden;
    memcpy(out, k > 0 ? p : shared + size_t(i) * hidden, hidden * sizeof(float));
    for (uint32_t j = 1; j < k; ++j) c_.kernels.add(p + size_t(j) * hidden, hidden, out);
    if (k > 0) c_.kernels.add(shared + size_t(i) * hidden, hidden, out);
  });
}

}  // namespace troupe::kernels::cpu
