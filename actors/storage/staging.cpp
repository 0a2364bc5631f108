#include "actors/storage/staging.hpp"

#include <utility>

#include "kv/extent/footer.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {
namespace {

uint64_t whole_runs(uint64_t bytes) { return (bytes + kv::run_bytes - 1) / kv::run_bytes * kv::run_bytes; }

}  // namespace

staging::staging(transport::region_ptr region, size_t waiting_max)
    : region_(std::move(region)), waiting_max_(waiting_max) {
  free_[0] = size() / kv::run_bytes * kv::run_bytes;
}

std::span<std::byte> staging::room(const staging_slot& s) const {
  return region_->bytes().subspan(s.offset, whole_runs(s.bytes));
}

bool staging::take(uint64_t bytes, std::function<void(staging_slot)> go) {
  TROUPE_CHECK(bytes > 0, "a slot of no bytes");
  if (whole_runs(bytes) > size() / kv::run_bytes * kv::run_bytes || waiting_.size() >= waiting_max_) return false;
  waiting_.emplace_back(bytes, std::move(go));
  serve();
  return true;
}

void staging::give_back(const staging_slot& slot) {
  uint64_t from = slot.offset, bytes = whole_runs(slot.bytes);
  used_ -= bytes;
  auto after = free_.lower_bound(from);
  TROUPE_CHECK(after == free_.end() || after->first >= from + bytes, "a slot was given back twice");
  if (after != free_.end() && after->first == from + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    TROUPE_CHECK(before->first + before->second <= from, "a slot was given back twice");
    if (before->first + before->second == from) {
      from = before->first;
      bytes += before->second;
    }
  }
  free_[from] = bytes;
  serve();
}

// The first in line goes first, so that a large request is not kept waiting by small ones.
void staging::serve() {
  if (serving_) return;
  serving_ = true;
  while (!waiting_.empty()) {
    const uint64_t need = whole_runs(waiting_.front().first);
    auto it = free_.begin();
    while (it != free_.end() && it->second < need) ++it;
    if (it == free_.end()) break;
    const staging_slot slot{it->first, waiting_.front().first};
    const uint64_t left = it->second - need, next = it->first + need;
    free_.erase(it);
    if (left > 0) free_[next] = left;
    used_ += need;
    auto go = std::move(waiting_.front().second);
    waiting_.pop_front();
    go(slot);
  }
  serving_ = false;
}

}  // namespace troupe::actors
