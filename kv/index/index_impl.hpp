// The parts of block_index share this class; each operation is in a file of its own (index_*.cpp).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "kv/index/block_index.hpp"
#include "kv/index/lease_table.hpp"
#include "kv/index/record_counters.hpp"
#include "kv/index/records.hpp"
#include "kv/index/slot_locks.hpp"

namespace troupe::kv {

/// Changes that are written as one batch, with what they do to the counters. Each extent appears at most once.
class changeset {
 public:
  /// The extent's record and its expiry entry; `before`: as it is stored now, null if it is not.
  void put(const extent_record& now, const extent_record* before);
  void erase(const extent_record& stored);
  void put(const block_hash& hash, const block_record& r);
  void erase(const block_hash& hash);
  void erase_expiry(std::string_view key, const expiry_record& counted);
  void put_expiry(const extent_record& now);

  bool empty() const { return batch_.empty(); }
  const write_batch& batch() const { return batch_; }
  void count(record_counters& counters) const;

 private:
  struct line {
    bool added;
    int64_t expiry_s;
    expiry_record record;
  };
  write_batch batch_;
  std::vector<line> lines_;
};

/// block_index on a db.
class index_impl final : public block_index {
 public:
  index_impl(db& database, const index_options& options)
      : db_(database), options_(options), leases_(options.lease, options.leases_max) {}
  result<void> count(int64_t now_s, nanoseconds now);

  result<put_reply> put(std::span<const extent_info> extents, int64_t now_s) override;
  result<std::vector<std::optional<block_place>>> lookup(std::span<const block_hash> hashes, int64_t now_s) override;
  result<extent_entry> extent(const extent_id& id, int64_t now_s) override;
  result<match_reply> match(std::span<const match_slot> slots, uint64_t limit, bool runs, int64_t now_s) override;
  result<touch_reply> touch(std::span<const block_hash> chain, policies::ttl_touch touch,
                            policies::traffic_class traffic, int64_t now_s) override;
  result<lease_grant> lease(std::span<const extent_id> extents, int64_t now_s, nanoseconds now) override;
  bool is_live(uint64_t token, nanoseconds now) override { return leases_.usable(token, now); }
  void release(uint64_t token) override { leases_.release(token); }
  result<reclaim_plan> expired(int64_t now_s, size_t limit) override;
  result<reclaim_plan> evict(uint64_t need_bytes, const evict_cut& cut, size_t limit, int64_t now_s,
                             nanoseconds now) override;
  result<evict_cut> cut_for(uint64_t need_bytes) override;
  result<remove_reply> remove(std::span<const extent_id> extents, remove_why why, int64_t now_s,
                              nanoseconds now) override;
  result<void> apply(std::span<const index_change> changes) override;
  result<std::vector<index_change>> export_extents(index_cursor& at, size_t limit,
                                                   const std::function<bool(const block_hash&)>& wanted) override;
  result<std::vector<extent_id>> restore(std::span<const extent_info> extents, int64_t now_s) override;
  result<std::vector<index_finding>> check(index_cursor& at, size_t limit, bool repair, int64_t now_s) override;
  index_stats stats(int64_t now_s) override;

 private:
  using extent_map = std::unordered_map<extent_id, extent_record>;
  // What the blocks of a list are found to be.
  struct resolved {
    std::vector<std::optional<block_place>> places;
    extent_map extents;     // visible ones that were met
    size_t first_hole = 0;  // smallest index without a place; the size of the list if none
    uint32_t probes = 0;    // keys read
  };
  // Why a put is made: by a writer, to follow the primary owner, to rebuild.
  enum class put_mode { write, follow, restore };
  struct put_item {
    const extent_info* info;
    int64_t expiry_s = 0;  // follow only
    uint32_t owned = 0;    // follow only
  };

  // Reads that take a damaged value for a missing one, and count it. Errors: io.
  result<bool> read(family f, std::string_view key, std::string& value);
  result<void> read_many(family f, const std::vector<std::string>& keys,
                         std::vector<std::optional<std::string>>& values);
  result<std::optional<extent_record>> read_extent(const extent_id& id);
  result<extent_map> read_extents(std::span<const extent_id> ids);
  result<std::vector<std::optional<block_record>>> read_blocks(std::span<const block_hash> hashes);
  void damaged() { corrupt_.fetch_add(1, std::memory_order_relaxed); }

  // Places of the hashes, which are taken in groups [ends[i - 1], ends[i]) that probably lie in few extents each.
  result<resolved> resolve(std::span<const block_hash> hashes, std::span<const size_t> ends, int64_t now_s,
                           bool stop_at_hole);
  result<std::optional<block_place>> find(const block_hash& hash, int64_t now_s);
  result<void> commit(const changeset& changes, const char* point);
  result<put_reply> put_all(std::span<const put_item> items, put_mode mode, int64_t now_s);
  // Raises the extents to what `wanted` says of their records (0: leave), in one batch, under their locks.
  result<std::vector<index_change>> raise(
      std::span<const extent_id> ids,
      const std::function<result<std::vector<int64_t>>(std::span<const std::optional<extent_record>>)>& wanted);
  result<void> move(std::span<const index_change> changes);
  result<remove_reply> remove_some(std::span<const extent_id> ids, remove_why why, bool follow, int64_t now_s,
                                   nanoseconds now);
  result<void> drop_dangling(const std::vector<std::string>& keys);
  result<int64_t> expiry_of_write(traffic_class traffic, int64_t current, int64_t now_s) const;
  policies::ttl_input ttl_input_of(traffic_class traffic, policies::ttl_touch touch, int64_t now_s) const;

  result<void> check_extents(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out);
  result<void> check_blocks(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out);
  result<void> check_expiry(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out);

  db& db_;
  const index_options options_;
  slot_locks locks_;
  lease_table leases_;
  std::shared_mutex reclaim_;  // leases are given under it shared, extents removed under it alone
  record_counters counters_;
  std::atomic<uint64_t> corrupt_{0};
  nanoseconds hold_until_{};  // constant after open
};

/// Whether block `ordinal` of the extent is `hash` and is to be read there.
inline bool owns(const extent_record& r, uint32_t ordinal, const block_hash& hash) {
  return ordinal < r.info.count && (r.owned >> ordinal & 1) != 0 && r.info.hashes[ordinal] == hash;
}

}  // namespace troupe::kv
