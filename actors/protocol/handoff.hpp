// How a prefilled sequence gets from the rank that ran its prompt to the one that decodes it. Messages are small; pages
// and state are pulled by transport from the memory of the source.
//
//   prefill rank                      front                      decode scheduler         decode rank
//     | step_done{ticket} -> scheduler  |                              |                       |
//     |     stream_item{first token, ticket} -->|                      |                       |
//     |                                 | enqueue_request{ticket} ---->|                       |
//     |                                 |                              | fetch_start --------->|  takes pages and a
//     place
//     |<------------------------------------------------ transfer_open{epoch, incarnation, transfer}
//     | transfer_grant{memory, pages, checksums} ---------------------------------------------->|
//     |<=================================== pull of pages and state, by transport ==============|
//     |<-------------------------------------------------------- transfer_close{outcome} -------|
//     | ack: pages and place are let go --------------------------------------------------------->|
//     |                                 |                              |<------- fetch_done ---|
//     |                                 |                              | submit_plan{imports} >|  as a running sequence
//
// Who lets go, and when: the source when it hears transfer_close (from the decode rank, or from the front through the
// prefill scheduler when nobody decodes), when the puller or its node ends, or when nobody has asked for the transfer
// within 5 s. The decode rank gives pages back when its scheduler lets go (fetch_drop, always answered by fetch_done
// with `dropped`) and the transport has let go too. Whatever goes wrong, the sequence is computed again from its
// tokens.
#pragma once

#include "actors/protocol/common.hpp"
#include "actors/protocol/kernel_types.hpp"

namespace troupe::actors {

/// Sent between processes: append only.
enum class handoff_kind : uint8_t { none = 0, recompute = 1, pull = 2 };

/// How the state of a prefilled sequence gets to the decode side. pull: the source holds it under this number, which it
/// never gives twice in an incarnation.
struct handoff_ticket {
  handoff_kind kind = handoff_kind::none;
  actor_key source;       // the prefill rank
  uint64_t transfer = 0;  // names the pages and the state there
  uint32_t rows = 0;      // tokens in place; one less than are known with the first token
  bool operator==(const handoff_ticket&) const = default;
};
TROUPE_FIELDS(handoff_ticket, kind, source, transfer, rows)

/// Memory of a rank that peers can read: addresses as the transport made them, opaque.
struct peer_memory {
  std::string address;  // of the transport; empty: nobody can reach this rank
  std::string pages;    // the page pool
  std::string states;   // the places of the handoff memory
  bool operator==(const peer_memory&) const = default;
};
TROUPE_FIELDS(peer_memory, address, pages, states)

/// A page of a pool in one of its lives, and the checksum of its valid bytes.
struct page_ref {
  kernels::page_id page;
  uint32_t generation = 0;
  uint64_t checksum = 0;
  bool operator==(const page_ref&) const = default;
};
TROUPE_FIELDS(page_ref, page, generation, checksum)

/// From the decode rank to the source. The source watches the asker from now on.
struct transfer_open {
  cluster_epoch epoch;
  incarnation source;  // that the ticket names
  uint64_t transfer = 0;
  bool operator==(const transfer_open&) const = default;
};
TROUPE_FIELDS(transfer_open, epoch, source, transfer)

/// stale: another epoch or incarnation, or a transfer that has been let go (its pages may be somebody else's by now).
struct transfer_grant {
  status outcome;
  peer_memory memory;
  uint32_t rows = 0;
  std::vector<page_ref> pages;
  uint32_t state_place = 0, state_bytes = 0;
  uint64_t state_checksum = 0;
  bool operator==(const transfer_grant&) const = default;
};
TROUPE_FIELDS(transfer_grant, outcome, memory, rows, pages, state_place, state_bytes, state_checksum)

/// The transfer is over or not wanted; answered with ack: 0, or not_found when it has been let go before.
struct transfer_close {
  cluster_epoch epoch;
  incarnation source;
  uint64_t transfer = 0;
  errc outcome{};  // 0: everything arrived; cancelled: nobody wants it; else what went wrong
  bool operator==(const transfer_close&) const = default;
};
TROUPE_FIELDS(transfer_close, epoch, source, transfer, outcome)

/// From the decode scheduler to its rank: get this sequence. `number` is not used twice.
struct fetch_start {
  uint64_t number = 0;
  handoff_ticket ticket;
  uint32_t pages = 0;
  bool operator==(const fetch_start&) const = default;
};
TROUPE_FIELDS(fetch_start, number, ticket, pages)

/// From a scheduler to its rank: a fetched sequence or one that is being fetched is not wanted (answered by fetch_done
/// with `dropped`), or, with number 0, a ticket that nobody will use.
struct fetch_drop {
  uint64_t number = 0;
  handoff_ticket ticket;
  bool operator==(const fetch_drop&) const = default;
};
TROUPE_FIELDS(fetch_drop, number, ticket)

/// The sequence is here (outcome 0), or will not come: its pages are back, but for those counted in pages_held, which
/// the transport has not let go yet.
struct fetch_done {
  uint64_t number = 0;
  status outcome;
  bool dropped = false;  // the answer to fetch_drop
  uint32_t pages_held = 0;
  uint64_t bytes = 0;
  int64_t nanoseconds = 0;  // from fetch_start to the last checksum
  bool operator==(const fetch_done&) const = default;
};
TROUPE_FIELDS(fetch_done, number, outcome, dropped, pages_held, bytes, nanoseconds)

/// From the rank to its scheduler: fewer pages than last said are held by transfers and write-back alone.
struct pool_update {
  uint32_t pages_held = 0;
  bool operator==(const pool_update&) const = default;
};
TROUPE_FIELDS(pool_update, pages_held)

/// From the host: the pull of this fetch is over, its checksums have been compared.
struct engine_fetched {
  uint64_t number = 0;
  status outcome;
  uint64_t bytes = 0;
  bool operator==(const engine_fetched&) const = default;
};
TROUPE_FIELDS(engine_fetched, number, outcome, bytes)

/// What a slot of a step that exported has become.
struct slot_ticket {
  kernels::slot_id slot;
  handoff_ticket ticket;
  bool operator==(const slot_ticket&) const = default;
};
TROUPE_FIELDS(slot_ticket, slot, ticket)

/// Since the start of the rank, but for the first line, which is now.
struct transfer_counts {
  uint32_t offered = 0, sending = 0, fetching = 0, places = 0, places_free = 0;
  uint64_t out = 0, out_done = 0, out_expired = 0, out_dropped = 0;  // sequences offered, and how that ended
  uint64_t in = 0, in_done = 0, in_failed = 0, in_dropped = 0;       // sequences fetched, and how that ended
  uint64_t stale = 0;                                                // requests for transfers that are no more
  uint64_t bytes_in = 0;
  int64_t nanoseconds_in = 0;  // of fetches that succeeded, each from its start to its last checksum
  bool operator==(const transfer_counts&) const = default;
};
TROUPE_FIELDS(transfer_counts, offered, sending, fetching, places, places_free, out, out_done, out_expired, out_dropped,
              in, in_done, in_failed, in_dropped, stale, bytes_in, nanoseconds_in)

}  // namespace troupe::actors
