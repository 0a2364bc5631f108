// A request between a front process and the ranks, and the tokens that come back.
//
//   entrypoint                                   prefill or decode scheduler
//     | attach_front{front, epoch}                  |   once per connection; the scheduler watches the front
//     |-------------------------------------------->|
//     |<---------------------------- attach_reply --|   model, limits, state
//     | enqueue_request{request, attempt, ...}      |
//     |-------------------------------------------->|   bounded queue: a refusal says when to try again
//     |<--------------------------- enqueue_reply --|
//     |<----------------------------- token_batch --|   one per step and front, items of many requests
//     | token_ack{request, attempt, next position}  |   cumulative; the scheduler keeps tokens until then and sends
//     again
//     |-------------------------------------------->|
//     | cancel_request                              |   any time; answered when the request is forgotten or was unknown
//     |-------------------------------------------->|
//     |<------------------------------------- ack --|
//
// Every accepted attempt ends with exactly one item that has `finish` or `failure`, or with the end of the connection.
// A prefill scheduler gives one token and ends with finish `none` and a ticket in `handoff`: the front then enqueues
// the request, with what it knows now, on a decode scheduler. The ticket says how the state gets there: recompute, or
// pull from the prefill rank's memory (handoff.hpp). A front that does not use a ticket gives it back with
// transfer_close.
#pragma once

#include "actors/protocol/common.hpp"
#include "actors/protocol/handoff.hpp"
#include "actors/protocol/kernel_types.hpp"
#include "actors/protocol/prefix.hpp"

namespace troupe::actors {
/// Makes a front known to a scheduler: once per connection, before anything else.
struct attach_front {
  cluster_epoch epoch;
  actor_key front;
  bool operator==(const attach_front&) const = default;
};
TROUPE_FIELDS(attach_front, epoch, front)

struct attach_reply {
  status outcome;  // unavailable: no engine yet
  incarnation inc;
  role what = role::none;
  kernels::model_facts facts;
  kernels::engine_limits limits;
  uint32_t queue_limit = 0;
  bool operator==(const attach_reply&) const = default;
};
TROUPE_FIELDS(attach_reply, outcome, inc, what, facts, limits, queue_limit)

struct enqueue_request {
  cluster_epoch epoch;
  incarnation front;  // the front's
  request_number request;
  uint32_t attempt = 0;                   // counts placements of the request; tokens of older attempts are ignored
  std::vector<kernels::token_id> tokens;  // all known: the prompt and what was emitted
  uint32_t prompt_length = 0;             // L0
  kernels::sampling_params sampling;
  kernels::stop_params stop;
  bool speculate = true;
  uint8_t priority = 5;  // where it waits: 0 to 9, higher is sooner
  handoff_ticket handoff;
  prefix_plan prefix;
  bool operator==(const enqueue_request&) const = default;
};
TROUPE_FIELDS(enqueue_request, epoch, front, request, attempt, tokens, prompt_length, sampling, stop, speculate,
              priority, handoff, prefix)

struct enqueue_reply {
  status outcome;  // exhausted: queue full; unavailable: draining or no engine; invalid_argument: can never fit; stale
  uint32_t retry_after_ms = 0;
  uint32_t waiting = 0;  // requests in the queue
  bool operator==(const enqueue_reply&) const = default;
};
TROUPE_FIELDS(enqueue_reply, outcome, retry_after_ms, waiting)

/// From a front that has a lease for it (balance.hpp) to a decode scheduler when the last chunk of a prompt is planned
/// elsewhere: a slot, pages and a place
/// of the handoff memory are kept for the request that will come under this attempt, for 10 s, or until it is
/// cancelled. Nobody waits for a lease: it is refused (exhausted) when others wait or there is no room now, and the
/// request is then placed like any other.
struct lease_request {
  cluster_epoch epoch;
  incarnation front;
  request_number request;
  uint32_t attempt = 0;
  uint32_t rows = 0;  // tokens that will be in place
  bool operator==(const lease_request&) const = default;
};
TROUPE_FIELDS(lease_request, epoch, front, request, attempt, rows)

struct stream_item {
  request_number request;
  uint32_t attempt = 0;
  uint32_t first_position = 0;
  std::vector<kernels::token_id> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<kernels::token_logprob>> top;
  uint32_t cached = 0;                 // prompt tokens of this attempt that were not computed
  uint32_t drafted = 0, accepted = 0;  // of this attempt, so far
  kernels::finish_reason finish = kernels::finish_reason::none;
  uint64_t pulled_bytes = 0;  // told once: the sequence's state came from a prefill rank, and how long that took
  int64_t pulled_ns = 0;
  bool computed_again = false;  // told once: a ticket was given, but the prompt had to be computed
  bool last_chunk = false;      // without tokens: the prompt's last chunk is planned, time to find a place to decode
  handoff_ticket handoff;       // kind != none: prefill is done
  errc failure{};               // 0, or why the attempt ended; peer_lost, unavailable: resume elsewhere
  std::string failure_text;
  bool last() const {
    return finish != kernels::finish_reason::none || handoff.kind != handoff_kind::none || failure != errc{};
  }
  bool operator==(const stream_item&) const = default;
};
TROUPE_FIELDS(stream_item, request, attempt, first_position, tokens, logprobs, top, cached, drafted, accepted, finish,
              pulled_bytes, pulled_ns, computed_again, last_chunk, handoff, failure, failure_text)

struct token_batch {
  incarnation inc;  // of the scheduler's node
  std::vector<stream_item> items;
  bool operator==(const token_batch&) const = default;
};
TROUPE_FIELDS(token_batch, inc, items)

struct ack_item {
  request_number request;
  uint32_t attempt = 0;
  uint32_t next_position = 0;  // everything before it has arrived
  bool ended = false;          // the last item has arrived too: forget the request
  bool operator==(const ack_item&) const = default;
};
TROUPE_FIELDS(ack_item, request, attempt, next_position, ended)

struct token_ack {
  incarnation front;
  std::vector<ack_item> items;
  bool operator==(const token_ack&) const = default;
};
TROUPE_FIELDS(token_ack, front, items)

struct cancel_request {
  cluster_epoch epoch;
  incarnation front;
  request_number request;
  uint32_t attempt = 0;
  bool operator==(const cancel_request&) const = default;
};
TROUPE_FIELDS(cancel_request, epoch, front, request, attempt)

struct scheduler_query {
  bool operator==(const scheduler_query&) const = default;
};
TROUPE_NO_FIELDS(scheduler_query)

/// Counters are since the start of the actor.
struct scheduler_report {
  role_state state = role_state::starting;
  uint32_t waiting = 0, running = 0, closing = 0, unacknowledged = 0;
  uint32_t pages_total = 0, pages_free = 0, pages_reserved = 0;  // free + reserved + held = total
  uint32_t pages_held = 0;                                       // by transfers and write-back alone
  uint32_t leased = 0;                                           // places kept for requests that are still elsewhere
  uint32_t fetching = 0;                                         // sequences under way from prefill ranks
  uint64_t fetched = 0, recomputed = 0;  // sequences handed over: state pulled; prompt computed again instead
  uint32_t reading = 0;                  // prompts whose cached blocks are being read
  uint64_t cached_tokens = 0;            // of prompts, not computed
  uint64_t steps = 0, prompt_rows = 0, tokens = 0, drafted = 0, accepted = 0, finished = 0, cancelled = 0, failed = 0,
           refused = 0, preempted = 0, resent = 0;
  std::vector<std::string> reasons;  // of the latest decisions, oldest first, at most 16
  bool operator==(const scheduler_report&) const = default;
};
TROUPE_FIELDS(scheduler_report, state, waiting, running, closing, unacknowledged, pages_total, pages_free,
              pages_reserved, pages_held, leased, fetching, fetched, recomputed, reading, cached_tokens, steps,
              prompt_rows, tokens, drafted, accepted, finished, cancelled, failed, refused, preempted, resent, reasons)

}  // namespace troupe::actors
