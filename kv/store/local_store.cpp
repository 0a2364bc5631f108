#include "kv/store/local_store.hpp"

#include <algorithm>
#include <cstring>

#include "kv/store/flow.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

device_uuid new_identity(uint64_t seed, target_id id) {
  rng draw(seed, id.value);
  device_uuid u;
  for (size_t i = 0; i < u.size(); i += 8) {
    const uint64_t v = draw.next() | 1;
    std::memcpy(u.data() + i, &v, 8);
  }
  return u;
}

flow run_maintain(members who, reclaim_options options, executor& home, reply<reclaim_report> done) {
  executor* on = &home;
  auto first =
      co_await answer_of<reclaim_report>([&](reply<reclaim_report> back) { reclaim_expired(who, options, *on, back); });
  if (!first) {
    done(fail(first.error()));
    co_return;
  }
  auto second = co_await answer_of<reclaim_report>(
      [&](reply<reclaim_report> back) { evict_above_mark(who, options, *on, back); });
  if (!second) {
    done(fail(second.error()));
    co_return;
  }
  reclaim_report all = *second;
  all.expired = first->expired;
  all.bytes += first->bytes;
  done(all);
}

}  // namespace

result<std::unique_ptr<local_store>> local_store::open(const local_store_options& o, executor& home, worker& blocking,
                                                       const unix_clock& wall) {
  std::unique_ptr<local_store> s(new local_store(home, wall));
  s->reclaim_ = o.reclaim;
  members who;
  who.epoch = o.epoch;
  who.replicas = o.client.parity;
  for (const auto& place : o.targets) {
    if (place.id == target_id{0} || who.targets.contains(place.id))
      return fail(errc::invalid_argument, "target id {} is 0 or there twice", place.id.value);
    std::string why = place.absent;
    if (place.device) {
      auto device = o.device;
      device.target = place.id;
      device.new_device = new_identity(o.device_seed, place.id);
      device.accept_blank_disk = device.accept_blank_disk || place.blank;
      device.renew = place.renew;
      auto opened = shard_store::open(*place.device, *place.records, device);
      if (opened) {
        const auto& r = (*opened)->report();
        if (r.rebuilt)
          s->notes_.push_back(
              fmt::format("target {}: records rebuilt from {} shards on disk", place.id.value, r.shards));
        if (r.repaired_headers > 0)
          s->notes_.push_back(fmt::format("target {}: {} chunk headers repaired", place.id.value, r.repaired_headers));
        if (r.dropped_records > 0)
          s->notes_.push_back(
              fmt::format("target {}: {} records dropped that name no shard; scrub makes good what is "
                          "missing",
                          place.id.value, r.dropped_records));
        s->targets_.push_back(std::make_unique<local_target>(place.id, **opened, blocking, home));
        if (!place.draining) who.placing.push_back({place.id.value, place.domain ? place.domain : place.id.value, 1});
        s->stores_[place.id] = std::move(*opened);
      } else {
        why = opened.error().message;
      }
    }
    if (!s->stores_.contains(place.id)) {
      s->notes_.push_back(fmt::format("target {} is absent: {}", place.id.value, why));
      s->targets_.push_back(std::make_unique<absent_target>(place.id, why, home));
    }
    who.targets[place.id] = s->targets_.back().get();
  }
  for (size_t i = 0; i < o.owners.size(); ++i) {
    TROUPE_TRY(auto index, block_index::open(*o.owners[i], o.index, wall.now(), home.now()));
    s->owners_.push_back(
        std::make_unique<local_owner>(owner_id{static_cast<uint32_t>(i + 1)}, *index, blocking, home, wall));
    s->indexes_.push_back(std::move(index));
    who.owners.push_back(s->owners_.back().get());
  }
  if (who.owners.empty()) return fail(errc::invalid_argument, "a store needs an index owner");
  s->client_ = std::make_unique<client>(o.client, std::move(who), home, blocking, wall);
  return s;
}

local_store::~local_store() = default;

shard_store* local_store::device(target_id id) {
  auto it = stores_.find(id);
  return it == stores_.end() ? nullptr : it->second.get();
}

struct local_store::upkeep : std::enable_shared_from_this<upkeep> {
  local_store* store = nullptr;  // null: stopped
  executor* home = nullptr;
  nanoseconds every{0};
  bool busy = false;
  std::function<void()> when_ended;

  void wait() {
    home->post_after(every, [self = shared_from_this()] { self->tick(); });
  }
  void tick() {
    if (!store) return;
    busy = true;
    store->maintain([self = shared_from_this()](result<reclaim_report>) {
      self->busy = false;
      if (self->store) return self->wait();
      if (self->when_ended) self->home->post(std::move(self->when_ended));
    });
  }
};

void local_store::keep_maintained(nanoseconds every) {
  upkeep_ = std::make_shared<upkeep>();
  upkeep_->store = this;
  upkeep_->home = &home_;
  upkeep_->every = every;
  upkeep_->wait();
}

void local_store::stop_maintaining(std::function<void()> done) {
  if (!upkeep_ || !upkeep_->busy) {
    if (upkeep_) upkeep_->store = nullptr;
    return home_.post(std::move(done));
  }
  upkeep_->store = nullptr;
  upkeep_->when_ended = std::move(done);
}

void local_store::maintain(reply<reclaim_report> done) { run_maintain(who(), reclaim_, home_, std::move(done)); }

void local_store::scrub(scrub_options options, reply<scrub_report> done) {
  kv::scrub(who(), std::move(options), home_, wall_, std::move(done));
}

}  // namespace troupe::kv
