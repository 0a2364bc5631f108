// What a batch makes of its engine's results.
#include <algorithm>

#include "actors/serving/batch.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

using kernels::finish_reason;

void batch::apply_result(sequence& s, const kernels::sequence_result& r, const handoff_ticket& ticket) {
  s.committed = std::max(s.committed, r.committed);
  s.drafted += r.drafted;
  s.accepted += r.accepted;
  if (s.cancel || (s.at != phase::running && !s.preempted)) {
    if (ticket.kind == handoff_kind::pull) drops_.push_back({0, ticket});
    keep_snapshots(nullptr, r);
    return;
  }
  // A step that was run again may bring tokens that are known.
  const auto have = static_cast<uint32_t>(s.known.size());
  const uint32_t skip = r.first_position < have ? std::min<uint32_t>(have - r.first_position, r.tokens.size()) : 0;
  TROUPE_CHECK(r.tokens.empty() || r.first_position <= have, "tokens from {} with {} known", r.first_position, have);
  stream_item item;
  item.first_position = r.first_position + skip;
  item.tokens.assign(r.tokens.begin() + skip, r.tokens.end());
  if (r.logprobs.size() == r.tokens.size()) item.logprobs.assign(r.logprobs.begin() + skip, r.logprobs.end());
  if (r.top.size() == r.tokens.size()) item.top.assign(r.top.begin() + skip, r.top.end());
  s.known.insert(s.known.end(), item.tokens.begin(), item.tokens.end());
  keep_snapshots(&s, r);
  counters_.tokens += item.tokens.size();
  counters_.drafted += r.drafted;
  counters_.accepted += r.accepted;
  item.finish = r.finish;
  if (r.finish == finish_reason::error) {
    item.failure = errc::internal;
    item.failure_text =
        "the model produced numbers that are not finite: the checkpoint is damaged or does not suit this engine; run "
        "troupe verify";
  }
  if (what_ == role::prefill && !r.tokens.empty() && r.finish == finish_reason::none) {
    item.handoff = ticket;
    if (ticket.kind == handoff_kind::none) item.handoff.kind = handoff_kind::recompute;
  }
  if (r.tokens.empty())
    write_back(s, false);
  else if (r.finish != finish_reason::error && (r.committed == s.opened || r.finish != finish_reason::none))
    write_back(s, true);
  const uint64_t number = by_key_.at(s.id);
  if (item.last())
    end(number, std::move(item));
  else if (!item.tokens.empty())
    emit(s, std::move(item));
}

void batch::apply(const kernels::step_result& r, const std::vector<slot_ticket>& tickets, uint32_t pages_held) {
  pages_held_ = pages_held;
  TROUPE_CHECK(!plans_.empty() && plans_.front().id == r.plan, "result of plan {}, expected {}", r.plan,
               plans_.empty() ? 0 : plans_.front().id);
  ++counters_.steps;
  if (r.plan_done) {
    for (const auto& e : plans_.front().entries) {
      imports_out_ -= e.imports;
      auto it = sequences_.find(e.sequence);
      if (it != sequences_.end()) it->second.in_flight -= std::min(it->second.in_flight, e.worst);
    }
  }
  if (r.failure != errc{}) {
    TROUPE_CHECK(r.plan_done, "plan {} failed but goes on", r.plan);
    const record rec = std::move(plans_.front());
    plans_.pop_front();
    for (auto slot : r.closed) closed(slot);
    apply_failure(rec, r);
    return;
  }
  uint32_t prompt_rows = 0;
  for (const auto& e : plans_.front().entries) prompt_rows += e.rows;
  measure(r, prompt_rows);
  for (const auto& result : r.sequences) {
    handoff_ticket ticket;
    for (const auto& t : tickets)
      if (t.slot == result.slot) ticket = t.ticket;
    auto it = slots_.find(result.slot);
    if (it != slots_.end()) {
      apply_result(at(it->second), result, ticket);
    } else {
      if (ticket.kind == handoff_kind::pull) drops_.push_back({0, ticket});
      keep_snapshots(nullptr, result);
    }
  }
  if (r.plan_done) {
    for (const auto& e : plans_.front().entries) counters_.prompt_rows += e.rows;
    fresh_ = fresh_ || !plans_.front().entries.empty();
    learn(plans_.front(), r.times.total);
    plans_.pop_front();
    hold_ = hold_ && !plans_.empty();
  }
  for (auto slot : r.closed) closed(slot);
}

// The plan is gone. What had taken effect stays; what had not is taken back. Chunks are planned again from the
// committed length.
void batch::apply_failure(const record& rec, const kernels::step_result& r) {
  const bool transient = r.failure == errc::peer_lost || r.failure == errc::timeout || r.failure == errc::stale ||
                         r.failure == errc::unavailable || r.failure == errc::cancelled;
  note(fmt::format("plan {} dropped: {} {}", rec.id, to_string(r.failure), r.failure_text));
  hold_ = !plans_.empty();
  if (!r.applied) {
    for (auto slot : rec.closes)
      if (slots_.contains(slot)) to_close_.push_back(slot);
  }
  for (const auto& e : rec.entries) {
    auto it = sequences_.find(e.sequence);
    if (it == sequences_.end()) continue;
    auto& s = it->second;
    if (!r.applied) {
      s.pages -= e.grow;
      pages_free_ += e.grow;
    }
    if (!r.applied && e.opens) {  // the slot was never opened, and what was to be imported is gone
      std::erase(to_close_, s.slot);
      std::erase(running_, e.sequence);
      give_slot(s);
      counters_.recomputed += e.imports;
      if (s.at == phase::running || s.preempted)
        wait_again(e.sequence);
      else
        s.at = phase::ended;
      forget_if_done(e.sequence);
    } else {
      s.planned = std::min(s.opened, s.committed);
    }
    if (!transient && sequences_.contains(e.sequence) && (s.at == phase::waiting || s.at == phase::running)) {
      stream_item item;
      item.first_position = static_cast<uint32_t>(s.known.size());
      item.failure = errc::internal;
      item.failure_text = fmt::format("the engine refused a step: {}", r.failure_text);
      end(e.sequence, std::move(item));
    }
  }
}

void batch::fail_all(errc code, const std::string& text) {
  expire_leases(nanoseconds::max());
  std::vector<uint64_t> open;
  for (auto& [number, s] : sequences_)
    if (s.at == phase::waiting || s.at == phase::fetching || s.at == phase::reading || s.at == phase::running ||
        s.preempted)
      open.push_back(number);
  for (uint64_t number : open) {
    stream_item item;
    item.first_position = static_cast<uint32_t>(at(number).known.size());
    item.failure = code;
    item.failure_text = text;
    end(number, std::move(item));
  }
  note(fmt::format("{} requests failed: {}", open.size(), text));
}

}  // namespace troupe::actors
