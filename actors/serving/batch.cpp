#include "actors/serving/batch.hpp"

#include <algorithm>

#include "actors/serving/prefix_hit.hpp"
#include "policies/admission.hpp"
#include "policies/pages.hpp"
#include "policies/queue_order.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

batch::batch(role what, uint32_t queue_limit, uint32_t verify_budget, uint32_t plans_ahead, nanoseconds step_budget)
    : what_(what),
      queue_limit_(queue_limit),
      verify_budget_(verify_budget),
      plans_ahead_(plans_ahead),
      step_budget_(step_budget) {}

void batch::configure(const kernels::model_facts& facts, const kernels::engine_limits& limits) {
  TROUPE_CHECK(!configured_, "configured twice");
  TROUPE_CHECK(facts.window > 0, "window {}", facts.window);
  facts_ = facts;
  limits_ = limits;
  configured_ = true;
  pages_free_ = limits.pages;
  for (uint32_t s = 0; s < limits.slots; ++s) free_slots_.insert(s);
}

batch::sequence& batch::at(uint64_t number) {
  auto it = sequences_.find(number);
  TROUPE_CHECK(it != sequences_.end(), "no sequence {}", number);
  return it->second;
}

void batch::note(std::string reason) {
  if (!reasons_.empty() && reasons_.back() == reason) return;
  if (reasons_.size() == 16) reasons_.pop_front();
  reasons_.push_back(std::move(reason));
}

uint32_t batch::draft_bound(const sequence& s) const {
  return what_ == role::decode && s.speculate && facts_.has_drafter && verify_budget_ > 0 ? limits_.max_draft : 0;
}

// Tokens whose KV the sequence can ever need: verifying may run past the end by the drafts of one step.
uint32_t batch::token_cap(const sequence& s) const {
  const uint64_t most = uint64_t{s.prompt_length} + s.stop.max_tokens + draft_bound(s);
  return static_cast<uint32_t>(std::min<uint64_t>(most, limits_.max_context));
}

uint32_t batch::pages_for(uint32_t tokens) const { return policies::pages_needed(tokens, facts_.window); }

// Pages that the sequence must hold so that its next step can run, whatever the plans under way bring. A prompt takes
// all of its pages when it starts, so that it cannot get stuck half way.
uint32_t batch::pages_after_next(const sequence& s) const {
  const uint32_t base =
      s.at == phase::waiting ? static_cast<uint32_t>(s.known.size()) : std::max(s.opened, s.committed + s.in_flight);
  return pages_for(std::min(base + 1 + draft_bound(s), std::max(token_cap(s), base)));
}

bool batch::runs_next(const sequence& s) const {
  return s.at == phase::running && (s.planned < s.opened || what_ == role::decode);
}

enqueue_reply batch::enqueue(uint32_t front, const enqueue_request& r, bool open, nanoseconds now) {
  enqueue_reply reply;
  reply.waiting = static_cast<uint32_t>(waiting_.size());
  const key k{front, r.request, r.attempt};
  const auto same = by_key_.find(k);
  if (same != by_key_.end() && at(same->second).at != phase::leased) return reply;
  const uint64_t leased = same != by_key_.end() ? same->second : 0;  // numbers begin at 1
  auto refuse = [&](errc code, std::string text, uint32_t retry = 0) {
    ++counters_.refused;
    reply.outcome = {code, std::move(text)};
    reply.retry_after_ms = retry;
    if (leased != 0) leave(leased);
    return reply;
  };
  for (auto it = by_key_.lower_bound({front, r.request, 0});
       it != by_key_.end() && it->first.front == front && it->first.request == r.request;) {
    const key older = it->first;
    ++it;
    if (older == k) continue;
    if (older.attempt > r.attempt) return refuse(errc::stale, "a newer attempt of the request is here");
    cancel(older);
  }
  if (!configured_) return refuse(errc::unavailable, "no engine yet");
  sequence s;
  s.id = k;
  s.known = r.tokens;
  s.prompt_length = r.prompt_length;
  s.sampling = r.sampling;
  s.stop = r.stop;
  s.speculate = r.speculate;
  s.handoff = r.handoff;
  s.prefix = r.prefix;
  s.origin = snapshot_owner(r.front, r.request);
  if (limits_.handoffs == 0 || s.handoff.rows < s.prompt_length || s.handoff.rows + 1 != s.known.size())
    s.handoff.kind = s.handoff.kind == handoff_kind::none ? handoff_kind::none : handoff_kind::recompute;
  if (s.known.empty() || s.prompt_length == 0 || s.prompt_length > s.known.size())
    return refuse(errc::invalid_argument,
                  fmt::format("prompt of {} tokens with {} known", s.prompt_length, s.known.size()));
  if (s.known.size() >= limits_.max_context)
    return refuse(errc::invalid_argument,
                  fmt::format("{} tokens: the context holds {}", s.known.size(), limits_.max_context));
  s.stop.max_tokens = std::min(s.stop.max_tokens, limits_.max_context - s.prompt_length);
  if (s.known.size() - s.prompt_length >= s.stop.max_tokens)
    return refuse(errc::invalid_argument, fmt::format("nothing left to generate: max_tokens {}", s.stop.max_tokens));
  if (pages_for(token_cap(s)) > limits_.pages)
    return refuse(errc::invalid_argument,
                  fmt::format("needs {} KV pages: the pool has {}", pages_for(token_cap(s)), limits_.pages));
  check_prefix(s);
  const bool comes_whole = s.handoff.kind == handoff_kind::pull;
  const double work = comes_whole ? 0 : costs_.prompt_ns(static_cast<uint32_t>(s.known.size()));
  const auto order = policies::plan_queue_order({now.count(), work, r.priority});
  if (!order) return refuse(errc::invalid_argument, order.error().message);
  s.order = order->key_ns;
  // Who has a lease does not queue.
  const uint32_t before = leased != 0 ? 0 : static_cast<uint32_t>(waiting_.size());
  auto admission = policies::plan_admission({before, queue_limit_, open});
  note("admission: " + admission.reason);
  if (!admission.admit)
    return refuse(open ? errc::exhausted : errc::unavailable, admission.reason, admission.retry_after_ms);
  if (r.handoff.kind == handoff_kind::pull && s.handoff.kind != handoff_kind::pull) drops_.push_back({0, r.handoff});
  if (s.handoff.kind == handoff_kind::recompute) ++counters_.recomputed;
  if (leased != 0) {
    auto& kept = at(leased);
    s.slot = kept.slot;
    s.pages = kept.pages;
    kept = std::move(s);
    if (kept.handoff.kind == handoff_kind::pull && pages_for(kept.handoff.rows) == kept.pages) {
      kept.at = phase::fetching;
      fetches_.push_back({leased, kept.handoff, kept.pages});
    } else {
      give_slot(kept);
      --imports_out_;
      line_up(leased);
      ++reply.waiting;
    }
    return reply;
  }
  const uint64_t number = next_sequence_++;
  by_key_.emplace(k, number);
  sequences_.emplace(number, std::move(s));
  line_up(number);
  ++reply.waiting;
  return reply;
}

batch::cancelled batch::cancel(const key& k) {
  auto it = by_key_.find(k);
  if (it == by_key_.end()) return cancelled::unknown;
  const uint64_t number = it->second;
  auto& s = at(number);
  if (!s.cancel && s.at != phase::leased && s.at != phase::ended && !(s.at == phase::closing && !s.preempted))
    ++counters_.cancelled;
  // What has been made of an answer that is cut off (a stop string, say) is as good as any.
  if (has_slot_open(s) && s.committed >= s.opened) write_back(s, true);
  s.cancel = true;
  s.preempted = false;
  for (const auto& u : s.unacked)  // whether or not it has been sent: who cancels does not use it
    if (u.item.handoff.kind == handoff_kind::pull) drops_.push_back({0, u.item.handoff});
  s.unacked.clear();
  std::erase_if(output_, [&](auto& o) {
    return o.first == k.front && o.second.request == k.request && o.second.attempt == k.attempt;
  });
  leave(number);
  auto still = sequences_.find(number);
  if (still == sequences_.end()) return cancelled::done;
  still->second.wants_notice = true;
  return cancelled::closing;
}

void batch::drop_front(uint32_t front) {
  std::vector<key> gone;
  for (auto it = by_key_.lower_bound({front, request_number{0}, 0}); it != by_key_.end() && it->first.front == front;
       ++it)
    gone.push_back(it->first);
  for (auto& k : gone) {
    cancel(k);
    auto it = by_key_.find(k);
    if (it != by_key_.end()) at(it->second).wants_notice = false;
  }
}

void batch::acknowledge(uint32_t front, const ack_item& item) {
  auto it = by_key_.find({front, item.request, item.attempt});
  if (it == by_key_.end()) return;
  const uint64_t number = it->second;
  auto& u = at(number).unacked;
  while (!u.empty() &&
         (item.ended || (!u.front().item.last() &&
                         u.front().item.first_position + u.front().item.tokens.size() <= item.next_position)))
    u.pop_front();
  forget_if_done(number);
}

std::vector<stream_item> batch::overdue(uint32_t front) {
  std::vector<stream_item> out;
  for (auto it = by_key_.lower_bound({front, request_number{0}, 0}); it != by_key_.end() && it->first.front == front;
       ++it) {
    for (auto& k : at(it->second).unacked) {
      if (k.seen) out.push_back(k.item);
      k.seen = true;
    }
  }
  counters_.resent += out.size();
  return out;
}

bool batch::has_unacknowledged() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](auto& s) { return !s.second.unacked.empty(); });
}

size_t batch::unfinished() const {
  return static_cast<size_t>(std::count_if(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s.second.at == phase::waiting || s.second.at == phase::fetching || s.second.at == phase::reading ||
           s.second.at == phase::running || s.second.preempted;
  }));
}

void batch::emit(sequence& s, stream_item item) {
  if (s.cancel) return;
  item.request = s.id.request;
  item.attempt = s.id.attempt;
  item.drafted = s.drafted;
  item.accepted = s.accepted;
  item.cached = s.reuse;
  item.pulled_bytes = std::exchange(s.pulled_bytes, 0);
  item.pulled_ns = std::exchange(s.pulled_ns, 0);
  item.computed_again = std::exchange(s.computed_again, false);
  s.unacked.push_back({item});
  output_.emplace_back(s.id.front, std::move(item));
}

void batch::end(uint64_t number, stream_item item) {
  auto& s = at(number);
  item.failure != errc{} ? ++counters_.failed : ++counters_.finished;
  emit(s, std::move(item));
  s.preempted = false;
  leave(number);
}

void batch::leave(uint64_t number) {
  auto& s = at(number);
  switch (s.at) {
    case phase::leased:
      give_slot(s);
      --imports_out_;
      s.at = phase::ended;
      break;
    case phase::waiting:
      std::erase(waiting_, number);
      if (s.handoff.kind == handoff_kind::pull) drops_.push_back({0, s.handoff});
      s.at = phase::ended;
      break;
    case phase::fetching:
      drops_.push_back({number, s.handoff});
      s.at = phase::closing;
      break;
    case phase::reading:
      prefix_drops_.push_back({s.read});
      s.at = phase::closing;
      break;
    case phase::running:
      std::erase(running_, number);
      if (s.importing)
        drops_.push_back({number, s.handoff});
      else if (s.filled)
        prefix_drops_.push_back({s.read});
      else
        to_close_.push_back(s.slot);
      s.at = phase::closing;
      break;
    case phase::closing:
    case phase::ended:
      break;
  }
  forget_if_done(number);
}

void batch::forget_if_done(uint64_t number) {
  auto it = sequences_.find(number);
  if (it == sequences_.end()) return;
  auto& s = it->second;
  if (s.at != phase::ended || !s.unacked.empty()) return;
  if (s.wants_notice) forgotten_.push_back(s.id);
  by_key_.erase(s.id);
  sequences_.erase(it);
}

void batch::closed(kernels::slot_id slot) {
  auto it = slots_.find(slot);
  TROUPE_CHECK(it != slots_.end(), "closed slot {} is not open", slot.value);
  const uint64_t number = it->second;
  auto& s = at(number);
  TROUPE_CHECK(s.at == phase::closing, "closed slot {} of a sequence in phase {}", slot.value, static_cast<int>(s.at));
  give_slot(s);
  if (s.preempted) return wait_again(number);
  s.at = phase::ended;
  forget_if_done(number);
}

void batch::take_slot(sequence& s, uint64_t number) {
  s.slot = kernels::slot_id{*free_slots_.begin()};
  free_slots_.erase(free_slots_.begin());
  slots_.emplace(s.slot, number);
}

void batch::give_slot(sequence& s) {
  slots_.erase(s.slot);
  free_slots_.insert(s.slot.value);
  pages_free_ += std::exchange(s.pages, 0);
  TROUPE_CHECK(pages_free_ <= limits_.pages, "free {} of {} pages", pages_free_, limits_.pages);
}

// From the front of the queue, computed from its tokens whatever it came from.
void batch::wait_again(uint64_t number) {
  auto& s = at(number);
  if (s.preempted) reuse_own(s);
  s.preempted = s.importing = false;
  s.at = phase::waiting;
  s.opened = s.planned = s.committed = s.in_flight = 0;
  s.reuse = s.replay = 0;
  s.filled = s.windows = false;
  s.handoff = {};
  s.order = INT64_MIN;
  waiting_.push_front(number);
}

void batch::describe(scheduler_report& out) const {
  const auto state = out.state;
  out = counters_;
  out.state = state;
  out.waiting = static_cast<uint32_t>(waiting_.size());
  out.running = static_cast<uint32_t>(running_.size());
  for (auto& [number, s] : sequences_) {
    out.closing += s.at == phase::closing;
    out.fetching += s.at == phase::fetching;
    out.reading += s.at == phase::reading;
    out.leased += s.at == phase::leased;
    out.unacknowledged += static_cast<uint32_t>(s.unacked.size());
    out.pages_reserved += s.pages;
  }
  out.pages_total = configured_ ? limits_.pages : 0;
  out.pages_held = std::min(pages_held_, pages_free_);
  out.pages_free = pages_free_ - out.pages_held;
  TROUPE_CHECK(out.pages_free + out.pages_reserved + out.pages_held == out.pages_total,
               "free {} + reserved {} + held {} != {} pages", out.pages_free, out.pages_reserved, out.pages_held,
               out.pages_total);
  out.reasons.assign(reasons_.begin(), reasons_.end());
}

}  // namespace troupe::actors
