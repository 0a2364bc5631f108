// Which extents may be read right now, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/types.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// Leases of one owner. Thread safe. Bounded by the number of leases and by 32 extents a lease on average; beyond it
/// `take` is refused. A lease is usable for `length` and protects for twice that: the reader counts from its request on
/// its own clock, and checks after the read.
class lease_table {
 public:
  lease_table(nanoseconds length, size_t most) : length_(length), most_(most) {}

  /// A token > 0. Errors: exhausted.
  result<uint64_t> take(std::span<const extent_id> extents, nanoseconds now);
  /// Whether a reader may still use it.
  bool usable(uint64_t token, nanoseconds now);
  void release(uint64_t token);
  /// Whether any lease still protects the extent.
  bool protects(const extent_id& id, nanoseconds now);
  /// Leases that are open; some may have run out since the last call with a time.
  size_t size();
  nanoseconds length() const { return length_; }

 private:
  struct grant {
    nanoseconds taken;
    std::vector<extent_id> extents;
  };
  void drop(uint64_t token);         // with mutex_ held
  void forget_old(nanoseconds now);  // with mutex_ held

  const nanoseconds length_;
  const size_t most_;
  std::mutex mutex_;
  uint64_t last_ = 0;  // protected by mutex_, like all below
  std::unordered_map<uint64_t, grant> grants_;
  std::unordered_map<extent_id, uint32_t> holders_;  // extent -> leases on it
  std::deque<uint64_t> order_;                       // tokens as they were taken; released ones are skipped
  size_t extents_ = 0;                               // sum over grants_
};

}  // namespace troupe::kv
