// A storage node's disks and index in a simulation: the block store's own code over memory twins, which outlive the
// node's processes, with blocking work on the agenda.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/storage/storage_host.hpp"
#include "kv/device/memory_disk.hpp"
#include "kv/index/memory_db.hpp"
#include "runtime/config/config.hpp"
#include "runtime/sim/agenda.hpp"
#include "runtime/sim/plane.hpp"

namespace troupe::sim {

/// Wall time of one node: virtual time from a fixed start, and an offset that faults move.
class node_clock final : public kv::unix_clock {
 public:
  explicit node_clock(const agenda& a) : agenda_(a) {}
  int64_t now() const override {
    return start_s + std::chrono::duration_cast<std::chrono::seconds>(agenda_.now() + offset).count();
  }
  nanoseconds offset{0};

 private:
  static constexpr int64_t start_s = 1'800'000'000;
  const agenda& agenda_;
};

/// Blocking work in virtual time: `lanes` calls at once, each as long as its latency and what it moved.
class agenda_worker final : public kv::worker {
 public:
  agenda_worker(agenda& a, uint32_t lanes, nanoseconds latency, double bytes_per_ns)
      : agenda_(a), free_(lanes, nanoseconds{0}), latency_(latency), bytes_per_ns_(bytes_per_ns) {}
  ~agenda_worker() override { *alive_ = false; }
  bool submit(kv::task t) override;
  /// The task that runs now has moved bytes: its lane is busy for so long.
  void moved(uint64_t bytes) { moved_ += bytes; }
  /// Everything takes `factor` times as long.
  void slow(double factor) { factor_ = factor; }
  /// Nothing begins until it goes on.
  void hold(bool on);

 private:
  void run(size_t lane, kv::task t);
  agenda& agenda_;
  std::vector<nanoseconds> free_;  // when each lane is
  const nanoseconds latency_;
  const double bytes_per_ns_;
  double factor_ = 1;
  uint64_t moved_ = 0;
  bool held_ = false;
  std::vector<kv::task> waiting_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// What a storage node owns over all its lives.
struct disk_cabinet {
  std::vector<std::unique_ptr<kv::memory_disk>> disks;
  std::unique_ptr<kv::memory_db> records;
  uint32_t lives = 0;

  /// What is wrong with all disks of the node.
  struct {
    bool full = false;           // no room for new chunk files
    uint32_t lost_permille = 0;  // of writes: acknowledged and dropped
    uint32_t torn_permille = 0;  // of writes: cut short, and failed
    double slow = 1;             // every call takes so many times as long
  } fault;
  uint64_t refused = 0, lost = 0, torn = 0, slowed = 0;  // calls that had it, since the start
  rng draw{1};

  /// After the end of the process: what was not flushed is gone.
  void lose_power(rng& draw);
};

/// What a storage host is made of. What is pointed to outlives it.
struct disk_host_options {
  agenda* events = nullptr;
  plane* wires = nullptr;
  const kv::unix_clock* wall = nullptr;
  disk_cabinet* cabinet = nullptr;
  size_t node = 0;
  uint32_t seat = 0;
  config::storage_section storage;
  kv::hash_scheme scheme;
  nanoseconds latency{std::chrono::microseconds(80)};
  double bytes_per_ns = 6;
  double scale = 1;  // bytes that a true byte stands for
  uint64_t seed = 1;
};

/// See actors::storage_host. Everything happens on the agenda.
class disk_host final : public actors::storage_host {
 public:
  explicit disk_host(disk_host_options o) : options_(std::move(o)) {}
  ~disk_host() override { stop(); }
  void open(std::function<void(result<actors::opened_storage>)> done) override;
  void stop() override { *stopped_ = true; }
  /// Its process stands still, or goes on.
  void freeze(bool on);
  void slow(double factor);

 private:
  struct life;
  result<actors::opened_storage> open_now();
  const disk_host_options options_;
  std::shared_ptr<agenda_worker> worker_;
  const std::shared_ptr<bool> stopped_ = std::make_shared<bool>(false);
};

}  // namespace troupe::sim
