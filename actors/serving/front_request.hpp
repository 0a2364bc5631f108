// What an entrypoint knows about a request of its clients, and about a scheduler that may take it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/front.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/serving/token_stream.hpp"
#include "policies/placement.hpp"

namespace troupe::actors {

/// A scheduler somewhere.
struct front_target {
  enum class state : uint8_t { unknown, resolving, attached };
  role what = role::none;
  state at = state::unknown;
  bool admits = false;  // its seat was ready in the last view
  scheduler_actor handle;
  attach_reply facts;
  bool usable() const { return at == state::attached && admits; }
};

/// A seat of a view that has a scheduler.
struct scheduler_seat {
  role what = role::none;
  bool ready = false;
};

/// All of a view, by the key of the scheduler.
inline std::map<actor_key, scheduler_seat> scheduler_seats(const cluster_view& view) {
  std::map<actor_key, scheduler_seat> out;
  for (const auto& node : view.nodes)
    for (const auto& r : node.roles)
      if (r.assignment.what == role::prefill || r.assignment.what == role::decode)
        out[{node.node, node.inc, r.assignment.seat() + "/scheduler"}] = {
            r.assignment.what, r.state == role_state::ready && !node.draining};
  return out;
}

/// The next usable scheduler of a role after number `last` of them, which moves on; an empty key when there is none.
inline actor_key choose_target(const std::map<actor_key, front_target>& targets, role what, size_t& last) {
  std::vector<actor_key> keys;
  policies::placement_input in;
  for (const auto& [key, t] : targets) {
    if (t.what != what) continue;
    keys.push_back(key);
    in.usable.push_back(t.usable());
  }
  in.last = last;
  const auto choice = policies::plan_placement(in).choice;
  if (choice == SIZE_MAX) return {};
  last = choice;
  return keys[choice];
}

/// A request between its submit and its end.
struct front_request {
  enum class phase : uint8_t { waiting, asking, running };  // for a place, for an answer, on a scheduler
  client_submit what;
  phase at = phase::waiting;
  uint32_t attempt = 0;
  actor_key where;  // of asking and running
  bool prefilled = false;
  handoff_ticket ticket;   // pull: state that a prefill rank holds for this request
  bool passed_on = false;  // a decode scheduler has the ticket and sees to its end
  actor_key leased;        // decode scheduler that was asked to keep room
  uint32_t lease = 0;      // the attempt that will come there; 0: none
  uint32_t refusals = 0;   // in this round of placing
  uint32_t resumes = 0;
  nanoseconds waiting_since{0};
  status refusal;  // the last one
  uint32_t retry_after_ms = 0;
  std::vector<kernels::token_id> emitted;
  token_stream stream;
  uint32_t cached = 0;
  uint32_t drafted_before = 0, accepted_before = 0, drafted = 0, accepted = 0;  // of older attempts, of this one

  /// For a place, from now on.
  void wait(nanoseconds now) {
    at = phase::waiting;
    refusals = 0;
    waiting_since = now;
  }
};

/// Whether an attempt that ended like this goes on elsewhere.
inline bool resumable(errc failure) {
  return failure == errc::peer_lost || failure == errc::unavailable || failure == errc::timeout ||
         failure == errc::stale;
}

/// Why a request cannot be taken whatever happens, or an empty text.
inline std::string fault_of(const client_submit& m, const kernels::model_facts& facts) {
  if (m.prompt.empty()) return "the prompt is empty";
  if (m.prompt.size() >= facts.max_context)
    return fmt::format("the prompt has {} tokens, the context holds {}", m.prompt.size(), facts.max_context);
  return m.stop.max_tokens == 0 ? "max_tokens is 0" : "";
}

/// What a scheduler of `what` is asked to take: everything known so far. Who asks is the caller's to fill in.
inline enqueue_request to_enqueue(const front_request& r, role what) {
  enqueue_request m;
  m.attempt = r.attempt;
  m.tokens = r.what.prompt;
  m.tokens.insert(m.tokens.end(), r.emitted.begin(), r.emitted.end());
  m.prompt_length = static_cast<uint32_t>(r.what.prompt.size());
  m.sampling = r.what.sampling;
  m.stop = r.what.stop;
  m.speculate = r.what.speculate;
  if (r.prefilled) m.handoff.kind = handoff_kind::recompute;
  if (what == role::decode && r.ticket.kind == handoff_kind::pull) m.handoff = r.ticket;
  return m;
}

/// Tells the source that nobody will use the ticket.
inline transfer_close unused(const handoff_ticket& t, cluster_epoch epoch) {
  return {epoch, t.source.inc, t.transfer, errc::cancelled};
}

/// The tokens of an item as the client gets them; the item's are moved out.
inline client_event to_event(stream_item& i) {
  client_event e;
  e.first_position = i.first_position;
  e.tokens = std::move(i.tokens);
  e.logprobs = std::move(i.logprobs);
  e.top = std::move(i.top);
  return e;
}

/// Adds what an item says and how a request ended to the front's counters.
inline void count_item(front_report& c, const stream_item& i) {
  c.tokens += i.tokens.size();
  c.pulled += i.pulled_bytes > 0;
  c.pulled_bytes += i.pulled_bytes;
  c.pulled_ns += i.pulled_ns;
  c.computed_again += i.computed_again;
}
inline void count_end(front_report& c, errc failure) {
  ++(failure == errc{} ? c.finished : failure == errc::cancelled ? c.cancelled : c.failed);
}

/// Sends the one event that ends the request: `e` says how, the counts come from the request.
inline void end_request(const front_request& r, client_event e) {
  e.done = true;
  if (e.tokens.empty()) e.first_position = r.stream.next();
  e.prompt_tokens = static_cast<uint32_t>(r.what.prompt.size());
  e.completion_tokens = static_cast<uint32_t>(r.emitted.size());
  e.cached_tokens = r.cached;
  e.drafted = r.drafted_before + r.drafted;
  e.accepted = r.accepted_before + r.accepted;
  r.what.sink->on_event(std::move(e));
}

}  // namespace troupe::actors
