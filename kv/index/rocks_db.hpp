// The database on a directory: RocksDB, tuned so that a foreground write does not wait for compaction.
#pragma once

#include <memory>
#include <string>

#include "kv/index/db.hpp"
#include "kv/types.hpp"

namespace troupe::kv {

/// Whether writes go through a log. `off`: a crash of the process takes everything since the last flush of the
/// memtables (each batch still whole, in order); only for a store that can be rebuilt. `sync_write::yes` then flushes.
enum class wal_mode : bool { off = false, on = true };

/// How the database is opened. Memory: block_cache_bytes (with the tables' index and filter blocks, about 1.3 bytes per
/// record of each family) + write_buffer_bytes + about 20 MB.
struct rocks_options {
  std::string path;  // directory; made if missing (its parent must exist)
  // Nothing is written, not even a log of messages: what the log holds is applied in memory. Every write is
  // unavailable. Nobody may have the directory open for writing meanwhile.
  bool read_only = false;
  uint64_t block_cache_bytes = uint64_t{256} << 20;
  uint64_t write_buffer_bytes = uint64_t{256} << 20;  // all memtables together; flushing begins at 7/8 of it
  wal_mode wal = wal_mode::on;
  int background_jobs = 2;                                // flushes and compactions at once
  uint64_t compaction_bytes_per_s = uint64_t{128} << 20;  // that flush and compaction write; 0: no limit
  std::shared_ptr<const sweeper> sweep;                   // may be null
  const unix_clock* clock = nullptr;                      // for the sweep; needed with one; outlives the database
  // RocksDB as Debian builds it ends the process when its log or manifest cannot be written, so it must not meet a full
  // disk. With less free on the file system, opening or writing is `exhausted`; reading goes on.
  uint64_t least_room_to_open = 2u << 20;   // a log, a manifest, a flush of what the log holds
  uint64_t least_room_to_write = 1u << 20;  // a batch, and the database's own files of the moment
};

/// Opens it. Errors: unavailable (another process, or this one, has the directory open), corrupt (with what to do),
/// unsupported (written by a newer version), exhausted (no room), io, invalid_argument (an option).
result<std::unique_ptr<db>> open_rocks_db(const rocks_options& options);

}  // namespace troupe::kv
