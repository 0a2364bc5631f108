#include "actors/storage/snapshot_client.hpp"

#include <utility>

#include "actors/protocol/tier.hpp"

namespace troupe::actors {
namespace {

kv_tier_actor tier_of(const std::shared_ptr<store_peer>& p) {
  if (!p || !p->up || !p->tier) return {};
  return caf::actor_cast<kv_tier_actor>(p->tier);
}

}  // namespace

void snapshot_client::put(snapshot_offer offer, kv::reply<void> done) {
  const auto peer = owner_(offer.where.slot);
  const auto tier = tier_of(peer);
  if (!tier) return store_->home->post([done = std::move(done)] { done(fail(errc::unavailable, "no snapshot tier")); });
  // The tier itself lets older ones of the request go; another one must be told.
  if (offer.older.at.tokens > 0)
    if (const auto before = owner_(offer.older.slot); before && before != peer)
      if (const auto other = tier_of(before)) tell(store_->self, other, tier_drop{offer.request, offer.older.at});
  tier_put m;
  m.request = offer.request;
  m.at = offer.where.at;
  m.address = std::move(offer.source.address);
  m.region = std::move(offer.source.region);
  m.offset = offer.source.offset;
  m.bytes = offer.source.bytes;
  m.crc = offer.source.crc;
  store_->call<ack>(peer, tier, std::move(m), [done = std::move(done)](result<ack> a) {
    if (!a) return done(fail(std::move(a.error())));
    done({});
  });
}

void snapshot_client::open(const snapshot_key& key, kv::reply<snapshot_source> done) {
  const auto peer = owner_(key.slot);
  const auto tier = tier_of(peer);
  if (!tier) return store_->home->post([done = std::move(done)] { done(fail(errc::unavailable, "no snapshot tier")); });
  store_->call<tier_opened>(peer, tier, tier_open{key.at}, [peer, done = std::move(done)](result<tier_opened> o) {
    if (!o) return done(fail(std::move(o.error())));
    done(snapshot_source{peer->address, o->region, o->offset, o->bytes, o->crc, peer->seat, o->ticket});
  });
}

void snapshot_client::close(uint32_t seat, uint64_t ticket) {
  if (const auto tier = tier_of(seat_(seat))) tell(store_->self, tier, tier_close{ticket});
}

}  // namespace troupe::actors
