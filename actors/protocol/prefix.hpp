// How a prompt's cached blocks are found, read into a rank's pages and written back. Messages are small; bytes move
// between pages and storage nodes by the store's client of each process (actors/serving/prefix_store.hpp).
//
//   entrypoint                   scheduler                      rank                           store client
//     | match, before placing -----------------------------------------------------------------> |
//     |<-- match_answer, or match_timeout ------------------------------------------------------- |
//     | enqueue_request{prefix} ---> |                            |                               |
//     |                              | prefix_read{deadline} ---->| takes pages; read ----------> |
//     |                              |                            |<------------- prefix_event -- |
//     |                              |<----------- prefix_done ---|
//     |                              | prefix_write ------------->| holds pages; write ---------> |
//     |                              |                            |<------------- prefix_event -- |
//
// A read has a deadline: what recomputing would take. Whatever is late, missing or damaged, the request is computed as
// a miss; pages into which bytes may still come stay held until the store has let go. A write is never waited for: over
// the bounds it is dropped and counted.
#pragma once

#include "actors/protocol/common.hpp"
#include "actors/protocol/kernel_types.hpp"
#include "kv/types.hpp"

namespace troupe::actors {

/// What is known of a request's blocks. Hashes and salt are the gateway's; a client cannot choose them.
struct prefix_plan {
  bool active = false;                // false: nothing is read or written for the request
  std::vector<kv::block_hash> chain;  // of the complete blocks of the prompt
  std::string salt;                   // of the tenant: output blocks are hashed where they are made
  kv::traffic_class traffic = kv::traffic_class::chatbot;
  uint32_t reuse = 0, replay = 0;  // policies/hit_length; reuse 0: a miss
  bool operator==(const prefix_plan&) const = default;
};
TROUPE_FIELDS(prefix_plan, active, chain, salt, traffic, reuse, replay)

/// From the store to the entrypoint: so many blocks of the request's chain are there.
struct match_answer {
  request_number request;
  status outcome;
  uint32_t blocks = 0;
  bool operator==(const match_answer&) const = default;
};
TROUPE_FIELDS(match_answer, request, outcome, blocks)

/// From the scheduler to its rank: read these blocks, from the first of the chain on, into new pages. `number` is not
/// used twice, neither for a fetch.
struct prefix_read {
  uint64_t number = 0;
  std::vector<kv::block_hash> chain;
  kv::traffic_class traffic = kv::traffic_class::chatbot;
  int64_t deadline_ns = 0;
  bool operator==(const prefix_read&) const = default;
};
TROUPE_FIELDS(prefix_read, number, chain, traffic, deadline_ns)

/// A read that is not wanted any more; answered by prefix_done with `dropped`.
struct prefix_drop {
  uint64_t number = 0;
  bool operator==(const prefix_drop&) const = default;
};
TROUPE_FIELDS(prefix_drop, number)

/// The first `blocks` blocks are here, checked (outcome 0, blocks > 0): all pages of the read stay reserved for the
/// plan that opens the sequence. Otherwise the pages are back, but for those in pages_held, which the store has not let
/// go yet.
struct prefix_done {
  uint64_t number = 0;
  status outcome;
  uint32_t blocks = 0;
  bool dropped = false;  // the answer to prefix_drop
  uint32_t pages_held = 0;
  bool operator==(const prefix_done&) const = default;
};
TROUPE_FIELDS(prefix_done, number, outcome, blocks, dropped, pages_held)

/// Put blocks [first, chain.size()) of the chain into the store; they lie in the slot's pages of the same index. Not
/// answered.
struct prefix_write {
  kernels::slot_id slot;
  std::vector<kv::block_hash> chain;
  uint32_t first = 0;
  kv::traffic_class traffic = kv::traffic_class::chatbot;
  bool operator==(const prefix_write&) const = default;
};
TROUPE_FIELDS(prefix_write, slot, chain, first, traffic)

/// From the store to the rank: it has let go of the pages of a read (blocks: that are whole) or a write (blocks: that
/// it made visible).
struct prefix_event {
  uint64_t number = 0;
  bool write = false;
  status outcome;
  uint32_t blocks = 0;
  bool operator==(const prefix_event&) const = default;
};
TROUPE_FIELDS(prefix_event, number, write, outcome, blocks)

/// Of a rank. The first line is now, the rest since its start; tokens are blocks x block size.
struct prefix_counts {
  uint32_t reading = 0, writing = 0;                           // reads and puts under way
  uint64_t reads = 0, read_blocks = 0, read_failed = 0;        // asked for; blocks that came; reads that brought none
  uint64_t read_late = 0, read_dropped = 0;                    // of these: lost against recomputing; not wanted
  int64_t read_ns = 0;                                         // of reads that brought blocks
  uint64_t writes = 0, write_blocks = 0, stored_blocks = 0;    // puts begun, their blocks; blocks that were new
  uint64_t write_failed = 0, dropped = 0, dropped_blocks = 0;  // puts that failed; that were over the bounds
  bool operator==(const prefix_counts&) const = default;
};
TROUPE_FIELDS(prefix_counts, reading, writing, reads, read_blocks, read_failed, read_late, read_dropped, read_ns,
              writes, write_blocks, stored_blocks, write_failed, dropped, dropped_blocks)

}  // namespace troupe::actors
