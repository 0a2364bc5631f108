#include "kernels/ep/exchange_group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

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
  for (uint32_t b = 0; b < p_.shape.micro_batches; ++b) {
    micro_state& m = micro_[b];
    m.out_rows.resize(ranks_);
    m.out_items.resize(ranks_);
    m.in_first.resize(ranks_ + 1);
    m.in_notes.resize(size_t{ranks_} * p_.shape.notes);
    m.in_note_counts.resize(ranks_);
    m.route_rank.reserve(size_t{p_.shape.rows_of(b)} * p_.shape.top_k);
  }
  waiting_.reserve(ranks_);
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

slot_header exchange_group::make_header(slot_kind kind) const {
  slot_header h;
  h.stamp = step_;
  h.epoch = p_.epoch.value;
  h.incarnation = p_.incarnations[p_.rank];
  h.step = step_;
  h.kind = kind;
  h.source = p_.rank;
  return h;
}

slot_header exchange_group::make_header(slot_kind kind, uint32_t micro) const {
  slot_header h = make_header(kind);
  h.stamp = micro_[micro].stamp;
  h.layer = micro_[micro].layer;
  h.micro = micro;
  return h;
}

slot_header* exchange_group::slot(std::byte* region, slot_kind kind, uint32_t source, uint64_t which) const {
  switch (kind) {
    case slot_kind::step:
      return reinterpret_cast<slot_header*>(region + layout_.step_slot(source, which));
    case slot_kind::dispatch:
      return reinterpret_cast<slot_header*>(region + layout_.micro[which].dispatch_slot(source));
    default:
      return reinterpret_cast<slot_header*>(region + layout_.micro[which].combine_slot(source));
  }
}

// The payload is in place: writes the header, the stamp last, and wakes the reader if it has announced that it sleeps.
// Both sides use sequentially consistent operations, so either the reader sees the stamp or this sees the announcement.
void exchange_group::publish(std::byte* peer, uint32_t rank, const slot_header& header) {
  slot_header* to = slot(peer, header.kind, p_.rank, header.kind == slot_kind::step ? header.step : header.micro);
  constexpr size_t after = sizeof(uint64_t);
  std::memcpy(reinterpret_cast<std::byte*>(to) + after, reinterpret_cast<const std::byte*>(&header) + after,
              sizeof header - after);
  stamp_of(to).store(header.stamp, std::memory_order_seq_cst);
  if (control_of(peer)->sleeping.load(std::memory_order_seq_cst) != 0) {
    p_.counters->nudges.fetch_add(1, std::memory_order_relaxed);
    send(rank, make_header(slot_kind::nudge), {}, small_limit);
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
  slot_header h = make_header(slot_kind::abandon);
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

bool exchange_group::arrived(const exchange& e, uint32_t source) {
  slot_header* h = slot(inbox_, e.kind, source, e.kind == slot_kind::step ? step_ : e.micro);
  if (stamp_of(h).load(std::memory_order_seq_cst) != e.stamp) return false;
  if (h->epoch == p_.epoch.value && h->incarnation == p_.incarnations[source] && h->source == source) return true;
  if (bad_seen_[source] != waits_) {
    bad_seen_[source] = waits_;
    p_.counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
  }
  return false;
}

bool exchange_group::all_arrived(const exchange& e) {
  std::erase_if(waiting_, [&](uint32_t source) { return arrived(e, source); });
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

result<void> exchange_group::check_arrived(const exchange& e) {
  for (uint32_t s = 0; s < ranks_; ++s) {
    if (s == p_.rank) continue;
    const slot_header* h = slot(inbox_, e.kind, s, e.kind == slot_kind::step ? step_ : e.micro);
    if (h->step != step_ || h->layer != e.layer || h->kind != e.kind)
      return lose({s}, fmt::format("rank {} is at step {}, layer {}, exchange kind {} where this rank is at layer {}, "
                                   "kind {}: the ranks do not make the same calls",
                                   s, h->step, h->layer, static_cast<int>(h->kind), e.layer, static_cast<int>(e.kind)));
  }
  return {};
}

result<void> exchange_group::wait_for(const exchange& e) {
  waiting_.clear();
  ++waits_;
  for (uint32_t s = 0; s < ranks_; ++s)
    if (s != p_.rank) waiting_.push_back(s);
  p_.counters->exchanges.fetch_add(1, std::memory_order_relaxed);
  const clock_source& clock = steady_clock();
  const bool messages = p_.link->has_message_peers();
  nanoseconds start{-1};
  for (uint32_t round = 0;; ++round) {
    if (all_arrived(e)) return check_arrived(e);
    // Direct stores need no progress; death notices and nudges can wait some rounds.
    if (messages || round % 64 == 63) p_.link->progress(*this);
    if (failed_) {
      // Abandoned by a peer that may be a step ahead: what it gave for this exchange came before, and completes it.
      if (all_arrived(e)) return check_arrived(e);
      return fail(failure_);
    }
    if (p_.link->ended) return usable();
    const uint32_t deaths = deaths_;
    if (deaths != 0) {
      // What the dead have still sent counts, so look again before judging.
      if (all_arrived(e)) return check_arrived(e);
      std::vector<uint32_t> gone;
      for (uint32_t r = 0; r < ranks_; ++r)
        if (dead_[r] && !has_left(e.kind, r)) gone.push_back(r);
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
    if (!all_arrived(e) && !failed_ && deaths_ == deaths) {
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
        if (r != p_.rank && !send(r, make_header(slot_kind::wake), {}, p_.deadline))
          return lose({r}, fmt::format("rank {} takes no wake message", r));
      return {};
    }
    p_.link->sleep(forever);
  }
}

result<step_header> exchange_group::begin_step(const step_header& mine) {
  std::lock_guard lock(p_.link->serial());
  if (auto ok = usable(); !ok) return fail(ok.error());
  for (const micro_state& m : micro_)
    if (m.at != phase::idle)
      return fail(errc::invalid_argument, "begin_step: layer {} was dispatched and not combined", m.layer);
  // Direct stores alone would not bring a death notice: look once a step.
  p_.link->progress(*this);
  if (failed_) return fail(failure_);
  for (uint32_t r = 0; r < ranks_; ++r)
    if (dead_[r] && !leaving_)
      return fail(lose({r}, fmt::format("the connection to rank {} ended between two steps", r)).error());
  // What was submitted before is in `mine`, what comes later sets it again.
  if (mine.has_work) woken_ = false;
  ++step_;
  leaving_ = mine.leaving;
  const wire_step wire{mine.chunk_budget_ns, mine.flip_step, mine.flip_version.value, mine.micro_batches,
                       uint32_t{mine.has_work} | uint32_t{mine.encoder} << 1 | uint32_t{mine.decoder} << 2 |
                           uint32_t{mine.draft} << 3 | uint32_t{mine.leaving} << 4 | uint32_t{mine.moving} << 5};
  const slot_header h = make_header(slot_kind::step);
  for (uint32_t i = 1; i < ranks_; ++i) {
    const uint32_t to = (p_.rank + i) % ranks_;
    if (std::byte* peer = p_.link->peer_inbox(to)) {
      std::memcpy(peer + layout_.step_slot(p_.rank, step_) + sizeof h, &wire, sizeof wire);
      publish(peer, to, h);
    } else if (!send(to, h, std::as_bytes(std::span(&wire, 1)), p_.deadline)) {
      return fail(lose({to}, fmt::format("rank {} takes no messages", to)).error());
    }
  }
  if (auto ok = wait_for({slot_kind::step, 0, 0, step_}); !ok) return fail(ok.error());
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

}  // namespace troupe::kernels::ep
