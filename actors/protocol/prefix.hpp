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
// Where the store keeps a window snapshot at a block of the hit (docs/cache.md), the prompt starts from it:
//
//   scheduler                    rank                                  store client         tier of the block's slot
//     | prefix_read{snapshot} --->| takes a place; asks where it is ----> | tier_open -------> |
//     |                           |<------- snapshot_event{opened} ------ |
//     |                           |<===== pull, checksum ===================================== |
//     |<------------ prefix_done -|--------------------------------------> | tier_close ------> |
//     | submit_plan{snapshots} -->|  the step writes into places that the rank names
//     |<-- step_done{snapshots} --|
//     | snapshot_write ---------->|-------------------------------------> | tier_put --------> |
//     |                           |<=========================================== pulls ======== |
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
  bool snapshot = false;           // the windows at `reuse` come from a snapshot; else the replay rebuilds them
  bool operator==(const prefix_plan&) const = default;
};
TROUPE_FIELDS(prefix_plan, active, chain, salt, traffic, reuse, replay, snapshot)

/// From the store to the entrypoint: so many blocks of the request's chain are there.
struct match_answer {
  request_number request;
  status outcome;
  uint32_t blocks = 0;
  std::vector<uint32_t> snapshots;  // behind so many blocks of the chain there is a window snapshot
  bool operator==(const match_answer&) const = default;
};
TROUPE_FIELDS(match_answer, request, outcome, blocks, snapshots)

/// Names a window snapshot: the block at whose end it was taken, and the first block of that block's slot, whose owner
/// keeps it. Without tokens: none.
struct snapshot_key {
  kv::block_hash at, slot;
  bool operator==(const snapshot_key&) const = default;
};
TROUPE_FIELDS(snapshot_key, at, slot)

/// Where a tier holds a snapshot for a reader, until it says that it has it (or for as long as the tier is willing).
struct snapshot_source {
  std::string address;  // of the tier's process on the data plane
  std::string region;   // transport::remote_region, encoded
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;     // CRC32C
  uint32_t seat = 0;    // of the storage node
  uint64_t ticket = 0;  // there
  bool operator==(const snapshot_source&) const = default;
};
TROUPE_FIELDS(snapshot_source, address, region, offset, bytes, crc, seat, ticket)

/// From the scheduler to its rank: read these blocks, from the first of the chain on, into new pages, and `snapshot`,
/// where it names one, into a place of the snapshot memory. `number` is not used twice, neither for a fetch.
struct prefix_read {
  uint64_t number = 0;
  std::vector<kv::block_hash> chain;
  kv::traffic_class traffic = kv::traffic_class::chatbot;
  int64_t deadline_ns = 0;
  snapshot_key snapshot;
  bool operator==(const prefix_read&) const = default;
};
TROUPE_FIELDS(prefix_read, number, chain, traffic, deadline_ns, snapshot)

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
  bool snapshot = false;  // the one asked for is here too
  bool operator==(const prefix_done&) const = default;
};
TROUPE_FIELDS(prefix_done, number, outcome, blocks, dropped, pages_held, snapshot)

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

/// From the scheduler to its rank, once for every snapshot that a step has written: put it into the tier, or (no key)
/// let its place go. Not answered, and never waited for.
struct snapshot_write {
  uint32_t place = 0, crc = 0;  // as the engine said
  uint64_t request = 0;         // who takes it, unique over all fronts
  snapshot_key where;
  snapshot_key older;  // what the request keeps no longer once it has this one, if it has it
  bool operator==(const snapshot_write&) const = default;
};
TROUPE_FIELDS(snapshot_write, place, crc, request, where, older)

/// Sent between processes: append only.
enum class snapshot_stage : uint8_t { opened = 1, pulled = 2, put = 3 };

/// From the store or the host to the rank: a step of a read (by its number) or of a put (by its place) is over.
struct snapshot_event {
  uint64_t number = 0;
  snapshot_stage stage = snapshot_stage::opened;
  status outcome;
  snapshot_source source;  // of opened
  bool operator==(const snapshot_event&) const = default;
};
TROUPE_FIELDS(snapshot_event, number, stage, outcome, source)

/// Of a rank's snapshot memory. The first line is now, the rest since its start.
struct snapshot_counts {
  uint32_t places = 0, places_free = 0, reading = 0, writing = 0;
  uint64_t taken = 0, stored = 0, write_failed = 0, dropped = 0;  // by steps; kept by a tier; for want of a place
  uint64_t reads = 0, used = 0, read_failed = 0, read_late = 0;   // asked for; that a prompt started from; not come
  uint64_t bytes_in = 0, bytes_out = 0;
  bool operator==(const snapshot_counts&) const = default;
};
TROUPE_FIELDS(snapshot_counts, places, places_free, reading, writing, taken, stored, write_failed, dropped, reads, used,
              read_failed, read_late, bytes_in, bytes_out)

/// What the rank's client of the store has under way: calls, and the bytes of blocks that they move.
struct store_load {
  uint32_t matches = 0, reads = 0, writes = 0, snapshots = 0;
  uint64_t read_bytes = 0, write_bytes = 0;
  bool operator==(const store_load&) const = default;
};
TROUPE_FIELDS(store_load, matches, reads, writes, snapshots, read_bytes, write_bytes)

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
