// How an entrypoint finds places for its requests.
#include <algorithm>

#include "actors/serving/entrypoint_state.hpp"

namespace troupe::actors {

void entrypoint_state::enter(request& r, phase to) {
  searches_ += to == phase::placing;
  searches_ -= r.at == phase::placing;
  r.at = to;
}

// Whoever waits is tried again.
void entrypoint_state::new_round() {
  ++round_;
  full_ = false;
  fill();
}

// Requests that wait look for a place, in the order of policies/queue_order, each once a round, until one hears that
// there is none.
void entrypoint_state::fill() {
  if (filling_) return;
  filling_ = true;
  while (!full_ && searches_ < options_.max_searches) {
    auto it = requests_.end();
    for (auto i = requests_.begin(); i != requests_.end(); ++i)
      if (i->second.at == phase::waiting && !i->second.matching && i->second.round < round_ &&
          (it == requests_.end() || i->second.order < it->second.order))
        it = i;
    if (it == requests_.end()) break;
    it->second.round = round_;
    place(it->first);
  }
  filling_ = false;
}

void entrypoint_state::place(request_number number) {
  auto& r = requests_.at(number);
  const role what = r.wants(schedulers_->usable(role::prefill) > 0);
  enter(r, phase::placing);
  if (what == role::decode && r.next_lease != lease_number{}) {
    const auto* t = schedulers_->find(r.next);
    if (t && t->usable()) return ask_scheduler(number, r.next, r.next_lease);
    drop_next(number, r);
  }
  if (r.searching == lease_number{}) search(number, r, what);  // otherwise it looks for one already
}

void entrypoint_state::search(request_number number, request& r, role what) {
  r.searching = placer_->open(what, number, wish_of(r, what, expected_answer(r)));
  placer_->find(r.searching, r.refused, [this, number, what](const found_place& p) { found(number, what, p); });
}

void entrypoint_state::found(request_number number, role what, const found_place& p) {
  auto& r = requests_.at(number);  // the search of a request that has gone is ended before
  r.searching = {};
  if (r.at != phase::placing) {  // its prompt still runs: here it will decode
    if (p.outcome.ok()) keep_room(number, r, p);
  } else if (p.outcome.ok()) {
    ask_scheduler(number, p.target, p.lease);
  } else {
    if (r.refused.empty() || p.outcome.code == errc::exhausted) r.refusal = p.outcome;
    r.retry_after_ms = std::max(r.retry_after_ms, p.retry_after_ms);
    if (what == role::prefill) {
      r.no_prefill = true;
      return place(number);
    }
    wait_for_place(number, p.retry_after_ms);
  }
  fill();
}

void entrypoint_state::wait_for_place(request_number number, uint32_t retry_after_ms) {
  auto& r = requests_.at(number);
  enter(r, phase::waiting);
  const bool full = r.refusal.code == errc::exhausted;
  if (now(self_) - r.waiting_since >= options_.place_patience)
    return fail(number, full ? errc::exhausted : errc::unavailable,
                full ? r.refusal.text : "no rank could take the request in time", r.retry_after_ms);
  r.refused.clear();
  r.no_prefill = false;
  full_ = full;
  if (!place_.armed())
    place_.arm(self_, std::clamp<nanoseconds>(std::chrono::milliseconds(retry_after_ms), options_.place_retry,
                                              10 * options_.place_retry));
}

// The prompt's last chunk is planned: a place to decode is looked for, and room kept there for what will come.
void entrypoint_state::find_next(request_number number, request& r) {
  if (r.next_lease == lease_number{} && r.searching == lease_number{}) search(number, r, role::decode);
}

void entrypoint_state::keep_room(request_number number, request& r, const found_place& p) {
  r.next = p.target;
  r.next_lease = p.lease;
  r.room = r.attempt + 1;
  links_.ask(
      self_, schedulers_->find(p.target)->handle, options_.ask_timeout,
      lease_request{options_.identity.epoch, options_.identity.inc, number, r.room, r.known()},
      [this, number, room = r.room](const enqueue_reply& reply) {
        auto it = requests_.find(number);
        if (!reply.outcome.ok() && it != requests_.end() && it->second.room == room) it->second.room = 0;
      },
      [](const error&) {});  // it expires by itself
}

void entrypoint_state::drop_next(request_number number, request& r) {
  if (const uint32_t room = std::exchange(r.room, 0)) cancel_at(r.next, number, room);
  placer_->end(std::exchange(r.next_lease, {}));
}

void entrypoint_state::ask_scheduler(request_number number, const actor_key& key, lease_number lease) {
  auto& r = requests_.at(number);
  auto& t = *schedulers_->find(key);
  if (lease == r.next_lease) {
    r.next_lease = {};
    r.room = 0;
  } else {
    drop_next(number, r);
  }
  placer_->end(std::exchange(r.lease, lease));
  enter(r, phase::asking);
  r.where = key;
  r.drafted_before += std::exchange(r.drafted, 0);
  r.accepted_before += std::exchange(r.accepted, 0);
  r.stream.restart();
  ++r.attempt;
  auto m = to_enqueue(r, t.what);
  m.prefix = match_.plan(r, t.facts.facts, r.known());
  m.epoch = options_.identity.epoch;
  m.front = options_.identity.inc;
  m.request = number;
  links_.ask(
      self_, t.handle, options_.ask_timeout, std::move(m),
      [this, number, key, attempt = r.attempt](const enqueue_reply& reply) { answered(number, key, attempt, reply); },
      [this, number, attempt = r.attempt](const error& e) {
        auto* r = current(number, attempt);
        if (r && r->at == phase::asking) resume(number, e);
      });
}

uint32_t entrypoint_state::expected_answer(const request& r) const {
  return static_cast<uint32_t>(answers_[r.what.traffic < answers_.size() ? r.what.traffic : 0]);
}

void entrypoint_state::answered(request_number number, const actor_key& key, uint32_t attempt,
                                const enqueue_reply& reply) {
  auto* r = current(number, attempt);
  if (!r || r->where != key) {  // cancelled or moved meanwhile
    if (reply.outcome.ok()) cancel_at(key, number, attempt);
    return;
  }
  if (r->at != phase::asking) return;
  if (reply.outcome.ok()) {
    enter(*r, phase::running);
    r->passed_on = r->ticket.kind == handoff_kind::pull;
    return;
  }
  if (reply.outcome.code == errc::invalid_argument) return fail(number, errc::invalid_argument, reply.outcome.text);
  r->refusal = reply.outcome;
  r->retry_after_ms = reply.retry_after_ms;
  r->refused.push_back(key);
  placer_->end(std::exchange(r->lease, {}), reply.outcome.code, reply.retry_after_ms);
  enter(*r, phase::waiting);
  if (reply.outcome.code == errc::stale)
    schedulers_->lost(key, {errc::stale, reply.outcome.text});  // it does not know us: attach again
  if (auto it = requests_.find(number); it != requests_.end() && it->second.at == phase::waiting) place(number);
  schedulers_->attach_soon();
}

// Nobody will use the places that it has or looks for, nor the state that a prefill rank holds.
void entrypoint_state::give_up(request_number number, request& r) {
  placer_->end(std::exchange(r.searching, {}));
  placer_->end(std::exchange(r.lease, {}));
  drop_next(number, r);
  const auto ticket = std::exchange(r.ticket, {});
  if (std::exchange(r.passed_on, false) || ticket.kind != handoff_kind::pull) return;
  const auto seat = ticket.source.name.substr(0, ticket.source.name.rfind('/'));
  auto* t = schedulers_->find({ticket.source.node, ticket.source.inc, seat + "/scheduler"});
  if (!t || !t->handle) return;  // it is gone, or lets go by itself after 5 s
  send(t->handle, unused(ticket, options_.identity.epoch));
}

void entrypoint_state::cancel_at(const actor_key& key, request_number number, uint32_t attempt) {
  auto* t = schedulers_->find(key);
  if (!t || !t->handle) return;
  // Items that still come are answered with another cancel.
  send(t->handle, cancel_request{options_.identity.epoch, options_.identity.inc, number, attempt});
}

}  // namespace troupe::actors
