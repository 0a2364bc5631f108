// A whole store in one process: targets, index owners, client and background work over disks and databases that are
// given. The real one is a directory (directory.hpp); tests and the simulator give memory twins.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/device/shard_store.hpp"
#include "kv/index/block_index.hpp"
#include "kv/store/client.hpp"
#include "kv/store/local_owner.hpp"
#include "kv/store/local_target.hpp"
#include "kv/store/reclaim.hpp"
#include "kv/store/scrub.hpp"

namespace troupe::kv {

/// Where one target lives. Without a disk it is absent: nothing is read from it or written to it.
struct local_target_place {
  target_id id;
  disk* device = nullptr;
  db* records = nullptr;  // of its shards; several targets may share one
  uint64_t domain = 0;    // what fails together; 0: on its own
  std::string absent;     // why there is no disk
  bool blank = false;     // the disk may be new and stand for one that was lost
  bool renew = false;     // the disk is taken as it is, see shard_store_options
  bool draining = false;  // gets no new shards
};

/// Settings and places. What is pointed to must outlive the store.
struct local_store_options {
  std::vector<local_target_place> targets;
  std::vector<db*> owners;  // one index owner each
  storage_epoch epoch{1};
  shard_store_options device;  // of every target; `target` and `new_device` are set here
  index_options index;
  client_options client;
  reclaim_options reclaim;
  uint64_t device_seed = 1;  // draws the identities of new devices
};

/// The store. Like the client it lives on the executor; open and the destructor may run on any thread while nothing
/// else uses it, and before the destructor `client().idle` must have come back.
class local_store {
 public:
  /// Opens all devices and indexes (blocking). A target whose device cannot be opened is absent, with a note. Errors:
  /// those of an index, invalid_argument.
  static result<std::unique_ptr<local_store>> open(const local_store_options& options, executor& home, worker& blocking,
                                                   const unix_clock& wall);
  ~local_store();

  client& io() { return *client_; }
  const members& who() const { return client_->who(); }
  /// Messages for people about what was found at open, e.g. repaired chunk headers and absent targets.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Number of targets that are there.
  size_t present() const { return stores_.size(); }
  /// The local part of a target; null if absent. For tests and statistics.
  shard_store* device(target_id id);
  block_index& index(size_t owner) { return *indexes_[owner]; }

  /// Expired extents out, then eviction if a target is above its mark.
  void maintain(reply<reclaim_report> done);
  /// Does that every `every` (> 0) from now on, so that the space of what expires is back after that time at the latest
  /// (leased extents: once their lease has ended). Errors are tried again the next time. Call once.
  void keep_maintained(nanoseconds every);
  /// Ends it; `done` comes when no maintenance is under way any more.
  void stop_maintaining(std::function<void()> done);
  /// See scrub.hpp.
  void scrub(scrub_options options, reply<scrub_report> done);

 private:
  local_store(executor& home, const unix_clock& wall) : home_(home), wall_(wall) {}

  struct upkeep;  // outlives the store in the executor's timer

  executor& home_;
  const unix_clock& wall_;
  reclaim_options reclaim_;
  std::shared_ptr<upkeep> upkeep_;
  std::vector<std::string> notes_;
  std::map<target_id, std::unique_ptr<shard_store>> stores_;
  std::vector<std::unique_ptr<block_index>> indexes_;
  std::vector<std::unique_ptr<target>> targets_;
  std::vector<std::unique_ptr<owner>> owners_;
  std::unique_ptr<client> client_;
};

}  // namespace troupe::kv
