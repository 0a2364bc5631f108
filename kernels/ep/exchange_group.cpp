#include "kernels/ep/exchange_group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "kernels/ep/checks.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::ep {
namespace {

constexpr nanoseconds small_limit = std::chrono::milliseconds(5);  // for messages that nothing depends on
constexpr nanoseconds forever = std::chrono::hours(1);

std::atomic_ref<uint64_t> stamp_of(slot_header* h) { return std::atomic_ref<uint64_t>(h->stamp); }

inbox_control* control_of(std::byte* region) { return reinterpret_cast<inbox_control*>(region); }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

exchange_group::exchange_group(parts p)
    : p_(std::move(p)), layout_(p_.shape), ranks_(p_.shape.ranks), inbox_(p_.link->inbox()) {
  TROUPE_CHECK(p_.rank < ranks_ && p_.incarnations.size() == ranks_, "rank {} of {}, {} incarnations", p_.rank, ranks_,
               p_.incarnations.size());
  dead_.resize(ranks_);
  bad_seen_.resize(ranks_);
  out_rows_.resize(ranks_);
  out_items_.resize(ranks_);
  in_first_.resize(ranks_ + 1);
  in_notes_.resize(size_t{ranks_} * p_.shape.notes);
  in_note_counts_.resize(ranks_);
  waiting_.reserve(ranks_);
  route_rank_.reserve(size_t{p_.shape.max_rows} * p_.shape.top_k);
}

exchange_group::~exchange_group() {
  if (!failed_) {
    // A rank that leaves may still owe its last messages.
    std::lock_guard lock(p_.link->serial());
    p_.link->flush(std::chrono::milliseconds(100), *this);
  }
  p_.link->ended = true;
  p_.link->signal();
}

void exchange_group::wake() {
  woken_ = true;
  p_.link->signal();
}

void exchange_group::end() {
  p_.link->ended = true;
  p_.link->signal();
}

slot_header exchange_group::make_header(slot_kind kind, uint32_t layer) const {
  slot_header h;
  h.stamp = stamp_;
  h.epoch = p_.epoch.value;
  h.incarnation = p_.incarnations[p_.rank];
  h.step = step_;
  h.kind = kind;
  h.source = p_.rank;
  h.layer = layer;
  return h;
}

slot_header* exchange_group::slot(std::byte* region, slot_kind kind, uint32_t source, uint64_t step) const {
  switch (kind) {
    case slot_kind::step:
      return reinterpret_cast<slot_header*>(region + layout_.step_slot(source, step));
    case slot_kind::dispatch:
      return reinterpret_cast<slot_header*>(region + layout_.dispatch_slot(source));
    default:
      return reinterpret_cast<slot_header*>(region + layout_.combine_slot(source));
  }
}

// The payload is in place: writes the header, the stamp last, and wakes the reader if it has announced that it sleeps.
// Both sides use sequentially consistent operations, so either the reader sees the stamp or this sees the announcement.
void exchange_group::publish(std::byte* peer, uint32_t rank, const slot_header& header) {
  slot_header* to = slot(peer, header.kind, p_.rank, header.step);
  constexpr size_t after = sizeof(uint64_t);
  std::memcpy(reinterpret_cast<std::byte*>(to) + after, reinterpret_cast<const std::byte*>(&header) + after,
              sizeof header - after);
  stamp_of(to).store(header.stamp, std::memory_order_seq_cst);
  if (control_of(peer)->sleeping.load(std::memory_order_seq_cst) != 0) {
    p_.counters->nudges.fetch_add(1, std::memory_order_relaxed);
    send(rank, make_header(slot_kind::nudge, 0), {}, small_limit);
  }
}

bool exchange_group::send(uint32_t rank, const slot_header& header, std::span<const std::byte> payload,
                          nanoseconds limit) {
  if (dead_[rank]) return false;
  std::byte* to = p_.link->buffer(rank, payload.size(), limit, *this);
  if (!to) return false;
  if (!payload.empty()) std::memcpy(to, payload.data(), payload.size());
  p_.link->post(rank, header, payload.size());
  return true;
}

result<void> exchange_group::usable() {
  if (failed_) return fail(failure_);
  if (p_.link->ended) return fail(errc::cancelled, "the group of epoch {} has ended", p_.epoch.value);
  return {};
}

result<void> exchange_group::lose(std::vector<uint32_t> suspects, std::string why) {
  std::sort(suspects.begin(), suspects.end());
  suspects.erase(std::unique(suspects.begin(), suspects.end()), suspects.end());
  failed_ = true;
  failure_ = error{errc::peer_lost, fmt::format("group epoch {}, step {}: {}", p_.epoch.value, step_, why)};
  p_.counters->peers_lost.fetch_add(suspects.size(), std::memory_order_relaxed);
  // The others would wait for this rank now: tell them whom to suspect instead.
  slot_header h = make_header(slot_kind::abandon, 0);
  h.items = static_cast<uint32_t>(suspects.size());
  for (uint32_t r = 0; r < ranks_; ++r)
    if (r != p_.rank && !std::binary_search(suspects.begin(), suspects.end(), r))
      send(r, h, std::as_bytes(std::span(suspects)), small_limit);
  p_.link->flush(small_limit, *this);
  suspects_ = std::move(suspects);
  return fail(failure_);
}

void exchange_group::on_dead(uint32_t rank) {
  if (rank >= ranks_) return;
  dead_[rank] = true;
  ++deaths_;
}

bool exchange_group::arrived(slot_kind kind, uint32_t source) {
  slot_header* h = slot(inbox_, kind, source, step_);
  if (stamp_of(h).load(std::memory_order_seq_cst) != stamp_) return false;
  if (h->epoch == p_.epoch.value && h->incarnation == p_.incarnations[source] && h->source == source) return true;
  if (bad_seen_[source] != stamp_) {
    bad_seen_[source] = stamp_;
    p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
  }
  return false;
}

bool exchange_group::all_arrived(slot_kind kind) {
  std::erase_if(waiting_, [&](uint32_t source) { return arrived(kind, source); });
  return waiting_.empty();
}

// A rank that said that this step is its last may be gone once it has given what this exchange needs of it.
bool exchange_group::has_left(slot_kind kind, uint32_t rank) {
  if (std::count(waiting_.begin(), waiting_.end(), rank)) return false;
  if (leaving_ || kind != slot_kind::step) return leaving_;
  wire_step w;
  std::memcpy(&w, inbox_ + layout_.step_slot(rank, step_) + sizeof(slot_header), sizeof w);
  return (w.flags & 16) != 0;
}

result<void> exchange_group::check_arrived(slot_kind kind, uint32_t layer) {
  for (uint32_t s = 0; s < ranks_; ++s) {
    if (s == p_.rank) continue;
    const slot_header* h = slot(inbox_, kind, s, step_);
    if (h->step != step_ || h->layer != layer || h->kind != kind)
      return lose({s}, fmt::format("rank {} is at step {}, layer {}, exchange kind {} where this rank is at layer {}, "
                                   "kind {}: the ranks do not make the same calls",
                                   s, h->step, h->layer, static_cast<int>(h->kind), layer, static_cast<int>(kind)));
  }
  return {};
}

result<void> exchange_group::wait_for(slot_kind kind, uint32_t layer) {
  waiting_.clear();
  for (uint32_t s = 0; s < ranks_; ++s)
    if (s != p_.rank) waiting_.push_back(s);
  p_.counters->exchanges.fetch_add(1, std::memory_order_relaxed);
  const clock_source& clock = steady_clock();
  const bool messages = p_.link->has_message_peers();
  nanoseconds start{-1};
  for (uint32_t round = 0;; ++round) {
    if (all_arrived(kind)) return check_arrived(kind, layer);
    // Direct stores need no progress; death notices and nudges can wait some rounds.
    if (messages || round % 64 == 63) p_.link->progress(*this);
    if (failed_) {
      // Abandoned by a peer that may be a step ahead: what it gave for this exchange came before, and completes it.
      if (all_arrived(kind)) return check_arrived(kind, layer);
      return fail(failure_);
    }
    if (p_.link->ended) return usable();
    const uint32_t deaths = deaths_;
    if (deaths != 0) {
      // What the dead have still sent counts, so look again before judging.
      if (all_arrived(kind)) return check_arrived(kind, layer);
      std::vector<uint32_t> gone;
      for (uint32_t r = 0; r < ranks_; ++r)
        if (dead_[r] && !has_left(kind, r)) gone.push_back(r);
      if (!gone.empty()) {
        auto why = fmt::format("the connection to rank {} ended", fmt::join(gone, ", "));
        return lose(std::move(gone), std::move(why));
      }
    }
    if (round < p_.wait.spins) {
      relax();
      continue;
    }
    const nanoseconds now = clock.now();
    if (start.count() < 0) start = now;
    const nanoseconds waited = now - start;
    if (waited >= p_.deadline)
      return lose(waiting_, fmt::format("rank {} did not show up within {} ms", fmt::join(waiting_, ", "),
                                        p_.deadline.count() / 1'000'000));
    if (waited < p_.wait.yields) {
      sched_yield();
      continue;
    }
    control_of(inbox_)->sleeping.store(1, std::memory_order_seq_cst);
    p_.link->progress(*this);
    // A death that this progress has brought is judged first: no second notice of it would end the sleep.
    if (!all_arrived(kind) && !failed_ && deaths_ == deaths) {
      p_.counters->sleeps.fetch_add(1, std::memory_order_relaxed);
      p_.link->sleep(p_.deadline - waited);
    }
    control_of(inbox_)->sleeping.store(0, std::memory_order_seq_cst);
    p_.link->progress(*this);
  }
}

result<void> exchange_group::park() {
  for (;;) {
    p_.link->progress(*this);
    if (auto ok = usable(); !ok) return ok;
    for (uint32_t r = 0; r < ranks_; ++r)
      if (dead_[r]) return lose({r}, fmt::format("the connection to rank {} ended while the group was parked", r));
    if (wake_step_ >= step_) return {};
    if (woken_.exchange(false)) {
      for (uint32_t r = 0; r < ranks_; ++r)
        if (r != p_.rank && !send(r, make_header(slot_kind::wake, 0), {}, p_.deadline))
          return lose({r}, fmt::format("rank {} takes no wake message", r));
      return {};
    }
    p_.link->sleep(forever);
  }
}

result<step_header> exchange_group::begin_step(const step_header& mine) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return fail(ok.error());
  if (pending_) return fail(errc::invalid_argument, "begin_step: layer {} was dispatched and not combined", layer_);
  // Direct stores alone would not bring a death notice: look once a step.
  p_.link->progress(*this);
  if (failed_) return fail(failure_);
  for (uint32_t r = 0; r < ranks_; ++r)
    if (dead_[r] && !leaving_)
      return fail(lose({r}, fmt::format("the connection to rank {} ended between two steps", r)).error());
  // What was submitted before is in `mine`, what comes later sets it again.
  if (mine.has_work) woken_ = false;
  ++step_;
  ++stamp_;
  leaving_ = mine.leaving;
  const wire_step wire{mine.chunk_budget_ns, mine.flip_step, mine.flip_version.value, mine.micro_batches,
                       uint32_t{mine.has_work} | uint32_t{mine.encoder} << 1 | uint32_t{mine.decoder} << 2 |
                           uint32_t{mine.draft} << 3 | uint32_t{mine.leaving} << 4 | uint32_t{mine.moving} << 5};
  const slot_header h = make_header(slot_kind::step, 0);
  for (uint32_t i = 1; i < ranks_; ++i) {
    const uint32_t to = (p_.rank + i) % ranks_;
    if (std::byte* peer = p_.link->peer_inbox(to)) {
      std::memcpy(peer + layout_.step_slot(p_.rank, step_) + sizeof h, &wire, sizeof wire);
      publish(peer, to, h);
    } else if (!send(to, h, std::as_bytes(std::span(&wire, 1)), p_.deadline)) {
      return fail(lose({to}, fmt::format("rank {} takes no messages", to)).error());
    }
  }
  if (auto ok = wait_for(slot_kind::step, 0); !ok) return fail(ok.error());
  step_header all = mine;
  for (uint32_t s = 0; s < ranks_; ++s) {
    if (s == p_.rank) continue;
    wire_step w;
    std::memcpy(&w, inbox_ + layout_.step_slot(s, step_) + sizeof(slot_header), sizeof w);
    all.has_work |= (w.flags & 1) != 0;
    all.encoder |= (w.flags & 2) != 0;
    all.decoder |= (w.flags & 4) != 0;
    all.draft |= (w.flags & 8) != 0;
    all.leaving |= (w.flags & 16) != 0;
    all.micro_batches = std::max(all.micro_batches, w.micro_batches);
    all.chunk_budget_ns = std::min(all.chunk_budget_ns, w.chunk_budget_ns);
    all.moving |= (w.flags & 32) != 0;
    if (w.flip_step < all.flip_step) all.flip_version = {};
    if (w.flip_step <= all.flip_step) {
      all.flip_step = w.flip_step;
      all.flip_version = std::max(all.flip_version, placement_version{w.flip_version});
    }
  }
  leaving_ = all.leaving;
  if (!all.has_work && !all.leaving && !all.moving && all.flip_step == step_header::no_flip)
    if (auto ok = park(); !ok) return fail(ok.error());
  return all;
}

void exchange_group::route_rows(std::span<const route> routes, uint32_t rows, uint32_t k) {
  for (uint32_t r = 0; r < ranks_; ++r) {
    out_rows_[r].clear();
    out_items_[r].clear();
  }
  route_rank_.resize(routes.size());
  for (uint32_t row = 0; row < rows; ++row)
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t place = row * k + i;
      const route& r = routes[place];
      auto& to = out_rows_[r.rank];
      if (to.empty() || to.back() != row) to.push_back(row);
      out_items_[r.rank].push_back({static_cast<uint32_t>(to.size() - 1), r.expert, r.weight, place});
      route_rank_[place] = r.rank;
    }
}

result<void> exchange_group::send_dispatch(uint32_t to, std::span<const float> x) {
  const auto& rows = out_rows_[to];
  const auto& items = out_items_[to];
  slot_header h = make_header(slot_kind::dispatch, layer_);
  h.rows = static_cast<uint32_t>(rows.size());
  h.items = static_cast<uint32_t>(items.size());
  h.k = k_;
  const size_t width = size_t{p_.shape.hidden} * sizeof(float);
  const size_t item_bytes = items.size() * sizeof(wire_item);
  std::byte* peer = p_.link->peer_inbox(to);
  std::byte* at;
  std::byte* row_at;
  if (peer) {
    at = peer + layout_.dispatch_slot(p_.rank) + sizeof h;
    row_at = at + layout_.items_bytes;
  } else {
    at = p_.link->buffer(to, item_bytes + rows.size() * width, p_.deadline, *this);
    if (!at) return lose({to}, fmt::format("rank {} takes no messages", to));
    row_at = at + item_bytes;
  }
  if (item_bytes) std::memcpy(at, items.data(), item_bytes);
  for (const uint32_t row : rows) {
    std::memcpy(row_at, x.data() + size_t{row} * p_.shape.hidden, width);
    row_at += width;
  }
  if (peer)
    publish(peer, to, h);
  else
    p_.link->post(to, h, item_bytes + rows.size() * width);
  return {};
}

result<received> exchange_group::dispatch(uint32_t layer, std::span<const float> x, std::span<const route> routes,
                                          uint32_t k) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return fail(ok.error());
  if (pending_) return fail(errc::invalid_argument, "dispatch: layer {} was dispatched and not combined", layer_);
  TROUPE_TRY(const uint32_t rows, check_dispatch(p_.shape, x, routes, k));
  ++stamp_;
  layer_ = layer;
  k_ = k;
  rows_ = rows;
  route_rows(routes, rows, k);
  for (uint32_t i = 1; i < ranks_; ++i)
    if (auto ok = send_dispatch((p_.rank + i) % ranks_, x); !ok) return fail(ok.error());
  if (auto ok = wait_for(slot_kind::dispatch, layer); !ok) return fail(ok.error());
  TROUPE_TRY(const received got, collect(x));
  pending_ = true;
  return got;
}

result<received> exchange_group::collect(std::span<const float> x) {
  const size_t hidden = p_.shape.hidden;
  size_t rows = 0;
  in_items_.clear();
  in_origin_.clear();
  for (uint32_t s = 0; s < ranks_; ++s) {
    in_first_[s] = static_cast<uint32_t>(in_items_.size());
    const bool self = s == p_.rank;
    const slot_header* h = self ? nullptr : slot(inbox_, slot_kind::dispatch, s, step_);
    const uint32_t n = self ? static_cast<uint32_t>(out_rows_[s].size()) : h->rows;
    const uint32_t m = self ? static_cast<uint32_t>(out_items_[s].size()) : h->items;
    const std::byte* at = self ? nullptr : reinterpret_cast<const std::byte*>(h + 1);
    const wire_item* items = self ? out_items_[s].data() : reinterpret_cast<const wire_item*>(at);
    bool good = n <= p_.shape.max_rows && m <= uint64_t{n} * p_.shape.top_k;
    for (uint32_t i = 0; good && i < m; ++i) {
      const wire_item item = items[i];
      good = item.row < n && item.place < uint64_t{p_.shape.max_rows} * p_.shape.top_k;
      in_items_.push_back({static_cast<uint32_t>(rows) + item.row, item.expert, item.weight});
      in_origin_.push_back({s, item.place});
    }
    if (!good)
      return fail(lose({s}, fmt::format("rank {} dispatched {} rows and {} items that do not fit", s, n, m)).error());
    if (in_rows_.size() < (rows + n) * hidden) in_rows_.resize((rows + n) * hidden);
    float* to = in_rows_.data() + rows * hidden;
    if (self) {
      for (const uint32_t row : out_rows_[s]) {
        std::memcpy(to, x.data() + row * hidden, hidden * sizeof(float));
        to += hidden;
      }
    } else if (n > 0) {
      std::memcpy(to, at + layout_.items_bytes, n * hidden * sizeof(float));
    }
    rows += n;
  }
  in_first_[ranks_] = static_cast<uint32_t>(in_items_.size());
  return received{std::span(in_rows_.data(), rows * hidden), in_items_};
}

result<void> exchange_group::send_combine(uint32_t to, std::span<const float> y, std::span<const uint32_t> notes) {
  const size_t hidden = p_.shape.hidden;
  const uint32_t first = in_first_[to], count = in_first_[to + 1] - first;
  slot_header h = make_header(slot_kind::combine, layer_);
  h.items = count;
  h.rows = static_cast<uint32_t>(notes.size());
  if (std::byte* peer = p_.link->peer_inbox(to)) {
    auto* area = reinterpret_cast<float*>(peer + layout_.combine_area);
    for (uint32_t i = first; i < first + count; ++i)
      std::memcpy(area + in_origin_[i].place * hidden, y.data() + i * hidden, hidden * sizeof(float));
    if (!notes.empty()) std::memcpy(peer + layout_.combine_slot(p_.rank) + sizeof h, notes.data(), notes.size_bytes());
    publish(peer, to, h);
    return {};
  }
  const size_t bytes = count * (sizeof(uint32_t) + hidden * sizeof(float)) + notes.size_bytes();
  std::byte* at = p_.link->buffer(to, bytes, p_.deadline, *this);
  if (!at) return lose({to}, fmt::format("rank {} takes no messages", to));
  for (uint32_t i = first; i < first + count; ++i) {
    std::memcpy(at, &in_origin_[i].place, sizeof(uint32_t));
    at += sizeof(uint32_t);
  }
  if (count) std::memcpy(at, y.data() + first * hidden, count * hidden * sizeof(float));
  at += count * hidden * sizeof(float);
  if (!notes.empty()) std::memcpy(at, notes.data(), notes.size_bytes());
  p_.link->post(to, h, bytes);
  return {};
}

result<void> exchange_group::combine(uint32_t layer, std::span<const float> y, std::span<float> out,
                                     std::span<const uint32_t> notes) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return ok;
  if (!pending_ || layer != layer_)
    return fail(errc::invalid_argument, "combine: layer {} was not dispatched last", layer);
  if (auto ok = check_combine(p_.shape, y, in_items_.size(), out, rows_, k_, notes.size()); !ok) return ok;
  ++stamp_;
  pending_ = false;
  for (uint32_t i = 1; i < ranks_; ++i)
    if (auto ok = send_combine((p_.rank + i) % ranks_, y, notes); !ok) return ok;
  const size_t hidden = p_.shape.hidden;
  for (uint32_t i = in_first_[p_.rank]; i < in_first_[p_.rank + 1]; ++i)
    std::memcpy(out.data() + in_origin_[i].place * hidden, y.data() + i * hidden, hidden * sizeof(float));
  if (auto ok = wait_for(slot_kind::combine, layer); !ok) return ok;
  auto keep = [this](uint32_t from, const void* numbers, uint32_t count) {
    in_note_counts_[from] = count;
    if (count) std::memcpy(in_notes_.data() + size_t{from} * p_.shape.notes, numbers, count * sizeof(uint32_t));
  };
  keep(p_.rank, notes.data(), static_cast<uint32_t>(notes.size()));
  for (uint32_t s = 0; s < ranks_; ++s) {
    if (s == p_.rank) continue;
    const slot_header* h = slot(inbox_, slot_kind::combine, s, step_);
    const uint32_t items = h->items, numbers = h->rows;
    if (items != out_items_[s].size() || numbers > p_.shape.notes)
      return lose({s}, fmt::format("rank {} brought back {} of {} vectors, and {} notes", s, items,
                                   out_items_[s].size(), numbers));
    // Its next combine overwrites them, and comes only after this rank's next dispatch.
    keep(s, h + 1, numbers);
  }
  const auto* area = reinterpret_cast<const float*>(inbox_ + layout_.combine_area);
  for (size_t place = 0; place < route_rank_.size(); ++place)
    if (route_rank_[place] != p_.rank)
      std::memcpy(out.data() + place * hidden, area + place * hidden, hidden * sizeof(float));
  return {};
}

}  // namespace troupe::kernels::ep
