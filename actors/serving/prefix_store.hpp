// What serving needs of the block store: which blocks of a chain are there, blocks into memory, blocks out of memory.
// The runtime gives it a client of the cluster's store; tests hand in a stand-in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/hash/block_hash.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::actors {

/// Thread rules: any thread may call, no call blocks. Every call is answered exactly once, on any thread, also when the
/// store goes away (unavailable). `keep` is held for as long as the memory of the spans may be touched; by the answer
/// at the latest nothing touches it any more.
class prefix_store {
 public:
  virtual ~prefix_store() = default;
  /// Answer: number of blocks of the chain that are there, from block 0 on. Extends no life.
  virtual void match(std::vector<kv::block_hash> chain, std::function<void(result<uint64_t>)> done) = 0;
  /// Reads as many blocks as come whole and checked within `deadline`, from block 0 on. into.size() <= chain.size().
  /// Answer: their number, > 0; the memory of later ones holds nothing of use.
  virtual void read(std::vector<kv::block_hash> chain, std::vector<std::span<std::byte>> into,
                    kv::traffic_class traffic, nanoseconds deadline, std::shared_ptr<const void> keep,
                    std::function<void(result<uint64_t>)> done) = 0;
  /// Stores blocks [first, first + blocks.size()) of the chain. Answer: how many of them were not there before.
  virtual void write(std::vector<kv::block_hash> chain, uint64_t first, std::vector<std::span<const std::byte>> blocks,
                     kv::traffic_class traffic, std::shared_ptr<const void> keep,
                     std::function<void(result<uint64_t>)> done) = 0;
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
