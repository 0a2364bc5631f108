// What an entrypoint knows about a request of its clients.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/balance.hpp"
#include "actors/protocol/front.hpp"
#include "actors/serving/token_stream.hpp"

namespace troupe::actors {

/// A request between its submit and its end.
struct front_request {
  // for its turn; for a place; for the scheduler's answer; on a scheduler
  enum class phase : uint8_t { waiting, placing, asking, running };
  client_submit what;
  phase at = phase::waiting;
  uint32_t attempt = 0;
  actor_key where;     // of asking and running
  lease_number lease;  // of `where`
  bool prefilled = false;
  uint32_t hit = 0;        // prompt tokens that the cache is expected to bring
  handoff_ticket ticket;   // pull: state that a prefill rank holds for this request
  bool passed_on = false;  // a decode scheduler has the ticket and sees to its end
  lease_number searching;  // for a place, while placing, or for one to decode while the prompt still runs
  actor_key next;          // where it will decode
  lease_number next_lease;
  uint32_t room = 0;               // the attempt for which `next` keeps room; 0: it does not
  int64_t order = 0;               // whose turn it is (policies/queue_order)
  uint64_t round = 0;              // of placing, in which it was last tried
  std::vector<actor_key> refused;  // by these schedulers, since it waits
  bool no_prefill = false;         // nobody could run its prompt, since it waits: the decode side does
  uint32_t resumes = 0;
  nanoseconds waiting_since{0};
  status refusal;  // the last one
  uint32_t retry_after_ms = 0;
  std::vector<kernels::token_id> emitted;
  token_stream stream;
  uint32_t cached = 0;
  bool matching = false;            // the store has been asked: not to be placed yet
  uint32_t stored = 0;              // blocks of its chain that are in the store
  std::vector<uint32_t> snapshots;  // behind so many of them
  uint32_t drafted_before = 0, accepted_before = 0, drafted = 0, accepted = 0;  // of older attempts, of this one

  uint32_t known() const { return static_cast<uint32_t>(what.prompt.size() + emitted.size()); }
  /// The role that has the next work on it.
  role wants(bool prefill_ranks) const {
    return !prefilled && !no_prefill && prefill_ranks ? role::prefill : role::decode;
  }
  /// For a place, from now on.
  void begin_waiting(nanoseconds now) {
    refused.clear();
    no_prefill = false;
    waiting_since = now;
  }
};

/// What the request brings to a rank of role `what`; `answer` is the expected length of an answer.
inline place_wish wish_of(const front_request& r, role what, uint32_t answer) {
  const uint32_t known = r.known();
  if (what == role::prefill) {
    const uint32_t cached = std::min(r.hit, known - 1);
    return {known - cached, cached, 0, 0};
  }
  const auto emitted = static_cast<uint32_t>(r.emitted.size());
  const uint32_t left = r.what.stop.max_tokens > emitted ? r.what.stop.max_tokens - emitted : 0;
  return {0, 0, known, std::min(left, answer > emitted ? answer - emitted : 1)};
}

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

/// The one event of a request that is not taken.
inline void refuse_client(const client_submit& m, errc code, std::string text, uint32_t retry_ms) {
  client_event e;
  e.done = true;
  e.failure = code;
  e.failure_text = std::move(text);
  e.retry_after_ms = retry_ms;
  e.prompt_tokens = static_cast<uint32_t>(m.prompt.size());
  m.sink->on_event(std::move(e));
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
  m.priority = r.what.priority;
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
