#include "actors/serving/entrypoint.hpp"

#include <algorithm>
#include <map>

#include "actors/protocol/messages.hpp"
#include "actors/serving/front_request.hpp"
#include "policies/admission.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum entrypoint_timer : uint8_t { front_attach_timer = 1, front_place_timer = 2, front_drain_timer = 3 };

using request = front_request;
using target = front_target;

class entrypoint_state {
 public:
  using interface = entrypoint_actor;
  static inline const char* name = "entrypoint";
  explicit entrypoint_state(interface::pointer self) : self_(self), links_(self) {}

  // Ended from outside (its node was given up, or the process stops): every request still gets its end.
  ~entrypoint_state() {
    for (auto& [number, r] : requests_) {
      client_event e;
      e.failure = errc::unavailable;
      e.failure_text = "this front has ended";
      end_request(r, std::move(e));
    }
  }

  interface::behavior_type make_behavior(entrypoint_options options) {
    options_ = std::move(options);
    report_state();
    return {
        [this](const client_submit& m) { submit(m); },
        [this](const client_cancel& m) { client_cancelled(m.id); },
        [this](const cluster_view& m) { follow(m); },
        [this](const token_batch& m) { take(m); },
        [this](const eplb_report& m) { experts_[m.group] = m; },
        [this](const front_query&) { return report(); },
        [this](const drain_request& m) { return drain(m); },
        [this](const tick& t) { ticked(t); },
    };
  }

 private:
  // -- schedulers -----------------------------------------------------------------------------------------------

  void follow(const cluster_view& view) {
    if (view.version <= view_version_) return;
    view_version_ = view.version;
    const auto seen = scheduler_seats(view);
    for (const auto& [key, seat] : seen) {
      auto it = targets_.find(key);
      if (it == targets_.end() && seat.ready) it = targets_.emplace(key, target{seat.what}).first;
      if (it != targets_.end()) it->second.admits = seat.ready;
    }
    std::vector<actor_key> gone;
    for (auto& [key, t] : targets_)
      if (!seen.contains(key)) gone.push_back(key);
    for (auto& key : gone) {
      lost(key, {errc::peer_lost, "its node was given up"});
      targets_.erase(key);
    }
    attach_all();
    place_all();
  }

  void attach_all() {
    for (auto& [key, t] : targets_)
      if (t.at == target::state::unknown) attach(key, t);
  }

  void attach(const actor_key& key, target& t) {
    t.at = target::state::resolving;
    auto again = [this, key](const std::string& why) {
      auto* t = find(key);
      if (!t || t->at != target::state::resolving) return;
      log::debug("entrypoint: {} of node {}: {}", key.name, key.node.value, why);
      t->at = target::state::unknown;
      if (!attach_.armed()) attach_.arm(self_, options_.attach_retry);
    };
    links_.ask(
        self_, options_.directory, options_.ask_timeout, resolve_request{key},
        [this, key, again](const resolve_reply& r) {
          if (!r.outcome.ok()) return again(r.outcome.text);
          auto handle = caf::actor_cast<scheduler_actor>(r.handle);
          links_.ask(
              self_, handle, options_.ask_timeout, attach_front{options_.identity.epoch, me()},
              [this, key, handle, again](const attach_reply& reply) {
                if (!reply.outcome.ok()) return again(reply.outcome.text);
                attached(key, handle, reply);
              },
              [again](const error& e) { again(e.message); });
        },
        [again](const error& e) { again(e.message); });
  }

  void attached(const actor_key& key, const scheduler_actor& handle, const attach_reply& reply) {
    auto* t = find(key);
    if (!t || t->at != target::state::resolving) return;
    t->at = target::state::attached;
    t->handle = handle;
    t->facts = reply;
    if (t->what == role::decode) facts_ = reply.facts;
    links_.watch(handle, [this, key](const error& e) {
      lost(key, e);
      if (!attach_.armed()) attach_.arm(self_, options_.attach_retry);
    });
    log::info("entrypoint: attached to {} of node {}", key.name, key.node.value);
    report_state();
    place_all();
  }

  // The handle is dead: what ran there goes elsewhere.
  void lost(const actor_key& key, const error& why) {
    auto* t = find(key);
    if (!t) return;
    links_.unwatch(t->handle);
    t->handle = nullptr;
    t->at = target::state::unknown;
    std::vector<request_number> hit;
    for (auto& [number, r] : requests_)
      if (r.at != request::phase::waiting && r.where == key) hit.push_back(number);
    for (auto number : hit) resume(number, why);
    report_state();
  }

  target* find(const actor_key& key) {
    auto it = targets_.find(key);
    return it == targets_.end() ? nullptr : &it->second;
  }

  actor_key me() const {
    return {options_.identity.node, options_.identity.inc, options_.assignment.seat() + "/entrypoint"};
  }

  uint32_t usable(role what) const {
    return static_cast<uint32_t>(std::count_if(targets_.begin(), targets_.end(),
                                               [what](auto& t) { return t.second.what == what && t.second.usable(); }));
  }

  bool ready() const { return !draining_ && usable(role::decode) > 0; }

  void report_state() {
    const auto state = draining_ ? role_state::draining : ready() ? role_state::ready : role_state::waiting;
    if (reported_ == state) return;
    reported_ = state;
    tell(self_, options_.agent,
         role_update{options_.assignment.seat(), state, {}, {}, ready() ? "" : "no decode rank is attached"});
  }

  // -- requests -------------------------------------------------------------------------------------------------

  void submit(const client_submit& m) {
    auto refuse = [&](errc code, std::string text, uint32_t retry_ms = 0) {
      ++counters_.refused;
      client_event e;
      e.done = true;
      e.failure = code;
      e.failure_text = std::move(text);
      e.retry_after_ms = retry_ms;
      e.prompt_tokens = static_cast<uint32_t>(m.prompt.size());
      m.sink->on_event(std::move(e));
    };
    if (by_id_.contains(m.id)) return refuse(errc::invalid_argument, "a request with this id is running");
    if (draining_) return refuse(errc::unavailable, "this front is shutting down");
    if (!ready()) return refuse(errc::unavailable, "no decode rank is ready", 1000);
    if (auto fault = fault_of(m, facts_); !fault.empty()) return refuse(errc::invalid_argument, std::move(fault));
    auto admission = policies::plan_admission({static_cast<uint32_t>(requests_.size()), options_.max_requests, true});
    if (!admission.admit) return refuse(errc::exhausted, admission.reason, admission.retry_after_ms);
    ++counters_.accepted;
    const request_number number{next_request_++};
    auto& r = requests_[number];
    r.what = m;
    r.stream = token_stream{static_cast<uint32_t>(m.prompt.size())};
    r.waiting_since = now(self_);
    by_id_.emplace(m.id, number);
    place(number);
  }

  void place_all() {
    std::vector<request_number> open;
    for (auto& [number, r] : requests_)
      if (r.at == request::phase::waiting) open.push_back(number);
    for (auto number : open) place(number);
  }

  // Round robin over the attached schedulers of the phase; a full one is passed over, a prefill round without success
  // goes to decode, and a decode round without success waits a little.
  void place(request_number number) {
    auto& r = requests_.at(number);
    const role what = !r.prefilled && usable(role::prefill) > r.refusals ? role::prefill : role::decode;
    if (what == role::decode && r.lease == r.attempt + 1) {
      const auto* t = find(r.leased);
      if (t && t->usable()) return ask_scheduler(number, r.leased);
    }
    const uint32_t round = (r.prefilled ? 0 : usable(role::prefill)) + usable(role::decode);
    const auto key = r.refusals >= std::max(1u, round) ? actor_key{} : choose(what);
    if (key == actor_key{}) return wait_for_place(number);
    ask_scheduler(number, key);
  }

  actor_key choose(role what) {
    return choose_target(targets_, what, what == role::prefill ? last_prefill_ : last_decode_);
  }

  // The prompt's last chunk is planned: a decode scheduler keeps room for what will come.
  void lease(request_number number, request& r) {
    if (r.lease != 0) return;
    const auto key = choose(role::decode);
    if (key == actor_key{}) return;
    r.leased = key;
    r.lease = r.attempt + 1;
    const auto rows = static_cast<uint32_t>(r.what.prompt.size() + r.emitted.size());
    links_.ask(
        self_, targets_.at(key).handle, options_.ask_timeout,
        lease_request{options_.identity.epoch, options_.identity.inc, number, r.lease, rows},
        [this, number, lease = r.lease](const enqueue_reply& reply) {
          auto it = requests_.find(number);
          if (!reply.outcome.ok() && it != requests_.end() && it->second.lease == lease) it->second.lease = 0;
        },
        [](const error&) {});  // it expires by itself
  }

  void wait_for_place(request_number number) {
    auto& r = requests_.at(number);
    r.at = request::phase::waiting;
    r.refusals = 0;
    if (now(self_) - r.waiting_since >= options_.place_patience) {
      const bool full = r.refusal.code == errc::exhausted;
      return fail(number, full ? errc::exhausted : errc::unavailable,
                  full ? r.refusal.text : "no rank could take the request in time", r.retry_after_ms);
    }
    if (!place_.armed()) place_.arm(self_, options_.place_retry);
  }

  void ask_scheduler(request_number number, const actor_key& key) {
    auto& r = requests_.at(number);
    auto& t = targets_.at(key);
    if (r.lease != 0 && key != r.leased) cancel_at(r.leased, number, r.lease);
    r.lease = 0;
    r.at = request::phase::asking;
    r.where = key;
    r.drafted_before += std::exchange(r.drafted, 0);
    r.accepted_before += std::exchange(r.accepted, 0);
    r.stream.restart();
    ++r.attempt;
    auto m = to_enqueue(r, t.what);
    m.epoch = options_.identity.epoch;
    m.front = options_.identity.inc;
    m.request = number;
    links_.ask(
        self_, t.handle, options_.ask_timeout, std::move(m),
        [this, number, key, attempt = r.attempt](const enqueue_reply& reply) { answered(number, key, attempt, reply); },
        [this, number, attempt = r.attempt](const error& e) {
          auto* r = current(number, attempt);
          if (r && r->at == request::phase::asking) resume(number, e);
        });
  }

  request* current(request_number number, uint32_t attempt) {
    auto it = requests_.find(number);
    return it == requests_.end() || it->second.attempt != attempt ? nullptr : &it->second;
  }

  void answered(request_number number, const actor_key& key, uint32_t attempt, const enqueue_reply& reply) {
    auto* r = current(number, attempt);
    if (!r || r->where != key) {  // cancelled or moved meanwhile
      if (reply.outcome.ok()) cancel_at(key, number, attempt);
      return;
    }
    if (r->at != request::phase::asking) return;
    if (reply.outcome.ok()) {
      r->at = request::phase::running;
      r->passed_on = r->ticket.kind == handoff_kind::pull;
      return;
    }
    if (reply.outcome.code == errc::invalid_argument) return fail(number, errc::invalid_argument, reply.outcome.text);
    r->refusal = reply.outcome;
    r->retry_after_ms = reply.retry_after_ms;
    ++r->refusals;
    r->at = request::phase::waiting;
    if (reply.outcome.code == errc::stale)
      lost(key, {errc::stale, reply.outcome.text});  // it does not know us: attach again
    if (requests_.contains(number)) place(number);
    if (!attach_.armed()) attach_.arm(self_, options_.attach_retry);
  }

  // Nobody will use the room that is kept for the request, nor the state that a prefill rank holds.
  void give_up_ticket(request_number number, request& r) {
    if (const uint32_t lease = std::exchange(r.lease, 0)) cancel_at(r.leased, number, lease);
    const auto ticket = std::exchange(r.ticket, {});
    if (std::exchange(r.passed_on, false) || ticket.kind != handoff_kind::pull) return;
    const auto seat = ticket.source.name.substr(0, ticket.source.name.rfind('/'));
    auto* t = find({ticket.source.node, ticket.source.inc, seat + "/scheduler"});
    if (!t || !t->handle) return;  // it is gone, or lets go by itself after 5 s
    send(t->handle, unused(ticket, options_.identity.epoch));
  }

  // A request whose answer changes nothing.
  template <class Message>
  void send(const scheduler_actor& to, Message m) {
    links_.ask(
        self_, to, options_.ask_timeout, std::move(m), [](const ack&) {}, [](const error&) {});
  }

  void cancel_at(const actor_key& key, request_number number, uint32_t attempt) {
    auto* t = find(key);
    if (!t || !t->handle) return;
    // Items that still come are answered with another cancel.
    send(t->handle, cancel_request{options_.identity.epoch, options_.identity.inc, number, attempt});
  }

  // -- tokens ---------------------------------------------------------------------------------------------------

  void take(const token_batch& m) {
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

  ack_item take(const stream_item& item, request& r) {
    if (item.last_chunk) lease(item.request, r);
    auto out = r.stream.push(item);
    ack_item a{item.request, item.attempt, r.stream.next(), false};
    for (auto& i : out.ready) {
      r.drafted = i.drafted;
      r.accepted = i.accepted;
      r.cached = std::max(r.cached, i.cached);
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

  void last_item(request_number number, stream_item& i) {
    auto& r = requests_.at(number);
    if (i.handoff.kind != handoff_kind::none || resumable(i.failure)) {
      if (!i.tokens.empty()) r.what.sink->on_event(to_event(i));
      if (resumable(i.failure)) return resume(number, {i.failure, i.failure_text});
      r.prefilled = true;
      r.ticket = i.handoff;
      r.wait(now(self_));
      return place(number);
    }
    client_event e = to_event(i);
    e.finish = i.finish;
    e.failure = i.failure;
    e.failure_text = i.failure_text;
    finish(number, std::move(e));
  }

  /// The same request elsewhere, from the last emitted token.
  void resume(request_number number, const error& why) {
    auto& r = requests_.at(number);
    if (r.at != request::phase::waiting) cancel_at(r.where, number, r.attempt);
    give_up_ticket(number, r);
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
    r.wait(now(self_));
    if (!place_.armed()) place_.arm(self_, options_.place_retry);
  }

  // -- ends: the only ways out of requests_ -----------------------------------------------------------------------

  void finish(request_number number, client_event e) {
    auto it = requests_.find(number);
    give_up_ticket(number, it->second);
    auto r = std::move(it->second);
    by_id_.erase(r.what.id);
    requests_.erase(it);
    count_end(counters_, e.failure);
    end_request(r, std::move(e));
    if (draining_) check_drained();
  }

  void fail(request_number number, errc code, std::string text, uint32_t retry_ms = 0) {
    auto& r = requests_.at(number);
    if (r.at != request::phase::waiting) cancel_at(r.where, number, r.attempt);
    client_event e;
    e.failure = code;
    e.failure_text = std::move(text);
    e.retry_after_ms = retry_ms;
    finish(number, std::move(e));
  }

  void client_cancelled(const std::string& id) {
    auto it = by_id_.find(id);
    if (it != by_id_.end()) fail(it->second, errc::cancelled, "cancelled by the client");
  }

  // -- the rest -------------------------------------------------------------------------------------------------

  front_report report() const {
    front_report r = counters_;
    r.ready = ready();
    r.draining = draining_;
    r.running = static_cast<uint32_t>(requests_.size());
    r.prefill_schedulers = usable(role::prefill);
    r.decode_schedulers = usable(role::decode);
    r.facts = facts_;
    for (const auto& [group, e] : experts_) r.experts.push_back(e);
    return r;
  }

  caf::result<drain_reply> drain(const drain_request& m) {
    draining_ = true;
    report_state();
    auto p = self_->make_response_promise<promise<drain_reply>>();
    drains_.push_back(p);
    drain_.arm(self_, std::chrono::milliseconds(std::max<int64_t>(0, m.deadline_ms)));
    check_drained();
    return p;
  }

  void check_drained() {
    if (!drains_.empty() && requests_.empty()) answer_drains({}, 0);
  }

  void answer_drains(const status& outcome, uint32_t left) {
    drain_.stop();
    auto open = std::exchange(drains_, {});
    for (auto& p : open) p.deliver(drain_reply{outcome, left});
  }

  void ticked(const tick& t) {
    if (attach_.fired(t)) attach_all();
    if (place_.fired(t)) place_all();
    if (drain_.fired(t)) {
      const auto left = static_cast<uint32_t>(requests_.size());
      auto open = std::exchange(drains_, {});
      while (!requests_.empty()) fail(requests_.begin()->first, errc::unavailable, "this front is shutting down");
      drains_ = std::move(open);
      answer_drains({left ? errc::timeout : errc{}, left ? "requests did not finish in time" : ""}, left);
    }
  }

  interface::pointer self_;
  peer_links links_;
  entrypoint_options options_;
  uint64_t view_version_ = 0;
  std::map<actor_key, target> targets_;         // bounded by the nodes of the view
  std::map<request_number, request> requests_;  // bounded by max_requests
  std::map<std::string, request_number> by_id_;
  std::map<std::string, eplb_report> experts_;  // bounded by the groups of the cluster
  uint64_t next_request_ = 1;
  size_t last_prefill_ = SIZE_MAX, last_decode_ = SIZE_MAX;
  bool draining_ = false;
  role_state reported_ = role_state::starting;
  kernels::model_facts facts_;
  front_report counters_;
  std::vector<promise<drain_reply>> drains_;
  timer attach_{front_attach_timer}, place_{front_place_timer}, drain_{front_drain_timer};
};

}  // namespace

entrypoint_actor spawn_entrypoint(caf::local_actor* parent, entrypoint_options options) {
  return spawn<entrypoint_state>(parent, std::move(options));
}

}  // namespace troupe::actors
