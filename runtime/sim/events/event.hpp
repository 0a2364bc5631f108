// What happens in a simulated cluster, as the run's record: small typed events of integers. The hash of a run, its
// invariants, its summary and its report are all made from these, so what is not here cannot be checked or shown.
//
// An event has a time, a kind, the actor it is about, and up to six numbers whose names are in spec_of(kind). Make one
// with the functions below; they are the only place that knows the order of the numbers.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "runtime/base/clock.hpp"

namespace troupe::sim {

/// In files and hashes: append only, never renumber.
enum class event_kind : uint8_t {
  run_started = 0,
  run_ended = 1,
  request_submitted = 2,
  prefix_matched = 3,
  request_placed = 4,
  request_tokens = 5,
  request_ended = 6,
  decode_owned = 7,
  decode_dropped = 8,
  pool_opened = 9,
  pages_taken = 10,
  pages_given_back = 11,
  page_account = 12,
  transfer_began = 13,
  transfer_ended = 14,
  lease_granted = 15,
  lease_renewed = 16,
  lease_used = 17,
  epoch_seen = 18,
  leader = 19,
  role_changed = 20,
  step = 21,
  expert_account = 22,
  queue_length = 23,
  shard_written = 24,
  extent_indexed = 25,
  block_served = 26,
  bytes_moved = 27,
  pool_load = 28,
  fault_began = 29,
  fault_ended = 30,
  fault_seen = 31,
  fault_recovered = 32,
  faults_over = 33,
  process_ended = 34,
};
inline constexpr size_t event_kinds = 35;

/// Names an actor (or node) inside one run; event_log gives them from 1 on. 0: the world itself.
using actor_number = uint32_t;

/// One thing that happened. Numbers beyond those of its kind are 0.
struct event {
  int64_t at = 0;  // ns of virtual time
  event_kind kind = event_kind::run_started;
  actor_number actor = 0;
  std::array<uint64_t, 6> v{};
  bool operator==(const event&) const = default;
};

/// How a kind is called, and its numbers. A number named "actor..." is an actor_number.
struct event_spec {
  const char* name;
  uint8_t count;
  std::array<const char*, 6> fields;
};
/// Of every kind below event_kinds.
const event_spec& spec_of(event_kind k);

/// "12.345678901 s request_tokens actor 7: request 3, attempt 0, first 4, count 2".
std::string to_text(const event& e, const std::string& actor_name);

/// How a request ended.
enum class request_end : uint8_t { finished = 0, failed = 1, cancelled = 2 };
/// Which pool a request was placed in, or a sample is of.
enum class pool_kind : uint8_t { prefill = 0, decode = 1, storage = 2, front = 3 };
/// Whose epoch.
enum class epoch_kind : uint8_t { cluster = 0, group = 1, storage = 2, placement = 3, balancer = 4 };
/// What bytes were moved for.
enum class byte_kind : uint8_t { messages = 0, handoff = 1, store_write = 2, store_read = 3, experts = 4, repair = 5 };

/// The events. `at` is virtual time; requests are numbered through the whole run, not per front.
namespace happened {

/// Builds one; the functions below give it its meaning.
inline event make(nanoseconds at, event_kind k, actor_number who, std::initializer_list<uint64_t> v) {
  event e{at.count(), k, who, {}};
  size_t i = 0;
  for (const uint64_t x : v) e.v[i++] = x;
  return e;
}

/// The run begins.
inline event run_started(nanoseconds at, uint64_t seed, uint64_t nodes) {
  return make(at, event_kind::run_started, 0, {seed, nodes});
}
/// The run is over; `drained`: every request was to have ended by now (false: the run was cut at a time).
inline event run_ended(nanoseconds at, bool drained) { return make(at, event_kind::run_ended, 0, {drained}); }

/// A front took a request.
inline event request_submitted(nanoseconds at, actor_number front, uint64_t request, uint64_t input_tokens,
                               uint64_t output_tokens, uint64_t traffic, uint64_t tenant) {
  return make(at, event_kind::request_submitted, front, {request, input_tokens, output_tokens, traffic, tenant});
}
/// What the store had of its prompt: blocks found and reused tokens (after hit_length).
inline event prefix_matched(nanoseconds at, actor_number front, uint64_t request, uint64_t asked_blocks,
                            uint64_t hit_blocks, uint64_t input_tokens, uint64_t hit_tokens) {
  return make(at, event_kind::prefix_matched, front, {request, asked_blocks, hit_blocks, input_tokens, hit_tokens});
}
/// The front has a place for it. Attempts count from 0 and grow with every resumption.
inline event request_placed(nanoseconds at, actor_number front, uint64_t request, uint64_t attempt, pool_kind pool,
                            actor_number rank, uint64_t lease) {
  return make(at, event_kind::request_placed, front, {request, attempt, static_cast<uint64_t>(pool), rank, lease});
}
/// The front accepted tokens [first, first + count) of the answer, made by `attempt`. Position 0 is the first token.
inline event request_tokens(nanoseconds at, actor_number front, uint64_t request, uint64_t attempt, uint64_t first,
                            uint64_t count) {
  return make(at, event_kind::request_tokens, front, {request, attempt, first, count});
}
/// The client got the end: `tokens` in all.
inline event request_ended(nanoseconds at, actor_number front, uint64_t request, request_end how, uint64_t tokens) {
  return make(at, event_kind::request_ended, front, {request, static_cast<uint64_t>(how), tokens});
}

/// A decode rank has the request in its batch, or a prefill rank took it over; and no longer.
inline event decode_owned(nanoseconds at, actor_number rank, uint64_t request, uint64_t attempt) {
  return make(at, event_kind::decode_owned, rank, {request, attempt});
}
inline event decode_dropped(nanoseconds at, actor_number rank, uint64_t request, uint64_t attempt) {
  return make(at, event_kind::decode_dropped, rank, {request, attempt});
}

/// A rank has a new page pool, all free; whatever it had before is gone.
inline event pool_opened(nanoseconds at, actor_number rank, uint64_t total) {
  return make(at, event_kind::pool_opened, rank, {total});
}
/// Pages of the pool for a request.
inline event pages_taken(nanoseconds at, actor_number rank, uint64_t request, uint64_t count) {
  return make(at, event_kind::pages_taken, rank, {request, count});
}
inline event pages_given_back(nanoseconds at, actor_number rank, uint64_t request, uint64_t count) {
  return make(at, event_kind::pages_given_back, rank, {request, count});
}
/// The pool's own count of free pages, to compare; made by the rank now and then.
inline event page_account(nanoseconds at, actor_number rank, uint64_t free, uint64_t total) {
  return make(at, event_kind::page_account, rank, {free, total});
}
/// Somebody reads pages of `request` on this rank from now on (`transfer` is unique in the run); and no longer.
inline event transfer_began(nanoseconds at, actor_number rank, uint64_t transfer, uint64_t request, uint64_t pages) {
  return make(at, event_kind::transfer_began, rank, {transfer, request, pages});
}
inline event transfer_ended(nanoseconds at, actor_number rank, uint64_t transfer, uint64_t bytes, bool complete) {
  return make(at, event_kind::transfer_ended, rank, {transfer, bytes, complete});
}

/// The giver promises until `expires`; a renewal moves that; a use is the giver honouring it.
inline event lease_granted(nanoseconds at, actor_number giver, uint64_t lease, actor_number holder,
                           nanoseconds expires) {
  return make(at, event_kind::lease_granted, giver, {lease, holder, static_cast<uint64_t>(expires.count())});
}
inline event lease_renewed(nanoseconds at, actor_number giver, uint64_t lease, nanoseconds expires) {
  return make(at, event_kind::lease_renewed, giver, {lease, static_cast<uint64_t>(expires.count())});
}
inline event lease_used(nanoseconds at, actor_number giver, uint64_t lease) {
  return make(at, event_kind::lease_used, giver, {lease});
}

/// The actor acts by this epoch from now on. `id` tells groups of one kind apart; `incarnation` lives of the actor.
inline event epoch_seen(nanoseconds at, actor_number who, epoch_kind kind, uint64_t id, uint64_t value,
                        uint64_t incarnation) {
  return make(at, event_kind::epoch_seen, who, {static_cast<uint64_t>(kind), id, value, incarnation});
}
/// This director leads in this cluster epoch.
inline event leader(nanoseconds at, actor_number director, uint64_t epoch) {
  return make(at, event_kind::leader, director, {epoch});
}
/// A seat's state (actors::role_state) as the director sees it. `role` is a node_role.
inline event role_changed(nanoseconds at, actor_number node, uint64_t role, uint64_t index, uint64_t state,
                          uint64_t incarnation) {
  return make(at, event_kind::role_changed, node, {role, index, state, incarnation});
}
/// A process ended (killed, drained or left).
inline event process_ended(nanoseconds at, actor_number node, uint64_t role, uint64_t index) {
  return make(at, event_kind::process_ended, node, {role, index});
}

/// A finished step of a lock-step group (one event for all its ranks; a rank by itself is a group of one): cost-model
/// work of the step summed over its ranks, how long it took, tokens it made or took in.
inline event step(nanoseconds at, actor_number who, uint64_t group, pool_kind pool, nanoseconds work, nanoseconds took,
                  uint64_t ranks, uint64_t tokens) {
  return make(at, event_kind::step, who,
              {group, static_cast<uint64_t>(pool), static_cast<uint64_t>(work.count()),
               static_cast<uint64_t>(took.count()), ranks, tokens});
}
/// Logical experts of a group that no live rank holds.
inline event expert_account(nanoseconds at, actor_number who, uint64_t group, uint64_t without_copy) {
  return make(at, event_kind::expert_account, who, {group, without_copy});
}
/// A queue after something was put in. `queue` tells queues of one actor apart.
inline event queue_length(nanoseconds at, actor_number who, uint64_t queue, uint64_t length, uint64_t bound) {
  return make(at, event_kind::queue_length, who, {queue, length, bound});
}

/// A shard of an extent is on disk; an index owner has an entry that names so many shards as written; a block was read.
inline event shard_written(nanoseconds at, actor_number target, uint64_t extent_high, uint64_t extent_low,
                           uint64_t shard) {
  return make(at, event_kind::shard_written, target, {extent_high, extent_low, shard});
}
inline event extent_indexed(nanoseconds at, actor_number owner, uint64_t extent_high, uint64_t extent_low,
                            uint64_t shards) {
  return make(at, event_kind::extent_indexed, owner, {extent_high, extent_low, shards});
}
/// Keys are 64 bits of the hashes asked for and found in the footer; checksums as stored and as computed.
inline event block_served(nanoseconds at, actor_number reader, uint64_t key_asked, uint64_t key_found,
                          uint64_t checksum_stored, uint64_t checksum_computed, uint64_t bytes) {
  return make(at, event_kind::block_served, reader, {key_asked, key_found, checksum_stored, checksum_computed, bytes});
}
/// Bytes that arrived at `who`, since its last such event.
inline event bytes_moved(nanoseconds at, actor_number who, byte_kind kind, uint64_t bytes) {
  return make(at, event_kind::bytes_moved, who, {static_cast<uint64_t>(kind), bytes});
}
/// A sample of a pool: nodes that are ready, requests waiting and running there. For the report's timeline.
inline event pool_load(nanoseconds at, pool_kind pool, uint64_t ready, uint64_t waiting, uint64_t running) {
  return make(at, event_kind::pool_load, 0, {static_cast<uint64_t>(pool), ready, waiting, running});
}

/// A fault of the plan (`fault` is its index there) begins, ends, shows an effect, and the cluster serves as before
/// again.
inline event fault_began(nanoseconds at, actor_number node, uint64_t fault, uint64_t kind, uint64_t role,
                         uint64_t index) {
  return make(at, event_kind::fault_began, node, {fault, kind, role, index});
}
inline event fault_ended(nanoseconds at, actor_number node, uint64_t fault) {
  return make(at, event_kind::fault_ended, node, {fault});
}
inline event fault_seen(nanoseconds at, actor_number node, uint64_t fault, uint64_t effect) {
  return make(at, event_kind::fault_seen, node, {fault, effect});
}
inline event fault_recovered(nanoseconds at, uint64_t fault, nanoseconds took) {
  return make(at, event_kind::fault_recovered, 0, {fault, static_cast<uint64_t>(took.count())});
}
/// No fault is active and none will begin: the liveness phase starts.
inline event faults_over(nanoseconds at, nanoseconds deadline) {
  return make(at, event_kind::faults_over, 0, {static_cast<uint64_t>(deadline.count())});
}

}  // namespace happened
}  // namespace troupe::sim
