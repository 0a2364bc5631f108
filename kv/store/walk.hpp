// Everything that is known of each extent, from all owners and all targets, one extent after the other.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"

namespace troupe::kv {

/// One extent and all traces of it.
struct found_extent {
  extent_id id;
  std::map<owner_id, index_change> records;                // put changes
  std::vector<std::pair<target_id, shard_footer>> shards;  // as the targets list them
};

/// Merges the lists of owners and targets, which are all in the order of extent ids, page by page: memory is bounded
/// whatever the size of the store. What is written or removed meanwhile may or may not be met. On one executor.
class extent_walk : public std::enable_shared_from_this<extent_walk> {
 public:
  extent_walk(const members& who, executor& home, size_t page = 128);
  /// The next extent; nothing at the end. One call at a time. Errors: those of an owner, without which the walk could
  /// take extents for unknown; those that are known to be away are left out. A target that does not answer is left out
  /// and named in absent().
  void next(reply<std::optional<found_extent>> done);
  const std::set<target_id>& absent() const { return absent_; }

 private:
  struct owner_list {
    owner* from;
    std::deque<index_change> page;
    index_cursor at;
    bool end = false;
  };
  struct target_list {
    target* from;
    std::deque<shard_footer> page;
    std::optional<shard_key> after;
    bool end = false;
  };
  void fill(std::function<void()> then);
  void gather(std::shared_ptr<found_extent> into, reply<std::optional<found_extent>> done);

  executor& home_;
  const size_t page_size_;
  std::vector<owner_list> owners_;
  std::vector<target_list> targets_;
  std::set<target_id> absent_;
  std::optional<error> trouble_;
};

}  // namespace troupe::kv
