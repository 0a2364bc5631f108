// Window snapshots in the memory of a node: one kv_tier per node that keeps them.
//
//   rank                                kv_tier
//     | tier_put{request, hash, region}    |  pulls the snapshot from the rank's memory straight into its place and
//     |----------------------------------->|  compares the checksum; from then on it can be found
//     |<------------------------------ ack |
//     | tier_find{chain}                   |
//     |----------------------------------->|
//     |<-------- tier_found{positions}     |  the newest snapshots of the chain; extends no life
//     | tier_open{hash}                    |
//     |----------------------------------->|  the entry stays where it is from here on ...
//     |<-- tier_opened{region, ticket}     |  the rank pulls it and compares the checksum
//     | tier_close{ticket}                 |  ... until this, or `hold` later, or the reader's end
//     |----------------------------------->|
//
// Bytes never pass through a mailbox. A snapshot is what its hash says, so messages carry no epoch: a late one writes
// the same bytes, or finds nothing.
#pragma once

#include "actors/protocol/common.hpp"
#include "actors/protocol/messages.hpp"
#include "kv/types.hpp"

namespace troupe::actors {

/// Keeps a snapshot: entry_bytes at `offset` of the region. One that is there already is renewed and not pulled again.
/// Refusals: exhausted (too many are being read or written), corrupt (what was pulled is not what was promised),
/// invalid_argument, peer_lost.
struct tier_put {
  uint64_t request = 0;  // who takes it, unique over all fronts; of one request only the newest stay
  kv::block_hash at;     // the block at whose end it was taken
  std::string address;   // of the rank on the data plane (transport::address)
  std::string region;    // transport::remote_region, encoded
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;  // CRC32C of these bytes
  bool operator==(const tier_put&) const = default;
};
TROUPE_FIELDS(tier_put, request, at, address, region, offset, bytes, crc)

/// Which snapshots of a chain are here. At most 65,536 hashes.
struct tier_find {
  std::vector<kv::block_hash> chain;
  uint32_t limit = 3;
  bool operator==(const tier_find&) const = default;
};
TROUPE_FIELDS(tier_find, chain, limit)

struct tier_found {
  status outcome;
  std::vector<uint64_t> positions;  // in the chain asked for, newest first
  bool operator==(const tier_found&) const = default;
};
TROUPE_FIELDS(tier_found, outcome, positions)

/// Begins to read one and extends its life.
struct tier_open {
  kv::block_hash at;
  bool operator==(const tier_open&) const = default;
};
TROUPE_FIELDS(tier_open, at)

/// Where it is to be pulled from, until tier_close with this ticket. Refusals: not_found, exhausted.
struct tier_opened {
  status outcome;
  std::string region;  // transport::remote_region, encoded
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;
  uint64_t ticket = 0;
  bool operator==(const tier_opened&) const = default;
};
TROUPE_FIELDS(tier_opened, outcome, region, offset, bytes, crc, ticket)

struct tier_close {
  uint64_t ticket = 0;
  bool operator==(const tier_close&) const = default;
};
TROUPE_FIELDS(tier_close, ticket)

/// A request has ended: what it took stays for its time, and nothing else is kept about it.
struct tier_forget {
  uint64_t request = 0;
  bool operator==(const tier_forget&) const = default;
};
TROUPE_FIELDS(tier_forget, request)

/// The request keeps this one no longer: it has newer ones elsewhere. It goes unless another request keeps it.
struct tier_drop {
  uint64_t request = 0;
  kv::block_hash at;
  bool operator==(const tier_drop&) const = default;
};
TROUPE_FIELDS(tier_drop, request, at)

struct tier_query {
  bool operator==(const tier_query&) const = default;
};
TROUPE_NO_FIELDS(tier_query)

/// How full it is; counters are since the start of the actor.
struct tier_report {
  uint64_t entry_bytes = 0, memory_bytes = 0;
  uint64_t entries = 0, capacity = 0, reading = 0, writing = 0;  // entries
  uint64_t puts = 0, hits = 0, misses = 0, expired = 0, evicted = 0, superseded = 0, refused = 0;
  bool operator==(const tier_report&) const = default;
};
TROUPE_FIELDS(tier_report, entry_bytes, memory_bytes, entries, capacity, reading, writing, puts, hits, misses, expired,
              evicted, superseded, refused)

/// From the transport's thread to the tier itself: a pull has ended.
struct tier_pulled {
  uint64_t room = 0;
  status outcome;
  bool operator==(const tier_pulled&) const = default;
};
TROUPE_FIELDS(tier_pulled, room, outcome)

using kv_tier_actor =
    actor_type<answers<tier_put, ack>, answers<tier_find, tier_found>, answers<tier_open, tier_opened>,
               takes<tier_close>, takes<tier_forget>, takes<tier_drop>, answers<tier_query, tier_report>,
               takes<tier_pulled>, answers<drain_request, drain_reply>, takes<tick>>;

}  // namespace troupe::actors

/// The tier's messages, in a type-id block of their own behind the common one, so that only who uses them pays for
/// them.
#define TROUPE_TIER_MESSAGES(F) \
  F(tier_put)                   \
  F(tier_find)                  \
  F(tier_found)                 \
  F(tier_open) F(tier_opened) F(tier_close) F(tier_forget) F(tier_query) F(tier_report) F(tier_pulled) F(tier_drop)

#define TROUPE_TIER_MESSAGE_ID(type) CAF_ADD_TYPE_ID(troupe_tier, (troupe::actors::type))

CAF_BEGIN_TYPE_ID_BLOCK(troupe_tier, caf::id_block::troupe::end)
TROUPE_TIER_MESSAGES(TROUPE_TIER_MESSAGE_ID)
CAF_END_TYPE_ID_BLOCK(troupe_tier)
