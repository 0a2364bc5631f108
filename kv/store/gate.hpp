// Bounds what is under way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::kv {

/// Lets work of a stated size in, first come first served, while no more than `limit` is under way; work larger than
/// the limit goes alone. What waits is bounded by whoever asks. Not thread safe: belongs to one executor.
class byte_gate {
 public:
  explicit byte_gate(uint64_t limit) : limit_(limit) {}

  /// Calls `go` now or after enough `leave` calls. Every call of `go` is followed by one `leave` of the same size.
  void enter(uint64_t bytes, std::function<void()> go) {
    waiting_.emplace_back(bytes, std::move(go));
    admit();
  }
  void leave(uint64_t bytes) {
    TROUPE_CHECK(bytes <= in_use_ && entered_ > 0, "gate: {} leave, {} of {} are in", bytes, in_use_, entered_);
    in_use_ -= bytes;
    --entered_;
    admit();
  }
  uint64_t in_use() const { return in_use_; }
  size_t waiting() const { return waiting_.size(); }

 private:
  void admit() {
    if (admitting_) return;  // the loop below is running further up the stack and will see what changed
    admitting_ = true;
    while (!waiting_.empty() && (entered_ == 0 || in_use_ + waiting_.front().first <= limit_)) {
      auto [bytes, go] = std::move(waiting_.front());
      waiting_.pop_front();
      in_use_ += bytes;
      ++entered_;
      go();
    }
    admitting_ = false;
  }

  const uint64_t limit_;
  uint64_t in_use_ = 0, entered_ = 0;
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_;
  bool admitting_ = false;
};

}  // namespace troupe::kv
