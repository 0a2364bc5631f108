// The block store over the network: clients, index owners (kv_index), targets (storage_target) and the actor of a
// storage node that introduces them (storage_node).
//
//   client                              storage_node, one per storage seat: "<seat>/storage"
//     | kv_hello{scheme or any}            |  block hashes must mean the same; a mismatch is refused
//     |----------------------------------->|
//     |<----------------------- kv_welcome |  handles of its index and targets, its address on the data plane
//
//   client                              kv_index, one per storage node
//     | kv_match{slots of one chain}       |  one question per owner for a whole chain
//     | kv_lookup{hashes, lease}           |
//     | kv_index_put / kv_touch            |  changes come back ...
//     | kv_apply{changes}                  |  ... and go to the slot's other owners
//     | kv_release{lease}                  |  one way
//
//   client                              storage_target, one per disk
//     | kv_put{extent, shard, region, crc} |
//     |----------------------------------->|  pulls the bytes from the client's memory, checks them, writes them
//     |<------------------------------ ack |
//     | kv_read{shard, range}              |
//     |----------------------------------->|  reads and checks into memory that peers can reach
//     |<-- kv_read_reply{region, ticket} --|  the client pulls and checks ...
//     | kv_read_done{ticket}               |  ... and gives the room back; else it comes back after `staging_hold`,
//     |----------------------------------->|  or when the client's end is noticed
//
// Bytes never pass through a mailbox. Whatever changes something carries its sender and the storage epoch that the
// sender knows; an older epoch, or a sender of the past, is answered with `stale` and not obeyed. The storage epoch
// follows from the group view of the storage seats (storage_epoch_of).
#pragma once

#include "actors/protocol/cluster.hpp"
#include "actors/protocol/kv_types.hpp"

namespace troupe::actors {

/// Name of the group of all storage seats.
inline constexpr const char* storage_group = "storage";

/// The storage epoch of a view: grows with every change of the storage group's view, over restarts of the director
/// too. 0: there is no storage in the view.
storage_epoch storage_epoch_of(const cluster_view& view);

/// Who sends, and what it knows. A client outside of the cluster (a command line) has node 0.
struct kv_origin {
  storage_epoch epoch;
  node_number node;
  incarnation inc;
  bool operator==(const kv_origin&) const = default;
};
TROUPE_FIELDS(kv_origin, epoch, node, inc)

/// What an actor of the store compares origins with.
class kv_fence {
 public:
  void follow(const cluster_view& view);
  storage_epoch epoch() const { return epoch_; }
  /// Code 0, or `stale` with the reason.
  status check(const kv_origin& from) const;

 private:
  storage_epoch epoch_;
  uint64_t version_ = 0;
  std::map<node_number, incarnation> members_;
};

/// Hashes in one piece, 20 bytes each: 16 of the hash, then its token count, little-endian.
struct packed_hashes {
  std::string bytes;
  bool operator==(const packed_hashes&) const = default;
};
TROUPE_FIELDS(packed_hashes, bytes)

packed_hashes pack(std::span<const kv::block_hash> hashes);
/// corrupt for a length that is no multiple of 20.
result<std::vector<kv::block_hash>> unpack(const packed_hashes& p);

// -- kv_index -----------------------------------------------------------------------------------------------------

/// Slots of one chain, ascending; `hashes` holds those of all slots one after the other.
struct kv_match {
  kv_origin from;
  std::vector<uint64_t> slots;  // numbers
  std::vector<uint8_t> counts;  // hashes of each, 1 to 16
  packed_hashes hashes;
  uint64_t limit = 0;  // only block positions below it count
  bool operator==(const kv_match&) const = default;
};
TROUPE_FIELDS(kv_match, from, slots, counts, hashes, limit)

struct kv_match_reply {
  status outcome;
  uint64_t first_missing = 0;
  uint32_t probes = 0;
  std::vector<uint64_t> snapshots;  // block positions at whose end a window snapshot is held here; newest first, <= 3
  bool operator==(const kv_match_reply&) const = default;
};
TROUPE_FIELDS(kv_match_reply, outcome, first_missing, probes, snapshots)

struct kv_lookup {
  kv_origin from;
  packed_hashes hashes;
  bool lease = false;
  bool operator==(const kv_lookup&) const = default;
};
TROUPE_FIELDS(kv_lookup, from, hashes, lease)

/// `at[i]`: 0 = hash i is not there, else 1 + 16 * (number in `ids`) + ordinal within that extent.
struct kv_lookup_reply {
  status outcome;
  std::vector<uint32_t> at;
  std::vector<kv::extent_id> ids;
  std::vector<kv::block_index::extent_entry> extents;  // of `ids` where the record holds
  uint64_t lease = 0;
  bool operator==(const kv_lookup_reply&) const = default;
};
TROUPE_FIELDS(kv_lookup_reply, outcome, at, ids, extents, lease)

struct kv_index_put {
  kv_origin from;
  std::vector<kv::extent_info> extents;
  bool operator==(const kv_index_put&) const = default;
};
TROUPE_FIELDS(kv_index_put, from, extents)

struct kv_index_put_reply {
  status outcome;
  std::vector<std::vector<kv::block_place>> winners;  // [extent][block]
  std::vector<uint8_t> recorded;                      // [extent]: 0 = none of its blocks won
  std::vector<kv::index_change> changes;
  bool operator==(const kv_index_put_reply&) const = default;
};
TROUPE_FIELDS(kv_index_put_reply, outcome, winners, recorded, changes)

struct kv_apply {
  kv_origin from;
  std::vector<kv::index_change> changes;
  bool operator==(const kv_apply&) const = default;
};
TROUPE_FIELDS(kv_apply, from, changes)

struct kv_touch {
  kv_origin from;
  std::vector<uint32_t> runs;  // hashes of each run, one run after the other in `hashes`
  packed_hashes hashes;
  policies::ttl_touch touch = policies::ttl_touch::read;
  kv::traffic_class traffic = kv::traffic_class::agent;
  bool operator==(const kv_touch&) const = default;
};
TROUPE_FIELDS(kv_touch, from, runs, hashes, touch, traffic)

struct kv_touch_reply {
  status outcome;
  std::vector<kv::index_change> changes;
  bool operator==(const kv_touch_reply&) const = default;
};
TROUPE_FIELDS(kv_touch_reply, outcome, changes)

struct kv_release {
  uint64_t lease = 0;
  bool operator==(const kv_release&) const = default;
};
TROUPE_FIELDS(kv_release, lease)

struct kv_lease_query {
  uint64_t lease = 0;
  bool operator==(const kv_lease_query&) const = default;
};
TROUPE_FIELDS(kv_lease_query, lease)

struct kv_lease_reply {
  status outcome;
  bool live = false;
  bool operator==(const kv_lease_reply&) const = default;
};
TROUPE_FIELDS(kv_lease_reply, outcome, live)

/// What has expired (evict_bytes 0), or what should go so that so many bytes become free.
struct kv_reclaim_query {
  uint64_t evict_bytes = 0;
  uint64_t limit = 0;
  bool operator==(const kv_reclaim_query&) const = default;
};
TROUPE_FIELDS(kv_reclaim_query, evict_bytes, limit)

struct kv_reclaim_reply {
  status outcome;
  kv::reclaim_plan plan;
  bool operator==(const kv_reclaim_reply&) const = default;
};
TROUPE_FIELDS(kv_reclaim_reply, outcome, plan)

struct kv_describe {
  std::vector<kv::extent_id> extents;
  bool operator==(const kv_describe&) const = default;
};
TROUPE_FIELDS(kv_describe, extents)

struct kv_describe_reply {
  status outcome;
  std::vector<kv::extent_info> extents;
  bool operator==(const kv_describe_reply&) const = default;
};
TROUPE_FIELDS(kv_describe_reply, outcome, extents)

struct kv_index_remove {
  kv_origin from;
  std::vector<kv::extent_id> extents;
  kv::remove_why why = kv::remove_why::expired;
  bool operator==(const kv_index_remove&) const = default;
};
TROUPE_FIELDS(kv_index_remove, from, extents, why)

struct kv_index_remove_reply {
  status outcome;
  kv::remove_reply removed;
  bool operator==(const kv_index_remove_reply&) const = default;
};
TROUPE_FIELDS(kv_index_remove_reply, outcome, removed)

struct kv_index_list {
  kv::index_cursor at;
  uint64_t limit = 0;
  bool operator==(const kv_index_list&) const = default;
};
TROUPE_FIELDS(kv_index_list, at, limit)

struct kv_index_list_reply {
  status outcome;
  std::vector<kv::index_change> changes;
  kv::index_cursor at;
  bool operator==(const kv_index_list_reply&) const = default;
};
TROUPE_FIELDS(kv_index_list_reply, outcome, changes, at)

struct kv_restore {
  kv_origin from;
  std::vector<kv::extent_info> extents;
  bool operator==(const kv_restore&) const = default;
};
TROUPE_FIELDS(kv_restore, from, extents)

/// Which of them hold nothing that is not elsewhere.
struct kv_restore_reply {
  status outcome;
  std::vector<kv::extent_id> useless;
  bool operator==(const kv_restore_reply&) const = default;
};
TROUPE_FIELDS(kv_restore_reply, outcome, useless)

struct kv_index_check {
  kv_origin from;
  kv::index_cursor at;
  uint64_t limit = 0;
  bool repair = false;
  bool operator==(const kv_index_check&) const = default;
};
TROUPE_FIELDS(kv_index_check, from, at, limit, repair)

struct kv_index_check_reply {
  status outcome;
  std::vector<kv::index_finding> findings;
  kv::index_cursor at;
  bool operator==(const kv_index_check_reply&) const = default;
};
TROUPE_FIELDS(kv_index_check_reply, outcome, findings, at)

struct kv_stats_query {
  bool operator==(const kv_stats_query&) const = default;
};
TROUPE_NO_FIELDS(kv_stats_query)

struct kv_stats_reply {
  status outcome;
  kv::index_stats stats;
  bool operator==(const kv_stats_reply&) const = default;
};
TROUPE_FIELDS(kv_stats_reply, outcome, stats)

/// See kv/store/owner.hpp for what each means. Refusals besides: exhausted (max_open questions are under way), stale.
using kv_index_actor =
    actor_type<answers<kv_match, kv_match_reply>, answers<kv_lookup, kv_lookup_reply>,
               answers<kv_index_put, kv_index_put_reply>, answers<kv_apply, ack>, answers<kv_touch, kv_touch_reply>,
               takes<kv_release>, answers<kv_lease_query, kv_lease_reply>, answers<kv_reclaim_query, kv_reclaim_reply>,
               answers<kv_describe, kv_describe_reply>, answers<kv_index_remove, kv_index_remove_reply>,
               answers<kv_index_list, kv_index_list_reply>, answers<kv_restore, kv_restore_reply>,
               answers<kv_index_check, kv_index_check_reply>, answers<kv_stats_query, kv_stats_reply>,
               takes<cluster_view>, answers<drain_request, drain_reply>, takes<tick>>;

// -- storage_target -----------------------------------------------------------------------------------------------

/// Stores a shard: `bytes` bytes at `offset` of the region, which the target pulls.
struct kv_put {
  kv_origin from;
  kv::extent_info extent;
  uint32_t shard = 0;
  std::string address;  // of the client on the data plane (transport::address)
  std::string region;   // transport::remote_region, encoded
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;  // CRC32C of these bytes
  bool operator==(const kv_put&) const = default;
};
TROUPE_FIELDS(kv_put, from, extent, shard, address, region, offset, bytes, crc)

struct kv_read {
  kv_origin from;
  kv::shard_key at;
  uint64_t offset = 0, bytes = 0;
  bool operator==(const kv_read&) const = default;
};
TROUPE_FIELDS(kv_read, from, at, offset, bytes)

/// Where the bytes are to be pulled from, until kv_read_done with this ticket.
struct kv_read_reply {
  status outcome;
  std::string region;  // transport::remote_region, encoded
  uint64_t offset = 0;
  uint32_t crc = 0;  // CRC32C of the bytes
  uint64_t ticket = 0;
  bool operator==(const kv_read_reply&) const = default;
};
TROUPE_FIELDS(kv_read_reply, outcome, region, offset, crc, ticket)

struct kv_read_done {
  uint64_t ticket = 0;
  bool operator==(const kv_read_done&) const = default;
};
TROUPE_FIELDS(kv_read_done, ticket)

struct kv_shard_remove {
  kv_origin from;
  std::vector<kv::shard_key> shards;
  bool operator==(const kv_shard_remove&) const = default;
};
TROUPE_FIELDS(kv_shard_remove, from, shards)

struct kv_shard_list {
  bool from_start = true;
  kv::shard_key after;  // unless from_start
  uint64_t limit = 0;
  bool operator==(const kv_shard_list&) const = default;
};
TROUPE_FIELDS(kv_shard_list, from_start, after, limit)

struct kv_shard_list_reply {
  status outcome;
  std::vector<kv::shard_footer> shards;
  bool operator==(const kv_shard_list_reply&) const = default;
};
TROUPE_FIELDS(kv_shard_list_reply, outcome, shards)

struct kv_shard_check {
  kv::shard_key at;
  bool operator==(const kv_shard_check&) const = default;
};
TROUPE_FIELDS(kv_shard_check, at)

struct kv_usage_query {
  bool operator==(const kv_usage_query&) const = default;
};
TROUPE_NO_FIELDS(kv_usage_query)

/// Counters are since the start of the actor.
struct kv_usage_reply {
  status outcome;
  kv::shard_usage usage;
  uint64_t staging_bytes = 0, staging_used = 0;  // of the memory that peers pull from
  uint32_t waiting = 0;                          // requests that wait for room in it
  uint64_t puts = 0, reads = 0, bytes_in = 0, bytes_out = 0, refused = 0, expired = 0;
  std::string trouble;  // why the disk failed the last write, and, if no read has gone well since, the last read
  bool operator==(const kv_usage_reply&) const = default;
};
TROUPE_FIELDS(kv_usage_reply, outcome, usage, staging_bytes, staging_used, waiting, puts, reads, bytes_in, bytes_out,
              refused, expired, trouble)

/// See kv/store/target.hpp for what each means. Refusals besides: exhausted (no room to stage, and as many wait as
/// may), corrupt (what was pulled is not what was promised), stale, peer_lost (the client's memory cannot be reached).
using storage_target_actor = actor_type<answers<kv_put, ack>, answers<kv_read, kv_read_reply>, takes<kv_read_done>,
                                        answers<kv_shard_remove, ack>, answers<kv_shard_list, kv_shard_list_reply>,
                                        answers<kv_shard_check, ack>, answers<kv_usage_query, kv_usage_reply>,
                                        takes<cluster_view>, answers<drain_request, drain_reply>, takes<tick>>;

// -- scrubber -----------------------------------------------------------------------------------------------------

/// Starts a run over the extents whose primary owner is on this node. One at a time.
struct kv_scrub {
  bool repair = false, restore = false, drop_lost = false;
  int64_t grace_s = 3600;  // shards without a record that are younger are left alone
  bool operator==(const kv_scrub&) const = default;
};
TROUPE_FIELDS(kv_scrub, repair, restore, drop_lost, grace_s)

struct kv_scrub_query {
  uint64_t run = 0;   // 0: the last one
  bool stop = false;  // end it after what is under way
  bool operator==(const kv_scrub_query&) const = default;
};
TROUPE_FIELDS(kv_scrub_query, run, stop)

/// Answers both: unavailable when another run is under way; not_found for a run that is not known.
struct kv_scrub_state {
  status outcome;
  uint64_t run = 0;
  bool running = false;
  kv::scrub_report report;                                 // so far
  uint64_t reclaimed = 0;                                  // extents given back since the start of the actor
  uint64_t expired = 0, evicted = 0, reclaimed_bytes = 0;  // by the reclaim before this run
  bool operator==(const kv_scrub_state&) const = default;
};
TROUPE_FIELDS(kv_scrub_state, outcome, run, running, report, reclaimed, expired, evicted, reclaimed_bytes)

using scrubber_actor = actor_type<answers<kv_scrub, kv_scrub_state>, answers<kv_scrub_query, kv_scrub_state>,
                                  takes<cluster_view>, takes<tick>>;

// -- storage_node -------------------------------------------------------------------------------------------------

/// A client introduces itself: what it knows, and which hashes it uses.
struct kv_hello {
  kv_origin from;
  bool any_scheme = true;  // the client takes what the store has
  kv::hash_scheme scheme;  // else the store must have this one
  bool operator==(const kv_hello&) const = default;
};
TROUPE_FIELDS(kv_hello, from, any_scheme, scheme)

struct kv_target_entry {
  kv::target_id id;
  any_handle actor;  // null: the disk is absent
  std::string text;  // why it is absent, or how the disk is reached
  bool operator==(const kv_target_entry&) const = default;
};
TROUPE_FIELDS(kv_target_entry, id, actor, text)

/// The handles are good for the connection over which this came.
struct kv_welcome {
  status outcome;  // unsupported: another scheme; unavailable: it is still opening its disks
  kv::hash_scheme scheme;
  uint32_t data = 0, parity = 0;
  uint32_t seat = 0, seats = 0;  // number of this node among the storage seats; its index owner is seat + 1
  uint32_t disks = 0;            // of every node; disk d of seat s is target s * disks + d + 1
  std::string address;           // on the data plane
  std::vector<kv_target_entry> targets;
  any_handle index, scrubber;
  any_handle tier;                 // a kv_tier (tier.hpp); null: it keeps no window snapshots
  std::vector<std::string> notes;  // what was found at open, for people
  bool operator==(const kv_welcome&) const = default;
};
TROUPE_FIELDS(kv_welcome, outcome, scheme, data, parity, seat, seats, disks, address, targets, index, scrubber, tier,
              notes)

struct storage_query {
  bool operator==(const storage_query&) const = default;
};
TROUPE_NO_FIELDS(storage_query)

/// A storage node for `troupe status`.
struct storage_report {
  role_state state = role_state::starting;
  storage_epoch epoch;
  uint32_t targets = 0, absent = 0;
  kv::shard_usage usage;  // sum over its targets
  kv::index_stats index;
  uint32_t reads_staged = 0;  // reads whose bytes wait to be pulled
  bool scrubbing = false;
  kv::scrub_report scrub;  // of the run, or of the last one
  uint64_t reclaimed = 0;
  uint64_t snapshots = 0, snapshot_room = 0;  // window snapshots in memory, and for how many it is
  std::vector<std::string> troubles;          // of its targets' disks (kv_usage_reply::trouble)
  std::string text;
  bool operator==(const storage_report&) const = default;
};
TROUPE_FIELDS(storage_report, state, epoch, targets, absent, usage, index, reads_staged, scrubbing, scrub, reclaimed,
              snapshots, snapshot_room, troubles, text)

using storage_node_actor = actor_type<answers<kv_hello, kv_welcome>, answers<storage_query, storage_report>,
                                      takes<cluster_view>, answers<drain_request, drain_reply>, takes<tick>>;

// -- client -------------------------------------------------------------------------------------------------------

/// The actor in which a kv::client lives (actors/storage/store_client.hpp). It is talked to through its session, by
/// functions of the same process; messages are only its clockwork.
using store_client_actor = actor_type<takes<cluster_view>, takes<tick>>;

}  // namespace troupe::actors
