// The memory twin of the database: for tests, the simulator and stores that need not survive. Deterministic; can lose
// power, rot and refuse to write.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>

#include "kv/index/db.hpp"
#include "kv/types.hpp"

namespace troupe::kv {

/// How the twin behaves.
struct memory_db_options {
  std::shared_ptr<const sweeper> sweep;  // may be null
  const unix_clock* clock = nullptr;     // for the sweep; needed with one
  size_t unsynced_max = 65'536;          // batches that power loss can take; older ones count as written back
};

/// Database in memory. Thread safe like every db; the fault calls too.
class memory_db final : public db {
 public:
  explicit memory_db(memory_db_options options = {});
  ~memory_db() override;

  result<bool> get(family f, std::string_view key, std::string& value) const override;
  result<void> multi_get(family f, std::span<const std::string_view> keys,
                         std::vector<std::optional<std::string>>& values) const override;
  result<void> write(const write_batch& batch, sync_write sync) override;
  result<void> sync() override;
  result<std::unique_ptr<cursor>> scan(family f, std::string_view from) const override;
  result<void> clear(family f) override;
  /// Applies the sweep to the family.
  result<void> compact(family f) override;
  db_stats stats() const override;

  /// Batches that power loss would put at risk.
  size_t unsynced() const;
  /// Power fails: of the unsynced batches the first `keep` survive, the others are gone, each whole.
  void power_loss(size_t keep);
  /// From now on writes fail with this error, nothing of them applied; no value: they work again.
  void fail_writes(std::optional<error> e);
  /// XORs one byte of a stored value, as rot would (not part of any batch). False: no such key or the value is shorter.
  bool flip(family f, std::string_view key, size_t byte, uint8_t mask);
  /// Keys of a family, in order.
  std::vector<std::string> keys(family f) const;

 private:
  using map = std::map<std::string, std::string, std::less<>>;
  struct undo_op {
    family in;
    std::string key;
    std::optional<std::string> before;
  };
  class walk;

  const memory_db_options options_;
  mutable std::shared_mutex mutex_;
  std::array<map, family_count> data_;         // protected by mutex_
  std::deque<std::vector<undo_op>> unsynced_;  // protected by mutex_; oldest first
  std::optional<error> failure_;               // protected by mutex_
  uint64_t swept_ = 0;                         // protected by mutex_
};

}  // namespace troupe::kv
