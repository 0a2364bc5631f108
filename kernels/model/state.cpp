#include "kernels/model/state.hpp"

#include <utility>

namespace troupe::kernels {

kv_state::kv_state(kv_state&& o) noexcept
    : ops_(o.ops_),
      where_(o.where_),
      limits_(o.limits_),
      blocks_(std::exchange(o.blocks_, {})),
      windows_(std::move(o.windows_)),
      drafts_(std::move(o.drafts_)),
      open_(std::move(o.open_)),
      entries_(std::move(o.entries_)),
      keys_(std::move(o.keys_)),
      table_(std::move(o.table_)),
      stride_(o.stride_) {}

kv_state::~kv_state() {
  for (const block& b : blocks_) ops_->release(where_, b.data, b.bytes);
}

std::byte* kv_state::take(size_t bytes) {
  std::byte* data = ops_->allocate(where_, bytes);
  if (data) blocks_.push_back({data, bytes});
  return data;
}

result<kv_state> kv_state::make(const model& m, operators& ops, place where, const state_limits& limits,
                                std::span<std::byte> pages) {
  const model_config& c = m.config;
  const model_plan& p = m.plan;
  if (limits.slots == 0 || limits.max_context == 0)
    return fail(errc::invalid_argument, "engine state: {} slots of {} tokens", limits.slots, limits.max_context);
  if (pages.size() < size_t{limits.pages} * p.page_bytes)
    return fail(errc::invalid_argument, "page memory: {} bytes, {} pages of {} bytes need {}", pages.size(),
                limits.pages, p.page_bytes, size_t{limits.pages} * p.page_bytes);
  kv_state s;
  s.ops_ = &ops;
  s.where_ = where;
  s.limits_ = limits;
  s.stride_ = (limits.max_context + p.window - 1) / p.window;
  s.table_.assign(size_t{s.stride_} * limits.slots, 0);
  const uint32_t ring_rows = p.window + 8;
  const size_t slot_bytes = size_t{ring_rows} * p.window_record_bytes;
  for (uint32_t l = 0; l < p.moe_layers; ++l) {
    std::byte* base = s.take(slot_bytes * limits.slots);
    if (!base) return fail(errc::exhausted, "no memory for the window rings of {} slots", limits.slots);
    (l < c.num_hidden_layers ? s.windows_ : s.drafts_).push_back({base, slot_bytes, ring_rows, p.window_record_bytes});
  }
  for (const source_plan& source : p.sources) {
    float* open = nullptr;
    if (source.ratio > 1) {
      open = reinterpret_cast<float*>(s.take(size_t{limits.slots} * source.ratio * 2 * c.head_dim * sizeof(float)));
      if (!open) return fail(errc::exhausted, "no memory for the compressor groups of {} slots", limits.slots);
    }
    s.open_.push_back(open);
    paged_view v{pages.data(),    p.page_bytes,       s.table_.data(),  s.stride_,
                 source.per_page, source.main_offset, source.main_bytes};
    s.entries_.push_back(v);
    v.offset = source.key_offset;
    v.entry_bytes = source.key_bytes;
    s.keys_.push_back(v);
  }
  return s;
}

}  // namespace troupe::kernels
