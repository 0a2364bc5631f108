// The store's client: puts, matches and reads chains of blocks on targets and owners. Runs on one executor; every call
// returns at once and answers once.
//
//   put    ancestors' expiries raised -> lookup of what is missing -> per slot one extent for each row of missing
//   blocks
//          -> shards on k + m targets -> index on the primary owner, then its replicas, in the order of the chain
//          -> answer. A crash in between leaves shards without an index record, which scrub removes.
//   get    lookup with lease -> shards straight into the caller's memory, decoded or hedged where needed -> checksums
//          -> lease still good? -> answer; then the expiries are raised.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/hash/block_hash.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/extent_read.hpp"
#include "kv/store/extent_write.hpp"
#include "kv/store/gate.hpp"
#include "kv/store/members.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {

/// What a client is told once.
struct client_options {
  uint32_t data = 10, parity = 2;       // k, m of new extents
  uint64_t scheme = 0;                  // hash_scheme::id() of every block
  uint64_t read_window = 64ull << 20;   // bytes of block data being read at once, over all calls
  uint64_t write_window = 64ull << 20;  // the same of writes, in bytes of shards
  size_t max_calls = 1024;              // calls under way; one more is exhausted
  nanoseconds hedge_after{0};           // 0: never
  double hedge_share = 0.05;            // of the bytes read so far, that hedges may read
  nanoseconds lease = std::chrono::seconds(10);
  int64_t agent_ttl_s = 3 * 86'400, chatbot_ttl_s = 7 * 86'400, step_s = 3'600;  // for the footers; the index decides
  memory_source memory;         // of shards being written: what peers may pull from; null: the heap
  uint64_t seed = 0;            // draws the writer's half of extent ids; must differ in every life
  crash_hook* crash = nullptr;  // tests only
};

/// Blocks of a chain to be stored.
struct put_chain_request {
  std::vector<block_hash> chain;                   // from block 0 on
  uint64_t first = 0;                              // position of blocks[0]; first + blocks.size() <= chain.size()
  std::vector<std::span<const std::byte>> blocks;  // true bytes of each; must live until the answer
  traffic_class traffic = traffic_class::agent;
};

/// What a put did.
struct put_chain_reply {
  size_t stored = 0;         // blocks that this call made visible
  size_t present = 0;        // blocks that were there already, or that another writer won
  size_t extents = 0;        // written and recorded
  uint64_t block_bytes = 0;  // of the stored blocks
};

/// Blocks of a chain to be read.
struct get_chain_request {
  std::vector<block_hash> chain;           // from block 0 on
  uint64_t first = 0;                      // position of the first block wanted
  std::vector<std::span<std::byte>> into;  // per block, as long as its true bytes; until the answer
  traffic_class traffic = traffic_class::agent;
  nanoseconds deadline{0};  // ends the read with what has come by then; 0: none
};

/// What a get brought.
struct get_chain_reply {
  size_t blocks = 0;             // whole and checked, from `first` on; the memory of later ones holds nothing of use
  std::optional<error> stopped;  // why not all: not_found (a hole), unavailable (more than m shards gone), corrupt,
                                 // stale (the lease ran out), timeout, invalid_argument (a buffer of another size)
  uint32_t extents = 0, decoded = 0, hedged = 0;  // read; shards that came through the code; reads with a hedge
  std::vector<extent_id> damaged;                 // extents with shards that failed; worth a repair
};

/// What is there of a chain.
struct chain_match {
  uint64_t blocks = 0;              // from block 0 on
  std::vector<uint64_t> snapshots;  // behind so many of these blocks there is a window snapshot; newest first, those of
                                    // each owner's three newest
};

/// Counters since the start.
struct client_stats {
  uint64_t puts = 0, gets = 0, matches = 0;
  uint64_t bytes_written = 0, bytes_read = 0;  // of blocks
  uint64_t decoded = 0, hedges = 0, hedge_bytes = 0, stale = 0;
};

/// See the top of the file. Everything on the executor; it must outlive the client, and the client its calls: wait for
/// `idle` before destroying it.
class client {
 public:
  /// `compute` copies and encodes; `wall` dates extents.
  client(const client_options& options, members who, executor& home, worker& compute, const unix_clock& wall);

  /// Answer: everything asked for is visible (by this call or another one) on all live owners. Errors: invalid_argument
  /// (sizes, hashes that do not follow one another), exhausted (a disk is full, or too many calls), unavailable; blocks
  /// before the first that could not be written may be visible then.
  void put(put_chain_request request, reply<put_chain_reply> done);

  /// Number of blocks of the chain, from block 0 on, that are there. Extends nothing. One question to each owner.
  void match(std::vector<block_hash> chain, reply<uint64_t> done);
  /// The same, and what snapshots the owners keep of these blocks.
  void find(std::vector<block_hash> chain, reply<chain_match> done);

  /// Reads as many blocks as there are. An error only where nothing could be tried (invalid_argument, exhausted).
  void get(get_chain_request request, reply<get_chain_reply> done);

  /// Where blocks are, without reading or extending: per block nothing or the extent.
  void lookup(std::vector<block_hash> chain, uint64_t first, reply<std::vector<std::optional<block_place>>> done);

  /// True bytes of each block of the chain, from block 0 on, up to the first that is not there.
  void lengths(std::vector<block_hash> chain, reply<std::vector<uint32_t>> done);

  /// Calls `done` once nothing is under way any more, background work after answers included.
  void idle(std::function<void()> done);

  /// New members for what starts from now on; targets of the old ones that calls under way use must stay alive.
  void set_members(members who);
  const members& who() const { return *who_; }
  const client_options& options() const { return options_; }
  const client_stats& stats() const { return stats_; }

 private:
  friend struct put_op;
  friend struct get_op;

  // One per call and per task after it; idle() waits until none is left.
  std::shared_ptr<void> begin();
  // Starts put_op or get_op.
  template <class Op, class Request, class Done>
  void launch(Request request, Done done) {
    auto op = std::make_shared<Op>();
    op->self = this;
    op->who = who_;
    op->held = begin();
    op->request = std::move(request);
    op->done = std::move(done);
    op->start();
  }
  void raise(std::shared_ptr<const members> m, std::vector<block_hash> chain, uint64_t end, policies::ttl_touch touch,
             traffic_class traffic, std::function<void(result<void>)> done);
  extent_id next_id() { return {writer_, next_low_++}; }
  bool may_hedge(uint64_t bytes);

  const client_options options_;
  std::shared_ptr<const members> who_;
  executor& home_;
  worker& compute_;
  const unix_clock& wall_;
  extent_memory pool_;
  byte_gate reads_, writes_;
  const uint64_t writer_;
  uint64_t next_low_ = 1;
  size_t open_ = 0;
  std::vector<std::function<void()>> when_idle_;
  client_stats stats_;
};

}  // namespace troupe::kv
