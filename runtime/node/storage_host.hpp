// A storage node's disks and index in this process.
//
//   PATH/node-0000/node.json   what this node is: seat, disks, code, hash scheme; checked at every open
//   PATH/node-0000/lock        held while a process has the node open
//   PATH/node-0000/index/      RocksDB: its part of the index, and records of its shards
//   PATH/node-0000/disk-01/    chunk files of one target; may be a mount point of its own disk, or a link to one.
//                              `generation` in it tells an older copy of the index, or of the disk
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/storage/storage_host.hpp"
#include "kv/device/disk.hpp"
#include "kv/index/db.hpp"
#include "kv/store/generations.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// See actors::storage_host for the thread rules. Opens and closes on a thread of its own; destroying it waits until
/// the actors have let go and all is closed: not on an actor's thread. A folder of a disk that is gone, or empty where
/// shards are known, makes its target absent; a file `accept-empty` in an empty folder says that it stands for the lost
/// one (scrub then fills it). An index that is an older copy is moved away and made anew, records of shards from the
/// disks at once, the rest by scrub, like one that is gone; the records of a disk that is an older copy are made anew
/// from it. Errors of open: unavailable (another process has the node open), invalid_argument and
/// unsupported (what is there is another store: names both), corrupt, io.
class storage_host final : public actors::storage_host {
 public:
  storage_host(const config::settings& settings, uint32_t seat);
  ~storage_host() override;
  void open(std::function<void(result<actors::opened_storage>)> done) override;
  void stop() override;
  /// True once a stop is through: destroying the host does not block any more.
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  // What opened_storage::keep refers to, so that it may outlive the host.
  struct users {
    std::mutex mutex;
    std::condition_variable changed;
    size_t count = 0;
    bool stop = false;
    std::function<void(result<actors::opened_storage>)> done;
  };

  void run();
  std::shared_ptr<void> token();
  result<actors::opened_storage> open_now();
  result<void> open_disks(actors::opened_storage& out);
  result<void> mark_index();
  result<void> open_database(actors::opened_storage& out);
  void step();
  void close_now();

  const config::settings settings_;
  const uint32_t seat_;
  const std::string dir_;
  const std::shared_ptr<users> users_ = std::make_shared<users>();
  std::atomic<bool> stopped_{false};

  // Of the thread.
  int lock_ = -1;
  std::unique_ptr<kv::db> database_;
  kv::generations marks_;
  std::vector<kv::target_folder> present_;
  std::vector<std::unique_ptr<kv::disk>> disks_;
  std::vector<std::unique_ptr<kv::shard_store>> stores_;
  std::unique_ptr<kv::block_index> index_;
  std::unique_ptr<kv::io_pool> pool_;
  std::shared_ptr<transport::transport> plane_;
  std::thread thread_;
};

}  // namespace troupe::node
