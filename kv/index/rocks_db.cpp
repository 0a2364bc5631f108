#include "kv/index/rocks_db.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/rate_limiter.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <rocksdb/write_buffer_manager.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

namespace rdb = rocksdb;

rdb::Slice slice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view view(const rdb::Slice& s) { return {s.data(), s.size()}; }

error to_error(const rdb::Status& s, const std::string& path) {
  const std::string text = s.ToString();
  if (s.IsCorruption())
    return {errc::corrupt,
            fmt::format("{}: the database is damaged ({}); stop the store and delete the directory: the index "
                        "is rebuilt from the shards at the next start",
                        path, text)};
  if (s.IsIOError() && text.find("lock") != std::string::npos)
    return {errc::unavailable,
            fmt::format("{}: already open ({}); stop the process that uses it, or give another directory", path, text)};
  if (s.IsIOError() || s.IsNoSpace())
    return {errc::io, fmt::format("{}: {}; check the disk (space, permissions), then start again", path, text)};
  if (s.IsInvalidArgument() || s.IsNotSupported()) return {errc::unsupported, fmt::format("{}: {}", path, text)};
  return {errc::internal, fmt::format("{}: {}", path, text)};
}

class rocks final : public db {
 public:
  rocks(const rocks_options& o) : options_(o) {}
  ~rocks() override;
  result<void> open();

  result<bool> get(family f, std::string_view key, std::string& value) const override;
  result<void> multi_get(family f, std::span<const std::string_view> keys,
                         std::vector<std::optional<std::string>>& values) const override;
  result<void> write(const write_batch& batch, sync_write sync) override;
  result<void> sync() override;
  result<std::unique_ptr<cursor>> scan(family f, std::string_view from) const override;
  result<void> clear(family f) override;
  result<void> compact(family f) override;
  db_stats stats() const override;

 private:
  friend class filter;
  friend class walk;
  rdb::ColumnFamilyHandle* handle(family f) const { return handles_[static_cast<size_t>(f)]; }
  tl::unexpected<error> failed(const rdb::Status& s) const { return fail(to_error(s, options_.path)); }
  rdb::DBOptions db_options();
  rdb::ColumnFamilyOptions family_options(family f);
  result<void> flush();
  // Errors: exhausted, with less than `least` free on the file system, unavailable when opened for reading only; `what`
  // is what cannot be done.
  result<void> room_for(uint64_t least, const char* what) const;

  const rocks_options options_;
  std::shared_ptr<rdb::Cache> cache_;
  std::shared_ptr<rdb::Statistics> statistics_;
  std::unique_ptr<rdb::DB> db_;
  std::array<rdb::ColumnFamilyHandle*, family_count> handles_{};
  rdb::ColumnFamilyHandle* default_ = nullptr;
  std::atomic<bool> open_{false};  // handles_ may be used by the sweep
  std::atomic<uint64_t> swept_{0};
};

// One per compaction, with one instant of the injected clock.
class filter final : public rdb::CompactionFilter {
 public:
  filter(rocks& owner, family f, int64_t now) : owner_(owner), family_(f), now_(now) {}
  const char* Name() const override { return "troupe.sweep"; }
  bool IgnoreSnapshots() const override { return true; }
  Decision FilterV2(int, const rdb::Slice& key, ValueType type, const rdb::Slice& value, std::string*,
                    std::string*) const override {
    if (type != ValueType::kValue || !owner_.open_.load(std::memory_order_acquire)) return Decision::kKeep;
    if (!owner_.options_.sweep->drop(family_, view(key), view(value), now_, owner_)) return Decision::kKeep;
    owner_.swept_.fetch_add(1, std::memory_order_relaxed);
    return Decision::kRemove;
  }

 private:
  rocks& owner_;
  const family family_;
  const int64_t now_;
};

class filter_factory final : public rdb::CompactionFilterFactory {
 public:
  filter_factory(rocks& owner, family f, const unix_clock& clock) : owner_(owner), family_(f), clock_(clock) {}
  const char* Name() const override { return "troupe.sweep.factory"; }
  std::unique_ptr<rdb::CompactionFilter> CreateCompactionFilter(const rdb::CompactionFilter::Context&) override {
    return std::make_unique<filter>(owner_, family_, clock_.now());
  }

 private:
  rocks& owner_;
  const family family_;
  const unix_clock& clock_;
};

class walk final : public cursor {
 public:
  walk(const rocks& owner, family f, std::string_view from) : owner_(owner) {
    rdb::ReadOptions o;
    o.fill_cache = false;
    it_.reset(owner.db_->NewIterator(o, owner.handle(f)));
    it_->Seek(slice(from));
  }
  bool valid() const override { return it_->Valid(); }
  std::string_view key() const override { return view(it_->key()); }
  std::string_view value() const override { return view(it_->value()); }
  void next() override { it_->Next(); }
  result<void> status() const override {
    if (const auto s = it_->status(); !s.ok()) return owner_.failed(s);
    return {};
  }

 private:
  const rocks& owner_;
  std::unique_ptr<rdb::Iterator> it_;
};

rdb::DBOptions rocks::db_options() {
  rdb::DBOptions o;
  o.create_if_missing = !options_.read_only;
  o.create_missing_column_families = !options_.read_only;
  o.max_background_jobs = options_.background_jobs;
  o.write_buffer_manager = std::make_shared<rdb::WriteBufferManager>(options_.write_buffer_bytes);
  o.statistics = statistics_;
  // Compaction in small steps that leave the disk to readers. No limit on foreground writes.
  if (options_.compaction_bytes_per_s > 0)
    o.rate_limiter.reset(rdb::NewGenericRateLimiter(static_cast<int64_t>(options_.compaction_bytes_per_s), 10'000));
  o.bytes_per_sync = 1 << 20;      // write back as it goes instead of all at the end of a file ...
  o.wal_bytes_per_sync = 1 << 20;  // ... which would hold up the next sync
  o.max_total_wal_size = uint64_t{512} << 20;
  o.avoid_unnecessary_blocking_io = true;          // files are deleted by background threads
  o.atomic_flush = options_.wal == wal_mode::off;  // without a log the families must reach the disk together
  o.max_open_files = -1;
  o.info_log_level = rdb::WARN_LEVEL;
  o.keep_log_file_num = 2;
  o.max_log_file_size = 4 << 20;
  return o;
}

rdb::ColumnFamilyOptions rocks::family_options(family f) {
  rdb::ColumnFamilyOptions o;
  o.compression = rdb::kNoCompression;  // keys and values are hashes and checksums
  o.level_compaction_dynamic_level_bytes = true;
  o.write_buffer_size = std::min<uint64_t>(uint64_t{64} << 20, options_.write_buffer_bytes / 4);
  o.max_write_buffer_number = 8;  // a slow flush queues memtables instead of stopping writers
  o.target_file_size_base = uint64_t{64} << 20;
  o.max_bytes_for_level_base = uint64_t{256} << 20;
  // Writers are slowed late and gently, and stopped later still: reads of that many files are saved by their filters.
  o.level0_slowdown_writes_trigger = 48;
  o.level0_stop_writes_trigger = 256;
  o.soft_pending_compaction_bytes_limit = 0;
  o.hard_pending_compaction_bytes_limit = 0;
  // A file that is mostly tombstones (after a reclaim) is rewritten soon, not when its turn comes.
  o.table_properties_collector_factories = {rdb::NewCompactOnDeletionCollectorFactory(4096, 2048, 0.5)};
  rdb::BlockBasedTableOptions t;
  t.block_cache = cache_;
  t.cache_index_and_filter_blocks = true;  // so that the cache bounds all memory of tables
  t.cache_index_and_filter_blocks_with_high_priority = true;
  t.pin_l0_filter_and_index_blocks_in_cache = true;
  t.block_size = 4096;
  t.format_version = 5;
  if (f != family::expiry) {  // expiry is only scanned and read by whole keys that are known to be there
    o.memtable_prefix_bloom_size_ratio = 0.05;  // most looks for a new block end in the memtables' filters
    o.memtable_whole_key_filtering = true;
    t.filter_policy.reset(rdb::NewBloomFilterPolicy(10));
    t.data_block_index_type = rdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  }
  o.table_factory.reset(rdb::NewBlockBasedTableFactory(t));
  if (options_.sweep) o.compaction_filter_factory = std::make_shared<filter_factory>(*this, f, *options_.clock);
  return o;
}

result<void> rocks::open() {
  if (!options_.read_only)
    if (auto ok = room_for(options_.least_room_to_open, "be opened"); !ok) return ok;
  cache_ = rdb::NewLRUCache(options_.block_cache_bytes, -1, false, 0.5);
  statistics_ = rdb::CreateDBStatistics();
  statistics_->set_stats_level(rdb::StatsLevel::kExceptDetailedTimers);
  const rdb::DBOptions o = db_options();
  std::vector<std::string> there;
  std::error_code ec;
  if (std::filesystem::exists(options_.path + "/CURRENT", ec)) {
    if (const auto s = rdb::DB::ListColumnFamilies(o, options_.path, &there); !s.ok()) return failed(s);
  }
  std::vector<rdb::ColumnFamilyDescriptor> families{{rdb::kDefaultColumnFamilyName, rdb::ColumnFamilyOptions()}};
  for (size_t i = 0; i < family_count; ++i)
    families.emplace_back(to_string(static_cast<family>(i)), family_options(static_cast<family>(i)));
  for (const auto& name : there) {
    const bool known = std::any_of(families.begin(), families.end(), [&](const auto& d) { return d.name == name; });
    if (!known)
      return fail(errc::unsupported,
                  "{}: has a family '{}' that this version does not know; use the version that wrote it", options_.path,
                  name);
  }
  rdb::DB* raw = nullptr;
  std::vector<rdb::ColumnFamilyHandle*> handles;
  const auto opened = options_.read_only ? rdb::DB::OpenForReadOnly(o, options_.path, families, &handles, &raw)
                                         : rdb::DB::Open(o, options_.path, families, &handles, &raw);
  if (!opened.ok()) return failed(opened);
  db_.reset(raw);
  default_ = handles[0];
  for (size_t i = 0; i < family_count; ++i) handles_[i] = handles[i + 1];
  open_.store(true, std::memory_order_release);
  return {};
}

rocks::~rocks() {
  if (!db_) return;
  if (options_.wal == wal_mode::off && !options_.read_only) (void)flush();
  rdb::CancelAllBackgroundWork(db_.get(), true);  // a sweep may be using the handles
  open_.store(false, std::memory_order_release);
  for (auto* h : handles_) (void)db_->DestroyColumnFamilyHandle(h);
  (void)db_->DestroyColumnFamilyHandle(default_);
  (void)db_->Close();
}

result<bool> rocks::get(family f, std::string_view key, std::string& value) const {
  const auto s = db_->Get(rdb::ReadOptions(), handle(f), slice(key), &value);
  if (s.ok()) return true;
  if (s.IsNotFound()) return false;
  return failed(s);
}

result<void> rocks::multi_get(family f, std::span<const std::string_view> keys,
                              std::vector<std::optional<std::string>>& values) const {
  const size_t n = keys.size();
  values.assign(n, std::nullopt);
  std::vector<rdb::Slice> slices(n);
  for (size_t i = 0; i < n; ++i) slices[i] = slice(keys[i]);
  std::vector<rdb::PinnableSlice> found(n);
  std::vector<rdb::Status> status(n);
  db_->MultiGet(rdb::ReadOptions(), handle(f), n, slices.data(), found.data(), status.data());
  for (size_t i = 0; i < n; ++i) {
    if (status[i].ok()) {
      values[i].emplace(found[i].data(), found[i].size());
    } else if (!status[i].IsNotFound()) {
      return failed(status[i]);
    }
  }
  return {};
}

result<void> rocks::write(const write_batch& batch, sync_write sync) {
  rdb::WriteBatch b(batch.bytes() + 24 * batch.size() + 32);
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto op = batch.at(i);
    const auto s =
        op.erase ? b.Delete(handle(op.in), slice(op.key)) : b.Put(handle(op.in), slice(op.key), slice(op.value));
    if (!s.ok()) return failed(s);
  }
  // Before anything is touched: the batch is not written at all. One system call, about 1 us.
  if (auto ok = room_for(options_.least_room_to_write, "be written"); !ok) return ok;
  rdb::WriteOptions o;
  o.disableWAL = options_.wal == wal_mode::off;
  o.sync = sync == sync_write::yes && !o.disableWAL;
  if (const auto s = db_->Write(o, &b); !s.ok()) return failed(s);
  if (sync == sync_write::yes && o.disableWAL) return flush();
  return {};
}

result<void> rocks::room_for(uint64_t least, const char* what) const {
  if (options_.read_only) return fail(errc::unavailable, "{}: was opened for reading only", options_.path);
  const std::filesystem::path path(options_.path);
  std::error_code ec;
  const auto room = std::filesystem::space(std::filesystem::exists(path, ec) ? path : path.parent_path(), ec);
  if (ec || room.available >= least) return {};
  return fail(errc::exhausted,
              "{}: cannot {}: the file system has {} KiB left, {} KiB are needed; make room, nothing is lost",
              options_.path, what, room.available >> 10, least >> 10);
}

result<void> rocks::flush() {
  std::vector<rdb::ColumnFamilyHandle*> all(handles_.begin(), handles_.end());
  if (const auto s = db_->Flush(rdb::FlushOptions(), all); !s.ok()) return failed(s);
  return {};
}

result<void> rocks::sync() {
  if (options_.read_only) return {};
  if (options_.wal == wal_mode::off) return flush();
  if (const auto s = db_->FlushWAL(true); !s.ok()) return failed(s);
  return {};
}

result<std::unique_ptr<cursor>> rocks::scan(family f, std::string_view from) const {
  auto w = std::make_unique<walk>(*this, f, from);
  if (auto s = w->status(); !s) return fail(s.error());
  return std::unique_ptr<cursor>(std::move(w));
}

result<void> rocks::clear(family f) {
  if (auto ok = room_for(options_.least_room_to_write, "be written"); !ok) return ok;
  const std::string end(64, '\xff');  // longer than any key of ours
  rdb::WriteBatch b;
  (void)b.DeleteRange(handle(f), "", end);
  rdb::WriteOptions o;
  o.disableWAL = options_.wal == wal_mode::off;
  o.sync = !o.disableWAL;
  if (const auto s = db_->Write(o, &b); !s.ok()) return failed(s);
  if (o.disableWAL) return flush();
  return {};
}

result<void> rocks::compact(family f) {
  if (options_.read_only) return room_for(0, "be compacted");
  if (const auto s = db_->Flush(rdb::FlushOptions(), handle(f)); !s.ok()) return failed(s);
  rdb::CompactRangeOptions o;
  o.exclusive_manual_compaction = false;
  o.bottommost_level_compaction = rdb::BottommostLevelCompaction::kForce;
  if (const auto s = db_->CompactRange(o, handle(f), nullptr, nullptr); !s.ok()) return failed(s);
  return {};
}

db_stats rocks::stats() const {
  db_stats out;
  const auto sum = [&](const std::string& name) {
    uint64_t total = 0, v = 0;
    for (auto* h : handles_)
      if (db_->GetIntProperty(h, name, &v)) total += v;
    return total;
  };
  out.disk_bytes = sum(rdb::DB::Properties::kTotalSstFilesSize);
  out.memtable_bytes = sum(rdb::DB::Properties::kSizeAllMemTables);
  out.table_bytes = sum(rdb::DB::Properties::kEstimateTableReadersMem);
  out.cache_bytes = cache_->GetUsage();
  out.stall_micros = statistics_->getTickerCount(rdb::STALL_MICROS);
  out.swept = swept_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace

result<std::unique_ptr<db>> open_rocks_db(const rocks_options& options) {
  if (options.path.empty()) return fail(errc::invalid_argument, "path: the directory of the database is not given");
  if (options.background_jobs < 1) return fail(errc::invalid_argument, "background_jobs: {}", options.background_jobs);
  if (options.write_buffer_bytes < (1 << 20) || options.block_cache_bytes < (1 << 20))
    return fail(errc::invalid_argument, "write_buffer_bytes {}, block_cache_bytes {}: at least 1 MiB each",
                options.write_buffer_bytes, options.block_cache_bytes);
  TROUPE_CHECK(!options.sweep || options.clock, "a sweep needs a clock");
  auto out = std::make_unique<rocks>(options);
  if (auto r = out->open(); !r) return fail(std::move(r.error()));
  return std::unique_ptr<db>(std::move(out));
}

}  // namespace troupe::kv
