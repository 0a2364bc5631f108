// An index owner in this process.
#pragma once

#include "kv/store/executor.hpp"
#include "kv/store/owner.hpp"

namespace troupe::kv {

/// Runs the blocking calls of a block_index on a worker and answers on an executor. Wall time comes from `wall`,
/// monotonic time from the executor. A full worker answers exhausted. All must outlive the owner and every reply.
class local_owner final : public owner {
 public:
  local_owner(owner_id id, block_index& index, worker& blocking, executor& home, const unix_clock& wall)
      : id_(id), index_(index), blocking_(blocking), home_(home), wall_(wall) {}
  owner_id id() const override { return id_; }
  void lookup(lookup_request request, reply<lookup_reply> done) override;
  void match(std::vector<match_slot> slots, uint64_t limit, reply<match_reply> done) override;
  void put(std::vector<extent_info> extents, reply<put_reply> done) override;
  void apply(std::vector<index_change> changes, reply<void> done) override;
  void touch(touch_request request, reply<std::vector<index_change>> done) override;
  void release(uint64_t lease) override;
  void is_live(uint64_t lease, reply<bool> done) override;
  void expired(size_t limit, reply<reclaim_plan> done) override;
  void evict(uint64_t bytes, size_t limit, reply<reclaim_plan> done) override;
  void describe(std::vector<extent_id> extents, reply<std::vector<extent_info>> done) override;
  void remove(std::vector<extent_id> extents, remove_why why, reply<remove_reply> done) override;
  void list(index_cursor at, size_t limit, reply<std::pair<std::vector<index_change>, index_cursor>> done) override;
  void restore(std::vector<extent_info> extents, reply<std::vector<extent_id>> done) override;
  void check(index_cursor at, size_t limit, bool repair,
             reply<std::pair<std::vector<index_finding>, index_cursor>> done) override;
  void stats(reply<index_stats> done) override;

 private:
  template <class T, class F>
  void run(reply<T> done, F work);
  result<lookup_reply> lookup_now(const lookup_request& request, nanoseconds asked);

  const owner_id id_;
  block_index& index_;
  worker& blocking_;
  executor& home_;
  const unix_clock& wall_;
};

}  // namespace troupe::kv
