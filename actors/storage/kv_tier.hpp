// The snapshot tier as an actor: kv::snapshot_tier behind messages, bytes by the transport. Lost with the process, by
// design: it only saves replay. Its memory is the region that it is given, and nothing else: whoever allocates that
// decides the node's share. When it is full, what was used longest ago makes room.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "actors/protocol/tier.hpp"
#include "actors/storage/kv_index.hpp"
#include "kv/tiers/snapshot_tier.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::actors {

/// What a tier is told at its start.
struct kv_tier_options {
  std::shared_ptr<void> keep;  // held as long as the actor lives: whoever owns the rest waits for it
  std::shared_ptr<transport::transport> plane;
  kv::snapshot_tier_options tier;               // size of entries, time to live, readers at once
  nanoseconds hold{std::chrono::seconds(10)};   // what a reader has to pull; afterwards its entry may go
  nanoseconds sweep{std::chrono::seconds(10)};  // how often what has expired is freed
};

/// The tier's entries; the actor writes, an index of the same process looks. Any thread.
class tier_entries final : public snapshot_listing {
 public:
  tier_entries(const kv::snapshot_tier_options& options, transport::region_ptr region, caf::actor_clock& clock)
      : region_(std::move(region)), clock_(clock), tier_(options, region_->bytes()) {}
  /// Extends nothing.
  std::vector<size_t> newest(std::span<const kv::block_hash> chain, size_t limit) const override;
  /// Calls `f(tier, now)` alone.
  template <class F>
  auto with(F&& f) {
    std::lock_guard lock(mutex_);
    return f(tier_, time());
  }
  const transport::region_ptr& region() const { return region_; }

 private:
  nanoseconds time() const { return std::chrono::duration_cast<nanoseconds>(clock_.now().time_since_epoch()); }

  const transport::region_ptr region_;
  caf::actor_clock& clock_;
  mutable std::mutex mutex_;
  kv::snapshot_tier tier_;  // protected by mutex_
};

/// The actor, and its entries for an index of the same process.
struct kv_tier {
  kv_tier_actor actor;
  std::shared_ptr<tier_entries> entries;
};

/// Spawns it as a child of `parent`; `region` is memory of the transport, whole entries of it are used.
kv_tier spawn_kv_tier(caf::local_actor* parent, kv_tier_options options, transport::region_ptr region);

}  // namespace troupe::actors
