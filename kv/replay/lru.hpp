// What a store with little room still has.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

namespace troupe::kv {

/// Ids by how long ago they were touched; the one touched longest ago goes when there is no room. One thread; about 80
/// bytes per id.
template <class Id>
class lru {
 public:
  /// `room` ids fit; 0: no limit.
  explicit lru(uint64_t room) : room_(room) {}
  bool contains(const Id& id) const { return where_.contains(id); }
  uint64_t size() const { return where_.size(); }
  /// Stores it, or makes it the newest.
  void touch(const Id& id) {
    if (const auto at = where_.find(id); at != where_.end()) {
      order_.splice(order_.end(), order_, at->second);
      return;
    }
    where_.emplace(id, order_.insert(order_.end(), id));
    if (room_ == 0 || where_.size() <= room_) return;
    where_.erase(order_.front());
    order_.pop_front();
  }

 private:
  uint64_t room_;
  std::list<Id> order_;
  std::unordered_map<Id, typename std::list<Id>::iterator> where_;
};

}  // namespace troupe::kv
