#include "actors/serving/entrypoint.hpp"

#include <algorithm>

#include "actors/serving/entrypoint_state.hpp"
#include "policies/admission.hpp"
#include "policies/queue_order.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

// Ended from outside (its node was given up, or the process stops): every request still gets its end.
entrypoint_state::~entrypoint_state() {
  for (auto& [number, r] : requests_) {
    client_event e;
    e.failure = errc::unavailable;
    e.failure_text = "this front has ended";
    end_request(r, std::move(e));
  }
}

entrypoint_state::interface::behavior_type entrypoint_state::make_behavior(entrypoint_options options) {
  options_ = std::move(options);
  schedulers_ = std::make_unique<front_schedulers>(
      self_, links_, options_, attach_kind,
      front_schedulers::events{[this](const actor_key& key, const error& why) { lost(key, why); },
                               [this] {
                                 report_state();
                                 new_round();
                               }});
  placer_ =
      std::make_unique<front_placer>(self_, links_, options_, *schedulers_,
                                     std::array<uint8_t, 2>{balancer_kind, renew_kind}, [this](request_number number) {
                                       auto it = requests_.find(number);
                                       return it == requests_.end() ? 0 : it->second.known();
                                     });
  report_state();
  return {
      [this](const client_submit& m) { submit(m); },
      [this](const client_cancel& m) { client_cancelled(m.id); },
      [this](const cluster_view& m) { follow(m); },
      [this](const token_batch& m) { take(m); },
      [this](const eplb_report& m) { experts_[m.group] = m; },
      [this](const match_answer& m) {
        const auto it = requests_.find(m.request);
        if (it != requests_.end() && match_.take(m, it->second, schedulers_->facts())) fill();
      },
      [this](const front_query&) { return report(); },
      [this](const drain_request& m) { return drain(m); },
      [this](const tick& t) { ticked(t); },
  };
}

void entrypoint_state::follow(const cluster_view& view) {
  if (view.version <= view_version_) return;
  view_version_ = view.version;
  schedulers_->follow(view);
  placer_->follow(view);
  report_state();
  new_round();
}

// The handle is dead: what ran there goes elsewhere.
void entrypoint_state::lost(const actor_key& key, const error& why) {
  std::vector<request_number> hit;
  for (auto& [number, r] : requests_)
    if ((r.at == phase::asking || r.at == phase::running) && r.where == key) hit.push_back(number);
  for (auto number : hit) resume(number, why);
  report_state();
}

void entrypoint_state::report_state() {
  const auto state = draining_ ? role_state::draining : ready() ? role_state::ready : role_state::waiting;
  if (reported_ == state) return;
  reported_ = state;
  tell(self_, options_.agent,
       role_update{options_.assignment.seat(), state, options_.http, {}, ready() ? "" : "no decode rank is attached"});
}

// -- requests -------------------------------------------------------------------------------------------------

void entrypoint_state::submit(const client_submit& m) {
  auto refuse = [&](errc code, std::string text, uint32_t retry_ms = 0) {
    ++counters_.refused;
    refuse_client(m, code, std::move(text), retry_ms);
  };
  if (by_id_.contains(m.id)) return refuse(errc::invalid_argument, "a request with this id is running");
  if (draining_) return refuse(errc::unavailable, "this front is shutting down");
  if (!ready()) return refuse(errc::unavailable, "no decode rank is ready", 1000);
  if (auto fault = fault_of(m, schedulers_->facts()); !fault.empty())
    return refuse(errc::invalid_argument, std::move(fault));
  auto admission = policies::plan_admission({static_cast<uint32_t>(requests_.size()), options_.max_requests, true});
  if (!admission.admit) return refuse(errc::exhausted, admission.reason, admission.retry_after_ms);
  const auto order = policies::plan_queue_order({now(self_).count(), 0, m.priority});
  if (!order) return refuse(errc::invalid_argument, order.error().message);
  ++counters_.accepted;
  const request_number number{next_request_++};
  auto& r = requests_[number];
  r.what = m;
  r.stream = token_stream{static_cast<uint32_t>(m.prompt.size())};
  r.begin_waiting(now(self_));
  r.order = order->key_ns;
  by_id_.emplace(m.id, number);
  if (!match_.begin(number, r)) fill();
}

entrypoint_state::request* entrypoint_state::current(request_number number, uint32_t attempt) {
  auto it = requests_.find(number);
  return it == requests_.end() || it->second.attempt != attempt ? nullptr : &it->second;
}

// -- tokens ---------------------------------------------------------------------------------------------------

void entrypoint_state::take(const token_batch& m) {
  auto from = caf::actor_cast<scheduler_actor>(self_->current_sender());
  token_ack acks{options_.identity.inc, {}};
  for (const auto& item : m.items) {
    auto* r = current(item.request, item.attempt);
    if (!r) {  // ended or moved on: it may forget all of it
      acks.items.push_back({item.request, item.attempt, item.first_position, true});
      const auto known = requests_.find(item.request);
      const bool used = known != requests_.end() && known->second.ticket == item.handoff;  // the item came again
      if (item.handoff.kind == handoff_kind::pull && from && !used)
        send(from, unused(item.handoff, options_.identity.epoch));
      if (!item.last() && from)
        send(from, cancel_request{options_.identity.epoch, options_.identity.inc, item.request, item.attempt});
      continue;
    }
    acks.items.push_back(take(item, *r));
  }
  tell(self_, from, std::move(acks));
}

ack_item entrypoint_state::take(const stream_item& item, request& r) {
  if (item.last_chunk) find_next(item.request, r);
  auto out = r.stream.push(item);
  ack_item a{item.request, item.attempt, r.stream.next(), false};
  for (auto& i : out.ready) {
    r.drafted = i.drafted;
    r.accepted = i.accepted;
    if (r.emitted.empty()) r.cached = i.cached;
    r.emitted.insert(r.emitted.end(), i.tokens.begin(), i.tokens.end());
    count_item(counters_, i);
    if (!i.last()) {
      r.what.sink->on_event(to_event(i));
      continue;
    }
    a.ended = true;
    last_item(item.request, i);
    return a;
  }
  if (out.overflow) resume(item.request, {errc::internal, "tokens are missing"});
  return a;
}

void entrypoint_state::last_item(request_number number, stream_item& i) {
  auto& r = requests_.at(number);
  if (i.handoff.kind != handoff_kind::none || resumable(i.failure)) {
    if (!i.tokens.empty()) r.what.sink->on_event(to_event(i));
    if (resumable(i.failure)) return resume(number, {i.failure, i.failure_text});
    r.prefilled = true;
    r.ticket = i.handoff;
    placer_->end(std::exchange(r.lease, {}));
    r.begin_waiting(now(self_));
    return place(number);
  }
  client_event e = to_event(i);
  e.finish = i.finish;
  e.failure = i.failure;
  e.failure_text = i.failure_text;
  finish(number, std::move(e));
}

/// The same request elsewhere, from the last emitted token.
void entrypoint_state::resume(request_number number, const error& why) {
  auto& r = requests_.at(number);
  if (r.at == phase::asking || r.at == phase::running) cancel_at(r.where, number, r.attempt);
  give_up(number, r);
  if (r.emitted.size() >= r.what.stop.max_tokens) {  // only the end itself was lost
    client_event e;
    e.finish = kernels::finish_reason::length;
    return finish(number, std::move(e));
  }
  if (r.resumes >= options_.max_resumes)
    return fail(number, why.code, fmt::format("gave up after {} attempts: {}", r.attempt, why.message));
  ++r.resumes;
  ++counters_.resumed;
  ++r.attempt;  // what the old place still sends is stale
  log::info("entrypoint: request {} resumes at token {}: {}", r.what.id, r.emitted.size(), why.message);
  r.prefilled = r.prefilled || !r.emitted.empty();
  r.begin_waiting(now(self_));
  enter(r, phase::waiting);
  if (!place_.armed()) place_.arm(self_, options_.place_retry);
}

// -- ends: the only ways out of requests_ -----------------------------------------------------------------------

void entrypoint_state::finish(request_number number, client_event e) {
  auto it = requests_.find(number);
  give_up(number, it->second);
  enter(it->second, phase::waiting);
  auto r = std::move(it->second);
  by_id_.erase(r.what.id);
  requests_.erase(it);
  count_end(counters_, e.failure);
  match_.count(r);
  if (e.failure == errc{}) {
    auto& mean = answers_[r.what.traffic < answers_.size() ? r.what.traffic : 0];
    mean += (static_cast<double>(r.emitted.size()) - mean) / 16;
  }
  end_request(r, std::move(e));
  if (draining_) check_drained();
  fill();  // it may have been looking for a place
}

void entrypoint_state::fail(request_number number, errc code, std::string text, uint32_t retry_ms) {
  auto& r = requests_.at(number);
  if (r.at == phase::asking || r.at == phase::running) cancel_at(r.where, number, r.attempt);
  client_event e;
  e.failure = code;
  e.failure_text = std::move(text);
  e.retry_after_ms = retry_ms;
  finish(number, std::move(e));
}

void entrypoint_state::client_cancelled(const std::string& id) {
  auto it = by_id_.find(id);
  if (it != by_id_.end()) fail(it->second, errc::cancelled, "cancelled by the client");
}

// -- the rest -------------------------------------------------------------------------------------------------

front_report entrypoint_state::report() const {
  front_report r = counters_;
  match_.describe(r);
  r.ready = ready();
  r.draining = draining_;
  r.running = static_cast<uint32_t>(requests_.size());
  r.prefill_schedulers = schedulers_->usable(role::prefill);
  r.decode_schedulers = schedulers_->usable(role::decode);
  r.balanced = placer_->balanced();
  r.alone = placer_->alone();
  r.facts = schedulers_->facts();
  for (const auto& [group, e] : experts_) r.experts.push_back(e);
  return r;
}

caf::result<drain_reply> entrypoint_state::drain(const drain_request& m) {
  draining_ = true;
  report_state();
  auto p = self_->make_response_promise<promise<drain_reply>>();
  drains_.push_back(p);
  drain_.arm(self_, std::chrono::milliseconds(std::max<int64_t>(0, m.deadline_ms)));
  check_drained();
  return p;
}

void entrypoint_state::check_drained() {
  if (!drains_.empty() && requests_.empty()) answer_drains({}, 0);
}

void entrypoint_state::answer_drains(const status& outcome, uint32_t left) {
  drain_.stop();
  auto open = std::exchange(drains_, {});
  for (auto& p : open) p.deliver(drain_reply{outcome, left});
}

void entrypoint_state::ticked(const tick& t) {
  if (schedulers_->ticked(t) || placer_->ticked(t)) return;
  if (place_.fired(t)) new_round();
  if (drain_.fired(t)) {
    const auto left = static_cast<uint32_t>(requests_.size());
    auto open = std::exchange(drains_, {});
    filling_ = true;  // nobody needs a place any more
    while (!requests_.empty()) fail(requests_.begin()->first, errc::unavailable, "this front is shutting down");
    filling_ = false;
    drains_ = std::move(open);
    answer_drains({left ? errc::timeout : errc{}, left ? "requests did not finish in time" : ""}, left);
  }
}

entrypoint_actor spawn_entrypoint(caf::local_actor* parent, entrypoint_options options) {
  return spawn<entrypoint_state>(parent, std::move(options));
}

}  // namespace troupe::actors
