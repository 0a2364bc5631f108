// The halves of dispatch and combine: what a group sends, and what it makes of what came.
#include <algorithm>
#include <cstring>

#include "kernels/ep/checks.hpp"
#include "kernels/ep/exchange_group.hpp"

namespace troupe::kernels::ep {

void exchange_group::micro_state::keep_notes(uint32_t from, const void* numbers, uint32_t count, uint32_t most) {
  in_note_counts[from] = count;
  if (count) std::memcpy(in_notes.data() + size_t{from} * most, numbers, count * sizeof(uint32_t));
}

void exchange_group::route_rows(micro_state& m, std::span<const route> routes) {
  for (uint32_t r = 0; r < ranks_; ++r) {
    m.out_rows[r].clear();
    m.out_items[r].clear();
  }
  m.route_rank.resize(routes.size());
  for (uint32_t row = 0; row < m.rows; ++row)
    for (uint32_t i = 0; i < m.k; ++i) {
      const uint32_t place = row * m.k + i;
      const route& r = routes[place];
      auto& to = m.out_rows[r.rank];
      if (to.empty() || to.back() != row) to.push_back(row);
      m.out_items[r.rank].push_back({static_cast<uint32_t>(to.size() - 1), r.expert, r.weight, place});
      m.route_rank[place] = r.rank;
    }
}

result<void> exchange_group::send_rows(uint32_t micro, uint32_t to) {
  const micro_state& m = micro_[micro];
  const auto& rows = m.out_rows[to];
  const auto& items = m.out_items[to];
  slot_header h = make_header(slot_kind::dispatch, micro);
  h.rows = static_cast<uint32_t>(rows.size());
  h.items = static_cast<uint32_t>(items.size());
  h.k = m.k;
  const size_t width = size_t{p_.shape.hidden} * sizeof(float);
  const size_t item_bytes = items.size() * sizeof(wire_item);
  std::byte* peer = p_.link->peer_inbox(to);
  std::byte* at;
  std::byte* row_at;
  if (peer) {
    at = peer + layout_.micro[micro].dispatch_slot(p_.rank) + sizeof h;
    row_at = at + layout_.micro[micro].items_bytes;
  } else {
    at = p_.link->buffer(to, item_bytes + rows.size() * width, p_.deadline, *this);
    if (!at) return lose({to}, fmt::format("rank {} takes no messages", to));
    row_at = at + item_bytes;
  }
  if (item_bytes) std::memcpy(at, items.data(), item_bytes);
  for (const uint32_t row : rows) {
    std::memcpy(row_at, m.x.data() + size_t{row} * p_.shape.hidden, width);
    row_at += width;
  }
  if (peer)
    publish(peer, to, h);
  else
    p_.link->post(to, h, item_bytes + rows.size() * width);
  return {};
}

result<void> exchange_group::dispatch_send(uint32_t micro, uint32_t layer, std::span<const float> x,
                                           std::span<const route> routes, uint32_t k) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return ok;
  auto rows = check_dispatch(p_.shape, micro, x, routes, k);
  if (!rows) return fail(std::move(rows.error()));
  micro_state& m = micro_[micro];
  if (m.at != phase::idle)
    return fail(errc::invalid_argument, "dispatch: layer {} was dispatched and not combined", m.layer);
  ++m.stamp;
  m.layer = layer;
  m.k = k;
  m.rows = *rows;
  m.x = x;
  m.at = phase::dispatched;
  route_rows(m, routes);
  for (uint32_t i = 1; i < ranks_; ++i)
    if (auto ok = send_rows(micro, (p_.rank + i) % ranks_); !ok) return ok;
  return {};
}

result<received> exchange_group::dispatch_wait(uint32_t micro) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return fail(ok.error());
  if (auto ok = check_micro(p_.shape, micro); !ok) return fail(ok.error());
  micro_state& m = micro_[micro];
  if (m.at != phase::dispatched) return fail(errc::invalid_argument, "dispatch: there is nothing to wait for");
  if (auto ok = wait_for({slot_kind::dispatch, micro, m.layer, m.stamp}); !ok) return fail(ok.error());
  TROUPE_TRY(const received got, collect(micro));
  m.at = phase::received;
  return got;
}

result<received> exchange_group::collect(uint32_t micro) {
  micro_state& m = micro_[micro];
  const size_t hidden = p_.shape.hidden;
  const uint32_t most = p_.shape.rows_of(micro);
  size_t rows = 0;
  m.in_items.clear();
  m.in_origin.clear();
  for (uint32_t s = 0; s < ranks_; ++s) {
    m.in_first[s] = static_cast<uint32_t>(m.in_items.size());
    const bool self = s == p_.rank;
    const slot_header* h = self ? nullptr : slot(inbox_, slot_kind::dispatch, s, micro);
    const uint32_t n = self ? static_cast<uint32_t>(m.out_rows[s].size()) : h->rows;
    const uint32_t count = self ? static_cast<uint32_t>(m.out_items[s].size()) : h->items;
    const std::byte* at = self ? nullptr : reinterpret_cast<const std::byte*>(h + 1);
    const wire_item* items = self ? m.out_items[s].data() : reinterpret_cast<const wire_item*>(at);
    bool good = n <= most && count <= uint64_t{n} * p_.shape.top_k;
    for (uint32_t i = 0; good && i < count; ++i) {
      const wire_item item = items[i];
      good = item.row < n && item.place < uint64_t{most} * p_.shape.top_k;
      m.in_items.push_back({static_cast<uint32_t>(rows) + item.row, item.expert, item.weight});
      m.in_origin.push_back({s, item.place});
    }
    if (!good)
      return fail(
          lose({s}, fmt::format("rank {} dispatched {} rows and {} items that do not fit", s, n, count)).error());
    if (m.in_rows.size() < (rows + n) * hidden) m.in_rows.resize((rows + n) * hidden);
    float* to = m.in_rows.data() + rows * hidden;
    if (self) {
      for (const uint32_t row : m.out_rows[s]) {
        std::memcpy(to, m.x.data() + row * hidden, hidden * sizeof(float));
        to += hidden;
      }
    } else if (n > 0) {
      std::memcpy(to, at + layout_.micro[micro].items_bytes, n * hidden * sizeof(float));
    }
    rows += n;
  }
  m.in_first[ranks_] = static_cast<uint32_t>(m.in_items.size());
  return received{std::span(m.in_rows.data(), rows * hidden), m.in_items};
}

result<void> exchange_group::send_vectors(uint32_t micro, uint32_t to, std::span<const float> y,
                                          std::span<const uint32_t> notes) {
  const micro_state& m = micro_[micro];
  const auto& layout = layout_.micro[micro];
  const size_t hidden = p_.shape.hidden;
  const uint32_t first = m.in_first[to], count = m.in_first[to + 1] - first;
  slot_header h = make_header(slot_kind::combine, micro);
  h.items = count;
  h.rows = static_cast<uint32_t>(notes.size());
  if (std::byte* peer = p_.link->peer_inbox(to)) {
    auto* area = reinterpret_cast<float*>(peer + layout.combine_area);
    for (uint32_t i = first; i < first + count; ++i)
      std::memcpy(area + m.in_origin[i].place * hidden, y.data() + i * hidden, hidden * sizeof(float));
    if (!notes.empty()) std::memcpy(peer + layout.combine_slot(p_.rank) + sizeof h, notes.data(), notes.size_bytes());
    publish(peer, to, h);
    return {};
  }
  const size_t bytes = count * (sizeof(uint32_t) + hidden * sizeof(float)) + notes.size_bytes();
  std::byte* at = p_.link->buffer(to, bytes, p_.deadline, *this);
  if (!at) return lose({to}, fmt::format("rank {} takes no messages", to));
  for (uint32_t i = first; i < first + count; ++i) {
    std::memcpy(at, &m.in_origin[i].place, sizeof(uint32_t));
    at += sizeof(uint32_t);
  }
  if (count) std::memcpy(at, y.data() + first * hidden, count * hidden * sizeof(float));
  at += count * hidden * sizeof(float);
  if (!notes.empty()) std::memcpy(at, notes.data(), notes.size_bytes());
  p_.link->post(to, h, bytes);
  return {};
}

result<void> exchange_group::combine_send(uint32_t micro, uint32_t layer, std::span<const float> y,
                                          std::span<float> out, std::span<const uint32_t> notes) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return ok;
  if (auto ok = check_micro(p_.shape, micro); !ok) return ok;
  micro_state& m = micro_[micro];
  if (m.at != phase::received || layer != m.layer)
    return fail(errc::invalid_argument, "combine: layer {} was not dispatched last", layer);
  if (auto ok = check_combine(p_.shape, y, m.in_items.size(), out, m.rows, m.k, notes.size()); !ok) return ok;
  ++m.stamp;
  m.out = out;
  m.at = phase::combined;
  for (uint32_t i = 1; i < ranks_; ++i)
    if (auto ok = send_vectors(micro, (p_.rank + i) % ranks_, y, notes); !ok) return ok;
  const size_t hidden = p_.shape.hidden;
  for (uint32_t i = m.in_first[p_.rank]; i < m.in_first[p_.rank + 1]; ++i)
    std::memcpy(out.data() + m.in_origin[i].place * hidden, y.data() + i * hidden, hidden * sizeof(float));
  m.keep_notes(p_.rank, notes.data(), static_cast<uint32_t>(notes.size()), p_.shape.notes);
  return {};
}

result<void> exchange_group::combine_wait(uint32_t micro) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return ok;
  if (auto ok = check_micro(p_.shape, micro); !ok) return ok;
  micro_state& m = micro_[micro];
  if (m.at != phase::combined) return fail(errc::invalid_argument, "combine: there is nothing to wait for");
  if (auto ok = wait_for({slot_kind::combine, micro, m.layer, m.stamp}); !ok) return ok;
  for (uint32_t s = 0; s < ranks_; ++s) {
    if (s == p_.rank) continue;
    const slot_header* h = slot(inbox_, slot_kind::combine, s, micro);
    const uint32_t items = h->items, numbers = h->rows;
    if (items != m.out_items[s].size() || numbers > p_.shape.notes)
      return lose({s}, fmt::format("rank {} brought back {} of {} vectors, and {} notes", s, items,
                                   m.out_items[s].size(), numbers));
    // Its next combine overwrites them, and comes only after this rank's next dispatch.
    m.keep_notes(s, h + 1, numbers, p_.shape.notes);
  }
  m.at = phase::idle;
  const size_t hidden = p_.shape.hidden;
  const auto* area = reinterpret_cast<const float*>(inbox_ + layout_.micro[micro].combine_area);
  for (size_t place = 0; place < m.route_rank.size(); ++place)
    if (m.route_rank[place] != p_.rank)
      std::memcpy(m.out.data() + place * hidden, area + place * hidden, hidden * sizeof(float));
  return {};
}

}  // namespace troupe::kernels::ep
