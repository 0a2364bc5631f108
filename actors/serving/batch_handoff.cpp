// How a batch takes over sequences from prefill ranks: room kept before they come, fetches, and what becomes of them.
#include <algorithm>

#include "actors/serving/batch.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

enqueue_reply batch::lease(uint32_t front, const lease_request& r, bool open, nanoseconds until) {
  enqueue_reply reply;
  reply.waiting = static_cast<uint32_t>(waiting_.size());
  const key k{front, r.request, r.attempt};
  if (by_key_.contains(k)) return reply;
  const bool room = configured_ && open && r.rows > 0 && waiting_.empty() && !free_slots_.empty() &&
                    imports_out_ < limits_.handoffs && pages_for(r.rows + 1) <= pages_usable();
  if (!room) {
    reply.outcome = {errc::exhausted, "no room to keep now"};
    return reply;
  }
  const uint64_t number = next_sequence_++;
  sequence s;
  s.id = k;
  s.at = phase::leased;
  s.leased_until = until;
  take_slot(s, number);
  s.pages = pages_for(r.rows);
  pages_free_ -= s.pages;
  ++imports_out_;
  by_key_.emplace(k, number);
  sequences_.emplace(number, std::move(s));
  return reply;
}

void batch::expire_leases(nanoseconds now) {
  std::vector<uint64_t> past;
  for (auto& [number, s] : sequences_)
    if (s.at == phase::leased && s.leased_until <= now) past.push_back(number);
  for (uint64_t number : past) leave(number);
}

bool batch::has_leases() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](auto& s) { return s.second.at == phase::leased; });
}

void batch::begin_fetch(uint64_t number, uint32_t pages) {
  auto& s = at(number);
  std::erase(waiting_, number);
  s.at = phase::fetching;
  take_slot(s, number);
  s.pages = pages;
  pages_free_ -= pages;
  ++imports_out_;
  fetches_.push_back({number, s.handoff, pages});
}

void batch::fetched(const fetch_done& m) {
  pages_held_ = m.pages_held;
  const auto it = sequences_.find(m.number);
  if (it == sequences_.end()) return;
  auto& s = it->second;
  if (m.dropped) {
    if (s.at != phase::closing) return;
    --imports_out_;
    give_slot(s);
    s.importing = false;
    if (s.preempted) {
      ++counters_.recomputed;
      return wait_again(m.number);
    }
    s.at = phase::ended;
    return forget_if_done(m.number);
  }
  if (s.at != phase::fetching) return;  // let go meanwhile: the answer to that is still to come
  if (!m.outcome.ok()) {
    note(fmt::format("computed again: {} {}", to_string(m.outcome.code), m.outcome.text));
    ++counters_.recomputed;
    --imports_out_;
    give_slot(s);
    s.computed_again = true;
    return wait_again(m.number);
  }
  ++counters_.fetched;
  s.pulled_bytes = m.bytes;
  s.pulled_ns = m.nanoseconds;
  s.at = phase::running;
  s.importing = true;
  s.opened = s.planned = static_cast<uint32_t>(s.known.size());
  s.committed = s.handoff.rows;
  s.written = std::max(s.written, s.handoff.rows / facts_.window);  // the prefill rank's business
  running_.push_back(m.number);
}

}  // namespace troupe::actors
