// Room in one region of registered memory, lent out in whole 4 KiB runs: where a target keeps what peers pull, and a
// client what it has pulled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>

#include "runtime/transport/transport.hpp"

namespace troupe::actors {

/// A piece of the region; bytes is what was asked for.
struct staging_slot {
  uint64_t offset = 0, bytes = 0;
};

/// First fit, first come first served: whoever finds no room waits in a bounded queue. Belongs to one actor.
class staging {
 public:
  /// `waiting_max`: requests that may wait.
  staging(transport::region_ptr region, size_t waiting_max);

  /// Calls `go` with a slot, now or when one has come free; false: as many wait as may, or the region is smaller than
  /// that. `bytes` > 0. Every slot is given back once.
  bool take(uint64_t bytes, std::function<void(staging_slot)> go);
  void give_back(const staging_slot& slot);

  const transport::region_ptr& region() const { return region_; }
  std::span<std::byte> bytes(const staging_slot& s) const { return region_->bytes().subspan(s.offset, s.bytes); }
  /// With the room up to the next run.
  std::span<std::byte> room(const staging_slot& s) const;
  uint64_t used() const { return used_; }
  uint64_t size() const { return region_->bytes().size(); }
  size_t waiting() const { return waiting_.size(); }
  /// Drops what waits.
  void clear() { waiting_.clear(); }

 private:
  void serve();

  const transport::region_ptr region_;
  const size_t waiting_max_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes; neighbours are merged
  std::deque<std::pair<uint64_t, std::function<void(staging_slot)>>> waiting_;
  uint64_t used_ = 0;
  bool serving_ = false;
};

}  // namespace troupe::actors
