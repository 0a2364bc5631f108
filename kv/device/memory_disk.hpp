// The memory twin of a disk: for tests, the simulator and stores that need not survive. Deterministic; can tear, lose,
// reorder and rot writes, fill up, go away and lose power.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/device/disk.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {

/// Probabilities per write, drawn from the disk's seed. The write reports success in each case.
struct memory_disk_faults {
  double lost = 0;    // nothing of it is stored
  double torn = 0;    // only the first sectors are stored, how many is drawn
  double rotten = 0;  // one drawn bit of it is stored wrong
};

/// How the twin behaves.
struct memory_disk_options {
  uint64_t capacity_bytes = uint64_t{1} << 40;  // of all chunk files together; `create` beyond it fails with exhausted
  uint64_t seed = 1;
  memory_disk_faults faults;
  crash_hook* crash = nullptr;  // told of "disk.torn" when a write is cut by tear_next
  std::string name = "memory";
};

/// A disk in memory with sectors of 4 KiB; sectors that were never written take no memory. Thread safe like every disk;
/// the fault calls too.
class memory_disk final : public disk {
 public:
  explicit memory_disk(memory_disk_options options = {});
  ~memory_disk() override;

  result<std::vector<uint32_t>> chunks() override;
  result<void> create(uint32_t chunk, uint64_t bytes) override;
  result<uint64_t> size(uint32_t chunk) override;
  result<void> write(uint32_t chunk, uint64_t offset, std::span<const std::byte> bytes) override;
  result<void> read(uint32_t chunk, uint64_t offset, std::span<std::byte> out) override;
  result<void> sync(uint32_t chunk) override;
  result<void> remove(uint32_t chunk) override;
  std::string name() const override { return options_.name; }

  /// The same contents, unsynced sectors included, with no fault switched on: what a new process finds when this one
  /// dies now. Call `power_loss` on it for what is found after a power cut.
  std::unique_ptr<memory_disk> copy() const;

  /// Power fails: of every sector written since the last sync of its chunk, one of its contents since then (the one
  /// before the first write included) survives, drawn from `draw`. Up to four are remembered for each sector: the
  /// synced one and the three latest.
  void power_loss(rng& draw);
  /// Sectors that power loss would put at risk.
  uint64_t unsynced() const;

  /// Every call fails with io until it is switched off: the device is gone.
  void set_gone(bool gone);
  /// `create` fails with exhausted until it is switched off.
  void set_full(bool full);
  /// Writes fail with this error, nothing of them stored; no value: they work again.
  void fail_writes(std::optional<error> e);
  /// The write after the next `skip` ones stores its first `sectors` sectors only, then passes crash point "disk.torn";
  /// if that returns, the write fails with io.
  void tear_next(uint64_t skip, uint64_t sectors);
  /// The write after the next `skip` ones reports success and stores nothing.
  void lose_next(uint64_t skip);
  /// XORs one byte, as rot would. False: no such chunk or offset.
  bool flip(uint32_t chunk, uint64_t offset, uint8_t mask);
  /// Writes that were asked for since the start.
  uint64_t writes() const;

 private:
  static constexpr size_t sector_bytes = 4096;
  static constexpr size_t versions_max = 4;
  using sector = std::array<std::byte, sector_bytes>;
  using sector_ptr = std::shared_ptr<const sector>;  // null: zeros
  struct file {
    uint64_t bytes = 0;
    std::vector<sector_ptr> live;
    std::map<uint64_t, std::deque<sector_ptr>> before;  // of unsynced sectors, oldest (synced) first
  };

  result<file*> find(uint32_t chunk, uint64_t offset, size_t bytes, const void* address);
  void store(file& f, uint64_t sector_number, const std::byte* bytes);

  const memory_disk_options options_;
  mutable std::shared_mutex mutex_;
  std::map<uint32_t, file> files_;  // these are protected by mutex_
  rng draw_;
  bool gone_ = false, full_ = false;
  std::optional<error> write_error_;
  uint64_t writes_ = 0;
  struct planned {
    uint64_t at;                      // number of the write
    std::optional<uint64_t> sectors;  // torn after these; none: lost
  };
  std::vector<planned> planned_;
};

}  // namespace troupe::kv
