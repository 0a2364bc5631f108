// Inside of shard_store, shared by its source files only.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kv/device/aligned_buffer.hpp"
#include "kv/device/shard_record.hpp"
#include "kv/device/shard_store.hpp"
#include "kv/device/space_map.hpp"

namespace troupe::kv {

/// Shards by their key.
struct shard_key_hash {
  size_t operator()(const shard_key& k) const { return std::hash<extent_id>{}(k.extent) * 31 + k.shard; }
};

/// Buffers for direct I/O that are used again; a few are kept.
class buffer_pool {
 public:
  aligned_buffer take(size_t bytes);
  void give(aligned_buffer b);

 private:
  static constexpr size_t kept_max = 8;
  static constexpr size_t kept_bytes_max = size_t{4} << 20;
  std::mutex mutex_;
  std::vector<aligned_buffer> kept_;
};

/// State and steps of a shard_store. Members by lock discipline.
struct shard_store::impl {
  // Constant after open.
  disk& device_disk;
  db& database;
  shard_store_options options;
  device_uuid device{};
  uint32_t max_chunks = 0;

  buffer_pool buffers;
  shard_store_report report;  // written by open and rebuild only

  // One of them is held from reading a shard's old record to writing its new one.
  static constexpr size_t stripes = 64;
  std::array<std::mutex, stripes> commit_locks;
  std::mutex grow_lock;             // one chunk file is made at a time
  std::atomic<bool> broken{false};  // a commit failed: what the database holds is not known

  std::mutex mutex;  // protects all below
  space_map space;
  uint64_t payload = 0, shards = 0;
  uint64_t next_sequence = 0, sequence_ceiling = 0;
  // Reads under way, and runs that a removal left to the last of them.
  struct pinned {
    uint32_t readers = 0;
    std::vector<run_range> removed;
  };
  std::unordered_map<shard_key, pinned, shard_key_hash> pins;

  impl(disk& d, db& b, const shard_store_options& o) : device_disk(d), database(b), options(o) {}

  void reach(std::string_view point) const { crash_point(options.crash, point); }
  sync_write commit_sync() const { return sync_write{options.durable == durability::power}; }
  std::string key(const shard_key& k) const { return shard_record_key(options.target, k); }
  std::string who(const shard_key& k) const {
    return fmt::format("shard {} of extent {} on {}", k.shard, to_string(k.extent), device_disk.name());
  }

  // shard_store.cpp
  result<void> put(std::span<const shard_put> items);
  result<void> write_shard(const shard_put& item, const run_range& at, uint64_t sequence, std::string& record);
  result<void> commit_put(std::span<const shard_put> items, const std::vector<run_range>& places,
                          const std::vector<std::string>& records);
  result<size_t> remove(std::span<const shard_key> keys);
  result<shard_footer> load(const shard_key& k) const;
  result<void> with_pin(const shard_key& k, const std::function<result<void>(const shard_footer&)>& f);
  result<void> read(const shard_footer& f, uint64_t offset, uint64_t bytes, std::span<std::byte> into,
                    const std::function<void(std::span<const std::byte>)>* sink);
  result<void> verify(const shard_footer& f, aligned_buffer& buffer, bool payload_only);
  void release(const shard_key& k, const run_range& r);
  void wipe_and_free(const run_range& r);
  std::vector<std::unique_lock<std::mutex>> lock_keys(std::vector<size_t> wanted);
  static size_t stripe(const shard_key& k) { return shard_key_hash{}(k) % stripes; }

  // shard_space.cpp
  result<run_range> allocate(uint32_t runs);
  result<void> grow();
  result<void> write_header(uint32_t chunk, uint64_t bytes);
  result<uint64_t> sequences(uint64_t n);
  result<void> write_device(bool rebuilding);
  shard_usage usage();

  // shard_open.cpp
  result<void> open();
  result<bool> has_records() const;
  result<void> find_device();
  result<uint64_t> check_headers();
  result<void> load_records();
  result<void> settle_overlaps();
  result<void> drop_records(const std::vector<std::string>& keys);

  // shard_rebuild.cpp
  result<void> rebuild();
  result<void> clear_records();
  result<std::vector<shard_footer>> scan_chunk(uint32_t chunk, bool own);
  result<void> rebuild_chunk(uint32_t chunk);
  uint64_t footers_in(uint32_t chunk, uint64_t from, uint64_t to, bool own, std::vector<shard_footer>& out);
  result<uint64_t> find_unrecorded(const std::function<bool(const shard_footer&)>& each);
};

}  // namespace troupe::kv
