// A storage target as an actor: kv::local_target behind messages, bytes by the transport.
//
// put:  room taken -> bytes pulled from the client's memory -> checksum -> written on the I/O pool -> ack, room back
// read: room taken -> read and checked on the I/O pool into the room -> answer; the room comes back with kv_read_done,
//       after `staging_hold`, or when the client's end is noticed
#pragma once

#include <memory>
#include <string>

#include "actors/protocol/storage.hpp"
#include "kv/store/local_target.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::actors {

/// What a target is told at its start. What is pointed to must outlive the actor and everything on the pool.
struct storage_target_options {
  std::shared_ptr<void> keep;  // held as long as the actor or work of it lives: whoever owns the rest waits for it
  kv::target_id id;
  kv::shard_store* store = nullptr;
  kv::worker* blocking = nullptr;
  std::shared_ptr<transport::transport> plane;
  uint64_t staging_bytes = 32ull << 20;  // room for what is pulled; at least one shard
  uint32_t waiting_max = 1024;           // requests that may wait for room; one more is refused with `exhausted`
  uint32_t max_open = 4096;              // requests under way
  nanoseconds staging_hold{std::chrono::seconds(10)};  // as long as a read lease
};

/// Spawns it as a child of `parent`; `region` is staging_bytes of the transport's memory.
storage_target_actor spawn_storage_target(caf::local_actor* parent, storage_target_options options,
                                          transport::region_ptr region);

}  // namespace troupe::actors
