#include "kv/index/lease_table.hpp"

namespace troupe::kv {

result<uint64_t> lease_table::take(std::span<const extent_id> extents, nanoseconds now) {
  std::lock_guard lock(mutex_);
  forget_old(now);
  if (grants_.size() >= most_ || extents_ + extents.size() > 32 * most_)
    return fail(errc::exhausted,
                "{} leases on {} extents are open, the limit is {} and {}; read later, or fewer at once",
                grants_.size(), extents_, most_, 32 * most_);
  const uint64_t token = ++last_;
  grants_.emplace(token, grant{now, {extents.begin(), extents.end()}});
  for (const auto& id : extents) ++holders_[id];
  extents_ += extents.size();
  order_.push_back(token);
  return token;
}

bool lease_table::usable(uint64_t token, nanoseconds now) {
  std::lock_guard lock(mutex_);
  const auto at = grants_.find(token);
  return at != grants_.end() && now <= at->second.taken + length_;
}

void lease_table::release(uint64_t token) {
  std::lock_guard lock(mutex_);
  drop(token);
  // Released tokens leave the queue when they reach its front; many quick readers must not make it grow meanwhile.
  while (!order_.empty() && !grants_.contains(order_.front())) order_.pop_front();
  if (order_.size() > 2 * grants_.size() + 64) std::erase_if(order_, [&](uint64_t t) { return !grants_.contains(t); });
}

bool lease_table::protects(const extent_id& id, nanoseconds now) {
  std::lock_guard lock(mutex_);
  forget_old(now);
  return holders_.contains(id);
}

size_t lease_table::size() {
  std::lock_guard lock(mutex_);
  return grants_.size();
}

void lease_table::drop(uint64_t token) {
  const auto at = grants_.find(token);
  if (at == grants_.end()) return;
  for (const auto& id : at->second.extents)
    if (const auto h = holders_.find(id); --h->second == 0) holders_.erase(h);
  extents_ -= at->second.extents.size();
  grants_.erase(at);
}

void lease_table::forget_old(nanoseconds now) {
  while (!order_.empty()) {
    const auto at = grants_.find(order_.front());
    if (at != grants_.end() && now <= at->second.taken + 2 * length_) break;
    drop(order_.front());
    order_.pop_front();
  }
}

}  // namespace troupe::kv
