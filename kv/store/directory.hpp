// A store in one directory of this machine, opened by one process at a time.
//
//   DIR/layout.json    version, code, targets, hash scheme: checked at every open; directory_members.hpp changes it
//   DIR/lock           held while a process has the store open
//   DIR/index/         RocksDB: index and the targets' shard records; can be deleted, it is rebuilt from the shards
//   DIR/target-0001/   chunk files of target 1; may be a mount point of its own disk, or a link to one. `generation`
//                      beside them says how far the store had come, so that an older index is not taken for this one
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
#include "kv/store/directory_files.hpp"
#include "kv/store/executor.hpp"
#include "kv/store/generations.hpp"
#include "kv/store/layout.hpp"
#include "kv/store/local_store.hpp"

namespace troupe::kv {

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
  std::optional<uint32_t> targets;                      //
  // Nothing is written at all; others that only read may have the store open too. Puts are refused, reads extend no
  // life. For full disks and read-only file systems, and for looking without changing.
  bool read_only = false;
  // Up to m targets whose folder is gone get a new, empty one (scrub then fills it). More than m are absent: their
  // disks may just not be mounted.
  bool remake_missing = false;
  bool give_up_missing = false;   // with remake_missing: also more than m; what they held is gone then
  std::vector<uint32_t> without;  // targets to be treated as absent (benchmarks, tests)
  std::vector<uint32_t> renew;    // targets whose folder is taken as it is, whatever the index knows of another one
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
  /// one), stale (read only, and the index or a target's records must be rebuilt first), io.
  static result<std::unique_ptr<directory_store>> open(const directory_options& options);
  /// Waits for what is under way, then closes; a store that was not closed (SIGKILL) opens as well.
  ~directory_store();

  const store_layout& layout() const { return layout_; }
  const std::string& dir() const { return options_.dir; }
  /// What was found at open, for people.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Targets that are not there.
  const std::vector<target_id>& absent() const { return absent_; }
  bool read_only() const { return options_.read_only; }
  /// Whether the index had been lost and was rebuilt by this open; what that found.
  const std::optional<scrub_report>& rebuilt() const { return rebuilt_; }

  result<put_chain_reply> put(put_chain_request request);
  result<get_chain_reply> get(get_chain_request request);
  result<uint64_t> match(std::vector<block_hash> chain);
  /// While the index is not known to be complete (it was lost, and targets that may hold more of it were absent),
  /// `restore` is set.
  result<scrub_report> scrub(scrub_options options);
  result<reclaim_report> maintain();
  /// Reads what the chunk files hold outside of all records: shards that should not be there. With `repair` the records
  /// of such targets are made again, and the index is completed from them by a scrub that restores. Nothing else may
  /// use the store meanwhile: open it with maintain_every 0.
  struct unrecorded_report {
    uint64_t shards = 0;
    std::vector<std::string> notes;  // the first 100, in words
    std::optional<scrub_report> repaired;
  };
  result<unrecorded_report> find_unrecorded(bool repair, const scrub_options& how);
  /// Sum over the targets that are there.
  shard_usage usage();
  /// Of one target; nothing when it is absent.
  std::optional<shard_usage> usage(target_id t);
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
  /// How the first target that is there, or a given one, does I/O, for people.
  std::string disk_name() const { return disks_.empty() ? "no disk" : disks_.front()->name(); }
  std::string disk_name(target_id t) const { return disk_of_.contains(t) ? disk_of_.at(t)->name() : "no disk"; }
  /// Drops what the database knows of a target that is no member any more (directory_members.hpp).
  result<void> forget(target_id t);

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
  // What the database says of its index. Complete: every shard without a record is an orphan. Partial: it was rebuilt
  // while `without` were absent or blocks could not be restored; shards without a record may yet be needed.
  struct index_state {
    bool known = false;  // false: lost, to be rebuilt
    bool partial = false;
    std::vector<target_id> without;
  };

  directory_store() = default;
  result<void> open_database();
  result<void> open_parts();
  result<void> rebuild_if_lost();
  result<index_state> read_state() const;
  result<void> write_state(const index_state& s);
  result<void> settle_state(const scrub_report& r);
  void advance_generation();
  std::vector<target_folder> present() const;
  void keep_advancing(nanoseconds every);
  void stop_advancing();  // on the executor

  struct pulse;  // outlives the store in the executor's timer

  directory_options options_;
  store_layout layout_;
  generations marks_;
  index_state state_;
  std::vector<std::string> notes_;
  std::vector<target_id> absent_;
  std::optional<scrub_report> rebuilt_;
  detail::directory_lock lock_;
  std::unique_ptr<db> database_;
  std::vector<std::unique_ptr<disk>> disks_;
  std::map<target_id, disk*> disk_of_;
  std::unique_ptr<thread_executor> home_;
  std::unique_ptr<io_pool> pool_;
  std::unique_ptr<local_store> store_;
  std::shared_ptr<pulse> pulse_;
};

}  // namespace troupe::kv
