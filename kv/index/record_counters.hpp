// Counts of the index by expiry, so that what is visible at a given time is a sum and expiring costs nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "kv/index/block_index.hpp"
#include "kv/index/records.hpp"

namespace troupe::kv {

/// One line per expiry step in use (a week of hours: 168). Mirrors the expiry family. Thread safe.
class record_counters {
 public:
  /// An entry of the expiry family was written.
  void add(int64_t expiry_s, const expiry_record& r) {
    std::lock_guard lock(mutex_);
    if (expiry_s < swept_before_) return;
    auto& line = lines_[expiry_s];
    ++line.extents, line.blocks += r.blocks, line.bytes += r.bytes;
  }
  /// An entry was removed.
  void remove(int64_t expiry_s, const expiry_record& r) {
    std::lock_guard lock(mutex_);
    const auto at = lines_.find(expiry_s);
    if (at == lines_.end()) return;  // older than the sweep grace: not counted any more
    auto& line = at->second;  // a damaged entry may have been counted otherwise than it is taken back: never below 0
    --line.extents, line.blocks -= std::min<uint64_t>(line.blocks, r.blocks),
        line.bytes -= std::min(line.bytes, r.bytes);
    if (line.extents == 0) lines_.erase(at);
  }
  /// The sums at `now_s`; lines older than the grace are given up.
  void sum(int64_t now_s, int64_t grace_s, index_stats& out) {
    std::lock_guard lock(mutex_);
    swept_before_ = std::max(swept_before_, now_s - grace_s);
    lines_.erase(lines_.begin(), lines_.lower_bound(swept_before_));
    for (const auto& [expiry, l] : lines_) {
      if (expiry < now_s) {
        out.expired_extents += l.extents, out.expired_blocks += l.blocks, out.expired_bytes += l.bytes;
      } else {
        out.extents += l.extents, out.blocks += l.blocks, out.bytes += l.bytes;
      }
    }
  }
  bool empty() {
    std::lock_guard lock(mutex_);
    return lines_.empty();
  }

 private:
  struct line {
    uint64_t extents = 0, blocks = 0, bytes = 0;
  };
  std::mutex mutex_;
  std::map<int64_t, line> lines_;     // protected by mutex_
  int64_t swept_before_ = INT64_MIN;  // protected by mutex_; only grows
};

}  // namespace troupe::kv
