// A store in one directory of this machine, opened by one process at a time.
//
//   DIR/layout.json    version, code, targets, hash scheme: what must not change; checked at every open
//   DIR/lock           held while a process has the store open
//   DIR/index/         RocksDB: index and the targets' shard records; can be deleted, it is rebuilt from the shards
//   DIR/target-0001/   chunk files of target 1; may be a mount point of its own disk, or a link to one
#pragma once

#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/hash/block_hash.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/local_store.hpp"

namespace troupe::kv {

/// What a store is; written once.
struct store_layout {
  uint32_t data = 2, parity = 1;  // k, m
  uint32_t targets = 3;           // at least k + m
  hash_scheme scheme;
  uint64_t chunk_bytes = 64ull << 20;
  uint64_t capacity_bytes = 64ull << 30;  // of each target, at most; less where the file system has less
};

/// What a caller expects of the store; what is not set is taken from its layout, and what is must agree with it.
struct store_expectation {
  std::optional<uint32_t> data, parity, targets;
  std::optional<hash_scheme> scheme;
  std::optional<uint32_t> block_tokens;                // instead of `scheme`: parts of it
  std::optional<std::array<uint8_t, 32>> fingerprint;  //
  std::optional<uint64_t> chunk_bytes, capacity_bytes;
};

/// How to open.
struct directory_options {
  std::string dir;
  store_expectation expect;
  bool create = false;  // make a store where there is none, from `expect` and the defaults of store_layout
  std::optional<uint64_t> chunk_bytes, capacity_bytes;  // for a new store, where `expect` has none
  // Up to m targets whose folder is gone get a new, empty one (scrub then fills it). More than m are absent: their
  // disks may just not be mounted.
  bool remake_missing = false;
  bool give_up_missing = false;   // with remake_missing: also more than m; what they held is gone then
  std::vector<uint32_t> without;  // targets to be treated as absent (benchmarks, tests)
  durability durable = durability::process;
  size_t io_threads = 16;
  nanoseconds hedge_after{0};
  uint64_t window = 64ull << 20;
  int64_t agent_ttl_s = 3 * 86'400, chatbot_ttl_s = 7 * 86'400, step_s = 3'600;
  double high = 0.90, low = 0.85;
  nanoseconds maintain_every = std::chrono::seconds(30);  // expired space back, eviction; 0: only when asked
};

/// An open store. The calls below block, may come from any thread, and must have returned before the destructor; what
/// they start runs on the store's own executor and I/O threads.
class directory_store {
 public:
  /// The layout of the store there or, with `create`, the one that `open` would make; nothing is made or changed.
  /// Errors: those of open that follow from the options and the layout.
  static result<store_layout> plan(const directory_options& options);
  /// What is refused leaves nothing behind. Errors: not_found (no store there and not to be made: says how),
  /// unavailable (another process has it open), invalid_argument (the expectation contradicts the layout: both values
  /// are named; or the options make no sense), unsupported (a layout of a newer version), corrupt (the layout is not
  /// one), io.
  static result<std::unique_ptr<directory_store>> open(const directory_options& options);
  /// Waits for what is under way, then closes; a store that was not closed (SIGKILL) opens as well.
  ~directory_store();

  const store_layout& layout() const { return layout_; }
  const std::string& dir() const { return options_.dir; }
  /// What was found at open, for people.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Targets that are not there.
  const std::vector<target_id>& absent() const { return absent_; }
  /// Whether the index had been lost and was rebuilt by this open; what that found.
  const std::optional<scrub_report>& rebuilt() const { return rebuilt_; }

  result<put_chain_reply> put(put_chain_request request);
  result<get_chain_reply> get(get_chain_request request);
  result<uint64_t> match(std::vector<block_hash> chain);
  result<scrub_report> scrub(scrub_options options);
  result<reclaim_report> maintain();
  /// Sum over the targets that are there.
  shard_usage usage();
  index_stats stats();
  /// Everything the index knows, in pages; `each` returns false to end.
  result<void> each_extent(const std::function<bool(const index_change&)>& each);
  client_stats counters();
  /// True bytes of each block of the chain up to the first that is not there.
  result<std::vector<uint32_t>> lengths(const std::vector<block_hash>& chain);
  /// Where all data shards of all extents lie, in the order of extents; for raw reads beside the store's.
  struct shard_place {
    disk* device = nullptr;
    shard_footer footer;
  };
  result<std::vector<shard_place>> data_shards();
  /// How the first target that is there does I/O, for people.
  std::string disk_name() const { return disks_.empty() ? "no disk" : disks_.front()->name(); }

  /// Runs `call` on the store's executor and waits for its answer.
  template <class T>
  result<T> wait(std::function<void(local_store&, reply<T>)> call) {
    auto promise = std::make_shared<std::promise<result<T>>>();
    auto future = promise->get_future();
    home_->post([this, promise, call = std::move(call)] {
      call(*store_, [promise](result<T> r) { promise->set_value(std::move(r)); });
    });
    return future.get();
  }

 private:
  directory_store() = default;
  result<void> open_parts();
  result<void> rebuild_if_lost();

  directory_options options_;
  store_layout layout_;
  std::vector<std::string> notes_;
  std::vector<target_id> absent_;
  std::optional<scrub_report> rebuilt_;
  int lock_ = -1;
  std::unique_ptr<db> database_;
  std::vector<std::unique_ptr<disk>> disks_;
  std::map<target_id, disk*> disk_of_;
  std::unique_ptr<thread_executor> home_;
  std::unique_ptr<io_pool> pool_;
  std::unique_ptr<local_store> store_;
};

/// Text of a layout file and back. Errors: corrupt, unsupported.
std::string print_layout(const store_layout& l);
result<store_layout> parse_layout(const std::string& text, const std::string& file);

}  // namespace troupe::kv
