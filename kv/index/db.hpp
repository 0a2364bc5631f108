// The ordered key-value database below the index and the storage targets: named column families, atomic batches, scans.
// Two implementations: rocks_db (RocksDB on a directory) and memory_db (the twin for tests and simulation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::kv {

/// Column families of one process. Their names and numbers are on disk: append only, never renumber.
/// block, extent, expiry belong to the index owner; shard and meta to the storage target.
enum class family : uint8_t { block = 0, extent = 1, expiry = 2, shard = 3, meta = 4 };
inline constexpr size_t family_count = 5;

/// Name of `f` in the database's directory and in messages, e.g. "block".
const char* to_string(family f);

/// Whether a write is safe from power loss before it returns. `no` is still safe from the death of this process.
enum class sync_write : bool { no = false, yes = true };

/// Changes that become visible, and survive a crash, all or none. A later operation on a key wins over an earlier one.
/// Keys and values are copied into one buffer. Not thread safe.
class write_batch {
 public:
  /// One operation; `value` is empty for an erase. The views live as long as the batch is not changed.
  struct op {
    family in;
    bool erase;
    std::string_view key, value;
  };
  void put(family f, std::string_view key, std::string_view value);
  void erase(family f, std::string_view key);
  void clear();
  size_t size() const { return ops_.size(); }
  bool empty() const { return ops_.empty(); }
  /// Bytes of keys and values.
  size_t bytes() const { return data_.size(); }
  op at(size_t i) const;

 private:
  struct entry {
    family in;
    bool erase;
    uint32_t key_size, value_size;
    size_t offset;
  };
  std::string data_;
  std::vector<entry> ops_;
};

/// A walk in key order (bytes compared as unsigned). Owned by one thread; must not outlive its database. It sees every
/// key that exists during the whole walk; keys that are written or erased meanwhile may or may not be seen, each key at
/// most once and never half written.
class cursor {
 public:
  virtual ~cursor() = default;
  /// False at the end and after an error.
  virtual bool valid() const = 0;
  /// Only while valid(); the views live until the next call of next().
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual void next() = 0;
  /// Why the walk ended early (io, corrupt), or nothing wrong.
  virtual result<void> status() const = 0;
};

/// Numbers about the database; all are estimates except the counters.
struct db_stats {
  uint64_t disk_bytes = 0;      // files of the database
  uint64_t memtable_bytes = 0;  // not yet flushed, in memory
  uint64_t cache_bytes = 0;     // block cache, with index and filter blocks
  uint64_t table_bytes = 0;     // memory of open files outside of the cache
  uint64_t stall_micros = 0;    // writers held back by the database since it was opened
  uint64_t swept = 0;           // records that the sweep dropped since it was opened
};

/// The database. Every call may be made from any thread at any time; calls block on disk I/O, so they belong on an I/O
/// pool, not into an actor. Errors: io (the operating system refused; after a failed write the database refuses all
/// further writes until it is reopened), exhausted (no room on the file system: nothing of this write was done, a later
/// one may succeed), corrupt (stored bytes do not hold; the message says what to do).
class db {
 public:
  virtual ~db() = default;
  /// The value of `key` into `value`; false: there is none (`value` is then unspecified).
  virtual result<bool> get(family f, std::string_view key, std::string& value) const = 0;
  /// The same for many keys; `values` gets one entry per key. Quicker than single gets from about four keys on.
  virtual result<void> multi_get(family f, std::span<const std::string_view> keys,
                                 std::vector<std::optional<std::string>>& values) const = 0;
  /// Applies the batch. With `sync_write::yes` it and every write before it is safe from power loss on return. After
  /// power loss the database holds a prefix of the batches in the order in which they were applied, each whole.
  virtual result<void> write(const write_batch& batch, sync_write sync) = 0;
  /// Makes everything written so far safe from power loss.
  virtual result<void> sync() = 0;
  /// From the first key that is not less than `from`. A scan of many records does not displace the cache.
  virtual result<std::unique_ptr<cursor>> scan(family f, std::string_view from) const = 0;
  /// Removes every record of a family; atomic, and safe from power loss on return.
  virtual result<void> clear(family f) = 0;
  /// Rewrites a family now, so that erased and swept records give their space back. Minutes for large ones; reads and
  /// writes go on meanwhile.
  virtual result<void> compact(family f) = 0;
  virtual db_stats stats() const = 0;
};

/// Says which records nobody needs any more; asked while a family is rewritten in the background. It may drop a record
/// only if every reader already takes it for missing, because it is gone at no stated time. Called from the database's
/// own threads, several at once.
class sweeper {
 public:
  virtual ~sweeper() = default;
  /// True: drop. `now_s` is one instant (unix_clock) per rewrite. `reader` answers `get` only.
  virtual bool drop(family f, std::string_view key, std::string_view value, int64_t now_s, const db& reader) const = 0;
};

}  // namespace troupe::kv
