// What serving needs of the block store: which blocks of a chain are there, blocks into memory, blocks out of memory.
// The runtime gives it a client of the cluster's store; tests hand in a stand-in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/protocol/prefix.hpp"
#include "kv/hash/block_hash.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::actors {

/// What the store has of a chain, from block 0 on; behind how many of these blocks there is a window snapshot.
struct prefix_match {
  uint64_t blocks = 0;
  std::vector<uint32_t> snapshots;
};

/// A snapshot in memory that a tier can reach (`source`; its seat and ticket mean nothing), and for whom it is kept.
struct snapshot_offer {
  uint64_t request = 0;  // unique over all fronts; of one request the newest three are kept
  snapshot_key where;
  snapshot_key older;  // what the request keeps no longer then
  snapshot_source source;
};

/// Thread rules: any thread may call, no call blocks. Every call is answered exactly once, on any thread, also when the
/// store goes away (unavailable). `keep` is held for as long as the memory of the spans may be touched; by the answer
/// at the latest nothing touches it any more.
class prefix_store {
 public:
  virtual ~prefix_store() = default;
  /// Extends no life.
  virtual void match(std::vector<kv::block_hash> chain, std::function<void(result<prefix_match>)> done) = 0;
  /// Reads as many blocks as come whole and checked within `deadline`, from block 0 on. into.size() <= chain.size().
  /// Answer: their number, > 0; the memory of later ones holds nothing of use.
  virtual void read(std::vector<kv::block_hash> chain, std::vector<std::span<std::byte>> into,
                    kv::traffic_class traffic, nanoseconds deadline, std::shared_ptr<const void> keep,
                    std::function<void(result<uint64_t>)> done) = 0;
  /// Stores blocks [first, first + blocks.size()) of the chain. Answer: how many of them were not there before.
  virtual void write(std::vector<kv::block_hash> chain, uint64_t first, std::vector<std::span<const std::byte>> blocks,
                     kv::traffic_class traffic, std::shared_ptr<const void> keep,
                     std::function<void(result<uint64_t>)> done) = 0;
  /// Keeps a snapshot: by the answer at the latest nobody reads the memory, unless the answer is a timeout; then what
  /// is still read does not hold the checksum and is not kept.
  virtual void put_snapshot(snapshot_offer offer, std::function<void(result<void>)> done) {
    (void)offer;
    done(fail(errc::unsupported, "this store keeps no snapshots"));
  }
  /// Where a snapshot can be pulled from, until close_snapshot.
  virtual void open_snapshot(snapshot_key key, std::function<void(result<snapshot_source>)> done) {
    (void)key;
    done(fail(errc::unsupported, "this store keeps no snapshots"));
  }
  virtual void close_snapshot(uint32_t seat, uint64_t ticket) { (void)seat, (void)ticket; }
  /// What is under way.
  virtual store_load load() const { return {}; }
};

class store_session;
/// Over a client of the cluster's store (actors/storage/store_client.hpp).
std::shared_ptr<prefix_store> make_prefix_store(std::shared_ptr<store_session> session);

/// The cache of prompts in the block store, as the actors of one process use it.
struct prefix_options {
  std::shared_ptr<prefix_store> store;  // null: no cache
  kv::hash_scheme scheme;               // block size and fingerprint; the block is the model's page
  bool exact = true;                    // replay: windows are rebuilt bit for bit
  nanoseconds match_timeout{std::chrono::milliseconds(200)};  // then the request is placed as a miss
  nanoseconds read_at_least{std::chrono::milliseconds(100)};  // that a read is given, whatever recomputing would take
  nanoseconds read_at_most{std::chrono::seconds(5)};
  uint32_t writes = 32;  // puts of one rank under way; one more is dropped
};

}  // namespace troupe::actors
