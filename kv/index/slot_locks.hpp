// Locks of slots: whoever changes a block or an extent holds the lock of its slot.
#pragma once

#include <bitset>
#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kv/types.hpp"

namespace troupe::kv {

/// 1,024 stripes over the hashes of slots' first blocks. A set of them is taken at once, so there is no order to keep
/// and no deadlock; who holds a set must not take a second one. All blocks of an extent, and every other extent that
/// could hold one of them, have the same first block of the slot, so one stripe an extent is enough.
class slot_locks {
 public:
  /// Holds a set until it is destroyed.
  class guard {
   public:
    guard(slot_locks& owner, std::vector<size_t> stripes) : owner_(&owner), stripes_(std::move(stripes)) {}
    guard(guard&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), stripes_(std::move(other.stripes_)) {}
    guard& operator=(guard&&) = delete;
    ~guard() {
      if (owner_) owner_->release(stripes_);
    }

   private:
    slot_locks* owner_;
    std::vector<size_t> stripes_;
  };

  /// Waits until none of the slots is held by another.
  guard take(std::span<const block_hash> slots) {
    std::vector<size_t> stripes;
    for (const auto& s : slots) stripes.push_back(std::hash<block_hash>{}(s) % count);
    return take(std::move(stripes));
  }

  /// Waits until nobody holds any slot; for repairs, which do not know the slot of what they find.
  guard take_all() {
    std::vector<size_t> stripes(count);
    for (size_t i = 0; i < count; ++i) stripes[i] = i;
    return take(std::move(stripes));
  }

 private:
  guard take(std::vector<size_t> stripes) {
    std::unique_lock lock(mutex_);
    const auto free = [&] {
      for (const size_t s : stripes)
        if (held_[s]) return false;
      return true;
    };
    released_.wait(lock, free);
    for (const size_t s : stripes) held_[s] = true;
    return guard(*this, std::move(stripes));
  }
  void release(const std::vector<size_t>& stripes) {
    {
      std::lock_guard lock(mutex_);
      for (const size_t s : stripes) held_[s] = false;
    }
    released_.notify_all();
  }

  static constexpr size_t count = 1024;
  std::mutex mutex_;
  std::condition_variable released_;
  std::bitset<count> held_;  // protected by mutex_
};

}  // namespace troupe::kv
