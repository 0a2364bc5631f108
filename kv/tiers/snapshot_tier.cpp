#include "kv/tiers/snapshot_tier.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::kv {

snapshot_tier::snapshot_tier(const snapshot_tier_options& options, std::span<std::byte> memory)
    : options_(options), memory_(memory) {
  TROUPE_CHECK(options.entry_bytes > 0 && options.per_request > 0, "entry_bytes {} per_request {}", options.entry_bytes,
               options.per_request);
  const size_t n = std::min<size_t>(memory.size() / options.entry_bytes, UINT32_MAX - 1);
  entries_.resize(n);
  free_.reserve(n);
  for (size_t i = n; i-- > 0;) free_.push_back(static_cast<place>(i));
}

bool snapshot_tier::visible(const block_hash& at, nanoseconds now, place* p) const {
  auto it = by_hash_.find(at);
  if (it == by_hash_.end() || entries_[it->second].expiry <= now) return false;
  *p = it->second;
  return true;
}

void snapshot_tier::use(place p, nanoseconds now) {
  entry& e = entries_[p];
  by_use_.erase(e.used);
  e.used = ++clock_;
  by_use_.emplace(e.used, p);
  e.expiry = now + options_.ttl;
}

// Takes a live entry out of reach; its memory is free once nobody reads it any more.
void snapshot_tier::drop(place p) {
  entry& e = entries_[p];
  by_hash_.erase(e.at);
  by_use_.erase(e.used);
  e.live = false;
  e.holders = 0;
  if (e.pins == 0) free_.push_back(p);
}

void snapshot_tier::release_holder(const block_hash& at) {
  auto it = by_hash_.find(at);
  if (it == by_hash_.end()) return;  // evicted or expired before
  entry& e = entries_[it->second];
  if (e.holders > 0 && --e.holders == 0) {
    ++counts_.superseded;
    drop(it->second);
  }
}

result<snapshot_tier::place> snapshot_tier::take_place(nanoseconds now) {
  if (free_.empty()) sweep(now);
  if (free_.empty()) {
    for (const auto& [used, p] : by_use_) {
      if (entries_[p].pins > 0) continue;
      ++counts_.evicted;
      drop(p);
      break;
    }
  }
  if (free_.empty())
    return fail(errc::exhausted, "snapshot tier: all {} entries are being read; give the tier more memory",
                entries_.size());
  place p = free_.back();
  free_.pop_back();
  return p;
}

result<void> snapshot_tier::put(uint64_t request, const block_hash& at, std::span<const std::byte> bytes,
                                nanoseconds now) {
  if (bytes.size() != options_.entry_bytes)
    return fail(errc::invalid_argument, "snapshot tier: an entry of {} bytes where {} are set", bytes.size(),
                options_.entry_bytes);
  if (renew(request, at, now)) return {};
  TROUPE_TRY(const auto room, begin(now));
  std::memcpy(room.bytes.data(), bytes.data(), bytes.size());
  return finish(room.id, request, at, crc32c(bytes), now);
}

result<snapshot_room> snapshot_tier::begin(nanoseconds now) {
  if (writing_.size() >= std::max<size_t>(1, entries_.size() / 2))
    return fail(errc::exhausted, "snapshot tier: {} of {} entries are being written", writing_.size(), entries_.size());
  TROUPE_TRY(const place p, take_place(now));
  const uint64_t id = next_pin_++;
  writing_.emplace(id, p);
  return snapshot_room{id, {bytes_of(p), options_.entry_bytes}};
}

bool snapshot_tier::renew(uint64_t request, const block_hash& at, nanoseconds now) {
  place p;
  if (!visible(at, now, &p)) return false;
  keep(request, at, p, now);
  return true;
}

void snapshot_tier::abandon(uint64_t room) {
  const auto it = writing_.find(room);
  if (it == writing_.end()) return;
  free_.push_back(it->second);
  writing_.erase(it);
}

result<void> snapshot_tier::finish(uint64_t room, uint64_t request, const block_hash& at, uint32_t crc,
                                   nanoseconds now) {
  const auto it = writing_.find(room);
  if (it == writing_.end()) return fail(errc::invalid_argument, "snapshot tier: {} is not being written", room);
  place p;
  if (visible(at, now, &p)) {  // another request was quicker: the same bytes
    abandon(room);
    return keep(request, at, p, now), result<void>{};
  }
  if (auto old = by_hash_.find(at); old != by_hash_.end()) {
    ++counts_.expired;
    drop(old->second);
  }
  p = it->second;
  writing_.erase(it);
  entries_[p] = entry{};
  entries_[p].at = at;
  entries_[p].crc = crc;
  entries_[p].live = true;
  by_hash_.emplace(at, p);
  keep(request, at, p, now);
  return {};
}

// `p` is the live entry of `at`: renewed, and among the newest of `request`.
void snapshot_tier::keep(uint64_t request, const block_hash& at, place p, nanoseconds now) {
  use(p, now);
  ++counts_.puts;
  const size_t most = 2 * entries_.size() + 64;
  if (requests_.size() > most) drop_idle_requests();
  while (requests_.size() > most) requests_.erase(requests_.begin());  // many that keep the same entries
  auto& newest = requests_[request];
  if (auto same = std::find(newest.begin(), newest.end(), at); same != newest.end()) {
    // Already counted, unless the entry was dropped and written anew in between.
    if (entries_[p].holders == 0) entries_[p].holders = 1;
    newest.erase(same);
    newest.push_back(at);
    return;
  }
  ++entries_[p].holders;
  newest.push_back(at);
  if (newest.size() > options_.per_request) {
    const block_hash oldest = newest.front();
    newest.pop_front();
    release_holder(oldest);
  }
}

std::vector<size_t> snapshot_tier::newest(std::span<const block_hash> chain, size_t limit, nanoseconds now) const {
  std::vector<size_t> found;
  place p;
  for (size_t i = chain.size(); i-- > 0 && found.size() < limit;) {
    if (visible(chain[i], now, &p)) found.push_back(i);
  }
  return found;
}

result<snapshot_pin> snapshot_tier::pin(const block_hash& at, nanoseconds now) {
  place p;
  if (!visible(at, now, &p)) {
    ++counts_.misses;
    return fail(errc::not_found, "snapshot tier: no snapshot at this block");
  }
  if (pinned_.size() >= options_.max_pins)
    return fail(errc::exhausted, "snapshot tier: {} entries are being read, which is the limit", pinned_.size());
  ++counts_.hits;
  use(p, now);
  ++entries_[p].pins;
  const uint64_t id = next_pin_++;
  pinned_.emplace(id, p);
  return snapshot_pin{id, {bytes_of(p), options_.entry_bytes}, entries_[p].crc};
}

result<void> snapshot_tier::unpin(uint64_t id) {
  auto it = pinned_.find(id);
  if (it == pinned_.end()) return fail(errc::invalid_argument, "snapshot tier: {} is not being read", id);
  entry& e = entries_[it->second];
  if (--e.pins == 0 && !e.live) free_.push_back(it->second);
  pinned_.erase(it);
  return {};
}

void snapshot_tier::release(uint64_t request, const block_hash& at) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  const auto held = std::find(it->second.begin(), it->second.end(), at);
  if (held == it->second.end()) return;
  it->second.erase(held);
  if (it->second.empty()) requests_.erase(it);
  release_holder(at);
}

void snapshot_tier::forget(uint64_t request) {
  // The entries keep this holder: without a request that could supersede them they stay for their ttl.
  requests_.erase(request);
}

void snapshot_tier::drop_idle_requests() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    const auto& hashes = it->second;
    const bool live = std::any_of(hashes.begin(), hashes.end(), [&](const auto& h) { return by_hash_.contains(h); });
    it = live ? std::next(it) : requests_.erase(it);
  }
}

size_t snapshot_tier::sweep(nanoseconds now) {
  // Every use sets expiry = now + ttl, so the order of use is the order of expiry.
  size_t n = 0;
  while (!by_use_.empty() && entries_[by_use_.begin()->second].expiry <= now) {
    drop(by_use_.begin()->second);
    ++counts_.expired;
    ++n;
  }
  if (n > 0) drop_idle_requests();
  return n;
}

snapshot_tier_stats snapshot_tier::stats() const {
  snapshot_tier_stats s = counts_;
  s.entries = by_hash_.size();
  s.capacity = entries_.size();
  s.pinned = pinned_.size();
  s.writing = writing_.size();
  return s;
}

}  // namespace troupe::kv
