// What a group does with messages: checks their headers and puts their content where a direct store would have put it.
#include <algorithm>
#include <cstring>

#include "kernels/ep/exchange_group.hpp"

namespace troupe::kernels::ep {
namespace {

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

inbox_layout::inbox_layout(const group_shape& shape) {
  const size_t width = size_t{shape.hidden} * sizeof(float);
  step_bytes = round_up(sizeof(slot_header) + sizeof(wire_step));
  steps = round_up(sizeof(inbox_control));
  total = steps + shape.ranks * 2 * step_bytes;
  micro = {};
  for (uint32_t b = 0; b < shape.micro_batches; ++b) {
    micro_layout& m = micro[b];
    const size_t rows = shape.rows_of(b);
    m.items_bytes = round_up(rows * shape.top_k * sizeof(wire_item));
    m.dispatch_bytes = sizeof(slot_header) + m.items_bytes + round_up(rows * width);
    m.combine_bytes = sizeof(slot_header) + round_up(size_t{shape.notes} * sizeof(uint32_t));
    m.dispatches = total;
    m.combines = m.dispatches + shape.ranks * m.dispatch_bytes;
    m.combine_area = m.combines + shape.ranks * m.combine_bytes;
    total = m.combine_area + round_up(rows * shape.top_k * width);
  }
}

void exchange_group::on_message(const slot_header& h, std::span<const std::byte> payload) {
  const bool mine = h.epoch == p_.epoch.value && h.source < ranks_ && h.source != p_.rank &&
                    h.incarnation == p_.incarnations[h.source];
  if (!mine) {
    p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  switch (h.kind) {
    case slot_kind::nudge:
      return;
    case slot_kind::wake:
      wake_step_ = std::max(wake_step_, h.step);
      return;
    case slot_kind::abandon: {
      if (failed_) return;
      failed_ = true;
      failure_ = error{errc::peer_lost, fmt::format("group epoch {}, step {}: rank {} has abandoned the step",
                                                    p_.epoch.value, step_, h.source)};
      const size_t n = std::min<size_t>(h.items, payload.size() / sizeof(uint32_t));
      for (size_t i = 0; i < n; ++i) {
        uint32_t r;
        std::memcpy(&r, payload.data() + i * sizeof r, sizeof r);
        // Itself among the suspects: the others have given this rank up, and it suspects nobody.
        if (r < ranks_ && r != p_.rank) suspects_.push_back(r);
      }
      return;
    }
    case slot_kind::step:
    case slot_kind::dispatch:
    case slot_kind::combine:
      take_message(h, payload);
      return;
    case slot_kind::hello:
      return;  // the endpoint's
  }
  p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
}

// In each micro-batch, and in the steps, a peer may be one exchange ahead of this rank, never more, and comes with each
// exchange once.
void exchange_group::take_message(const slot_header& h, std::span<const std::byte> payload) {
  if (h.micro >= p_.shape.micro_batches) {
    p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto& layout = layout_.micro[h.micro];
  const auto& route_rank = micro_[h.micro].route_rank;
  slot_header* to = slot(inbox_, h.kind, h.source, h.kind == slot_kind::step ? h.step : h.micro);
  std::atomic_ref<uint64_t> stamp(to->stamp);
  const uint64_t here = h.kind == slot_kind::step ? step_ : micro_[h.micro].stamp;
  bool good = (h.stamp == here || h.stamp == here + 1) && stamp.load(std::memory_order_relaxed) < h.stamp;
  const size_t width = size_t{p_.shape.hidden} * sizeof(float);
  const uint32_t rows = p_.shape.rows_of(h.micro);
  const uint64_t places = uint64_t{rows} * p_.shape.top_k;
  auto* content = reinterpret_cast<std::byte*>(to + 1);
  if (good && h.kind == slot_kind::step) {
    good = payload.size() == sizeof(wire_step);
    if (good) std::memcpy(content, payload.data(), sizeof(wire_step));
  } else if (good && h.kind == slot_kind::dispatch) {
    const size_t item_bytes = size_t{h.items} * sizeof(wire_item);
    good = h.rows <= rows && h.items <= places && payload.size() == item_bytes + h.rows * width;
    if (good && item_bytes) std::memcpy(content, payload.data(), item_bytes);
    if (good && h.rows) std::memcpy(content + layout.items_bytes, payload.data() + item_bytes, h.rows * width);
  } else if (good) {
    const size_t vector_bytes = h.items * (sizeof(uint32_t) + width);
    good = h.items <= places && h.rows <= p_.shape.notes && payload.size() == vector_bytes + h.rows * sizeof(uint32_t);
    const std::byte* vectors = payload.data() + size_t{h.items} * sizeof(uint32_t);
    for (uint32_t i = 0; good && i < h.items; ++i) {
      uint32_t place;
      std::memcpy(&place, payload.data() + size_t{i} * sizeof place, sizeof place);
      // A vector may only come from the rank that the row was sent to.
      good = place < route_rank.size() && route_rank[place] == h.source;
      if (good) std::memcpy(inbox_ + layout.combine_area + place * width, vectors + i * width, width);
    }
    if (good && h.rows) std::memcpy(content, payload.data() + vector_bytes, h.rows * sizeof(uint32_t));
  }
  if (!good) {
    p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  constexpr size_t after = sizeof(uint64_t);
  std::memcpy(reinterpret_cast<std::byte*>(to) + after, reinterpret_cast<const std::byte*>(&h) + after,
              sizeof h - after);
  stamp.store(h.stamp, std::memory_order_release);
}

}  // namespace troupe::kernels::ep
