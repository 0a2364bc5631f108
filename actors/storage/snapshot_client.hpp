// Window snapshots as a client of the store sees them: kept by the tier of the node that is primary owner of the
// block's slot, while it is there. Belongs to a store_client actor and runs in its handlers; bytes move between the
// tier and whoever put or reads them.
#pragma once

#include <functional>
#include <memory>

#include "actors/serving/prefix_store.hpp"
#include "actors/storage/remote.hpp"

namespace troupe::actors {

/// See the top of the file. The peers are looked up anew for every call.
class snapshot_client {
 public:
  using peer_of_slot = std::function<std::shared_ptr<store_peer>(const kv::block_hash&)>;
  using peer_of_seat = std::function<std::shared_ptr<store_peer>(uint32_t)>;
  snapshot_client(std::shared_ptr<remote_store> store, peer_of_slot owner, peer_of_seat seat)
      : store_(std::move(store)), owner_(std::move(owner)), seat_(std::move(seat)) {}

  /// Answer: the tier has pulled it. Errors: unavailable (the owner is away or keeps none), and the tier's.
  void put(snapshot_offer offer, kv::reply<void> done);
  /// Begins to read one. Errors: not_found, exhausted, unavailable.
  void open(const snapshot_key& key, kv::reply<snapshot_source> done);
  /// The reader has it, or wants it no longer.
  void close(uint32_t seat, uint64_t ticket);

 private:
  const std::shared_ptr<remote_store> store_;
  const peer_of_slot owner_;
  const peer_of_seat seat_;
};

}  // namespace troupe::actors
