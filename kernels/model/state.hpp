// What the engine remembers of its sequences: window rings, open compressor groups, the drafter's context, page tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/model/model.hpp"
#include "kernels/ops.hpp"

namespace troupe::kernels {

/// Sizes of a state.
struct state_limits {
  uint32_t slots = 1;
  uint32_t max_context = 0;  // tokens per sequence
  uint32_t pages = 0;
};

/// Per-slot state in the memory of one place. Rings hold window + 8 rows: a step writes them only when it commits, so
/// the rows a query may still need are never the ones overwritten. Pages lie in memory that the caller hands in. Thread
/// rules: one thread at a time.
class kv_state {
 public:
  /// `pages`: at least limits.pages * plan.page_bytes bytes that outlive the state. exhausted if memory is short.
  static result<kv_state> make(const model& m, operators& ops, place where, const state_limits& limits,
                               std::span<std::byte> pages);
  kv_state(kv_state&&) noexcept;
  kv_state& operator=(kv_state&&) = delete;
  ~kv_state();

  const state_limits& limits() const { return limits_; }
  const ring_view& window(uint32_t layer) const { return windows_[layer]; }
  const ring_view& draft(uint32_t block) const { return drafts_[block]; }
  /// [slot][ratio][2][head_dim] of a source with ratio > 1, else null.
  float* open(uint32_t source) const { return open_[source]; }
  const paged_view& entries(uint32_t source) const { return entries_[source]; }
  const paged_view& keys(uint32_t source) const { return keys_[source]; }
  /// The slot's page numbers, [max_context / window rounded up].
  std::span<uint32_t> table(uint32_t slot) { return {table_.data() + slot * stride_, stride_}; }

 private:
  kv_state() = default;
  struct block {
    std::byte* data;
    size_t bytes;
  };
  std::byte* take(size_t bytes);
  operators* ops_ = nullptr;
  place where_;
  state_limits limits_;
  std::vector<block> blocks_;
  std::vector<ring_view> windows_, drafts_;
  std::vector<float*> open_;
  std::vector<paged_view> entries_, keys_;
  std::vector<uint32_t> table_;
  uint32_t stride_ = 0;
};

}  // namespace troupe::kernels
