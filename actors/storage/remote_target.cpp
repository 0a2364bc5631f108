#include <cstring>

#include "actors/protocol/messages.hpp"
#include "actors/storage/remote.hpp"

namespace troupe::actors {

kv::aligned_buffer region_book::allocate(size_t bytes) {
  auto region = plane_->allocate((bytes + kv::run_bytes - 1) / kv::run_bytes * kv::run_bytes);
  if (!region) return kv::aligned_buffer(bytes);
  const auto memory = (*region)->bytes();
  {
    std::lock_guard lock(mutex_);
    regions_[memory.data()] = *region;
  }
  // Forgotten before the memory goes.
  std::shared_ptr<const void> keep(memory.data(), [self = shared_from_this(), region = *region](const void* p) mutable {
    {
      std::lock_guard lock(self->mutex_);
      self->regions_.erase(static_cast<const std::byte*>(p));
    }
    region.reset();
  });
  return {memory, std::move(keep)};
}

std::optional<std::pair<transport::region_ptr, uint64_t>> region_book::find(std::span<const std::byte> bytes) const {
  std::lock_guard lock(mutex_);
  auto it = regions_.upper_bound(bytes.data());
  if (it == regions_.begin()) return std::nullopt;
  --it;
  auto region = it->second.lock();
  if (!region) return std::nullopt;
  const auto at = static_cast<uint64_t>(bytes.data() - it->first);
  if (at + bytes.size() > region->bytes().size()) return std::nullopt;
  return std::pair{std::move(region), at};
}

namespace {

constexpr size_t worth_another_core = 64 << 10;  // bytes to check or copy

class remote_target final : public kv::target {
 public:
  remote_target(kv::target_id id, std::shared_ptr<store_peer> peer, std::shared_ptr<remote_store> store)
      : id_(id), peer_(std::move(peer)), store_(std::move(store)) {}
  kv::target_id id() const override { return id_; }

  void put(kv::put_shard request, kv::reply<void> done) override {
    auto p = std::make_shared<putting>(putting{store_->body.lock(), std::move(request), std::move(done), {}, {}, 0});
    if (!actor()) return refuse(p->done);
    if (auto where = store_->book->find(p->request.payload)) {
      p->region = std::move(where->first);
      p->offset = where->second;
      return send(p);
    }
    // Not from registered memory: one more copy.
    const bool taken = store_->room->take(p->request.payload.size(), [this, p](staging_slot slot) {
      p->slot = slot;
      p->region = store_->room->region();
      p->offset = slot.offset;
      std::memcpy(store_->room->bytes(slot).data(), p->request.payload.data(), slot.bytes);
      send(p);
    });
    if (!taken) full(p->done);
  }

  void read(kv::read_shard request, kv::reply<void> done) override {
    auto r = std::make_shared<reading>(reading{store_->body.lock(), std::move(request), std::move(done), 0, {}});
    for (const auto& s : r->request.into) r->bytes += s.size();
    if (r->bytes == 0) {
      store_->home->post([r] { r->done({}); });
      return;
    }
    if (!actor()) return refuse(r->done);
    const bool taken = store_->room->take(r->bytes, [this, r](staging_slot slot) {
      r->slot = slot;
      ask(r);
    });
    if (!taken) full(r->done);
  }

  void remove(std::vector<kv::shard_key> shards, kv::reply<void> done) override {
    kv_shard_remove m;
    m.shards = std::move(shards);
    plain(std::move(m), std::move(done));
  }

  void list(std::optional<kv::shard_key> after, size_t limit, kv::reply<std::vector<kv::shard_footer>> done) override {
    kv_shard_list m;
    m.from_start = !after;
    if (after) m.after = *after;
    m.limit = limit;
    store_->call<kv_shard_list_reply>(peer_, actor(), std::move(m),
                                      [done = std::move(done)](result<kv_shard_list_reply> a) {
                                        if (!a) return done(fail(std::move(a.error())));
                                        done(std::move(a->shards));
                                      });
  }

  void check(kv::shard_key at, kv::reply<void> done) override { plain(kv_shard_check{at}, std::move(done)); }

  void usage(kv::reply<kv::shard_usage> done) override {
    store_->call<kv_usage_reply>(peer_, actor(), kv_usage_query{}, [done = std::move(done)](result<kv_usage_reply> a) {
      if (!a) return done(fail(std::move(a.error())));
      done(a->usage);
    });
  }

 private:
  struct putting {
    std::shared_ptr<void> keep;  // first: goes after what uses it
    kv::put_shard request;
    kv::reply<void> done;
    transport::region_ptr region;
    staging_slot slot;  // unless the payload lies in registered memory
    uint64_t offset = 0;
  };
  struct reading {
    std::shared_ptr<void> keep;
    kv::read_shard request;
    kv::reply<void> done;
    uint64_t bytes = 0;
    staging_slot slot;
  };

  storage_target_actor actor() const {
    if (!peer_->up) return {};
    auto it = peer_->targets.find(id_);
    return it == peer_->targets.end() ? storage_target_actor{} : it->second;
  }

  void refuse(const kv::reply<void>& done) {
    store_->home->post([done, id = id_, seat = peer_->seat, why = peer_->up ? "its disk is absent" : peer_->why] {
      done(fail(errc::unavailable, "target {} of storage node {}: {}", id.value, seat, why));
    });
  }
  void full(const kv::reply<void>& done) {
    store_->home->post([done, id = id_] {
      done(fail(errc::exhausted, "target {}: no room to move bytes, and too much waits; ask for less at a time",
                id.value));
    });
  }

  template <class Request>
  void plain(Request m, kv::reply<void> done) {
    store_->call<ack>(peer_, actor(), std::move(m), [done = std::move(done)](result<ack> a) {
      if (!a) return done(fail(std::move(a.error())));
      done({});
    });
  }

  void send(const std::shared_ptr<putting>& p) {
    kv_put m;
    m.extent = *p->request.info;
    m.shard = p->request.shard;
    m.address = store_->plane->address();
    m.region = p->region->descriptor().encode();
    m.offset = p->offset;
    m.bytes = p->request.payload.size();
    m.crc = kv::crc32c(p->request.payload);
    store_->call<ack>(peer_, actor(), std::move(m), [this, p](result<ack> a) {
      if (p->slot.bytes > 0) store_->room->give_back(p->slot);
      if (!a) return p->done(fail(std::move(a.error())));
      p->done({});
    });
  }

  void ask(const std::shared_ptr<reading>& r) {
    kv_read m;
    m.at = r->request.at;
    m.offset = r->request.offset;
    m.bytes = r->bytes;
    const auto from = actor();
    store_->call<kv_read_reply>(peer_, from, std::move(m), [this, r, from](result<kv_read_reply> a) {
      if (!a) return end(r, fail(std::move(a.error())));
      pull(r, from, *a);
    });
  }

  void pull(const std::shared_ptr<reading>& r, const storage_target_actor& from, const kv_read_reply& a) {
    auto region = transport::remote_region::decode(a.region);
    if (!region) return end(r, fail(region.error()));
    if (!peer_->up || !peer_->plane)
      return end(r, fail(errc::unavailable, "storage node {}: {}", peer_->seat, peer_->why));
    // On the transport's thread only the executor is touched.
    auto done = [this, home = store_->home, r, from, crc = a.crc, ticket = a.ticket](result<void> got) {
      home->post([this, r, from, crc, ticket, got = std::move(got)] { pulled(r, from, crc, ticket, got); });
    };
    auto begun = store_->plane->get(*peer_->plane, store_->room->region(), r->slot.offset, *region, a.offset, r->bytes,
                                    std::move(done));
    if (!begun) pulled(r, from, a.crc, a.ticket, begun);
  }

  void pulled(const std::shared_ptr<reading>& r, const storage_target_actor& from, uint32_t crc, uint64_t ticket,
              const result<void>& got) {
    tell(store_->self, from, kv_read_done{ticket});
    if (!got)
      return end(
          r, fail(errc::unavailable, "target {} of storage node {}: {}", id_.value, peer_->seat, got.error().message));
    auto take = [r, crc, bytes = store_->room->bytes(r->slot), id = id_]() -> result<void> {
      if (kv::crc32c(bytes) != crc)
        return fail(errc::stale, "target {}: what was pulled is not what was read; its room had been given back",
                    id.value);
      auto copy = [&] {
        const std::byte* at = bytes.data();
        for (const auto& s : r->request.into) {
          if (!s.empty()) std::memcpy(s.data(), at, s.size());
          at += s.size();
        }
      };
      if (r->request.guard)
        r->request.guard->deliver(copy);
      else
        copy();
      return {};
    };
    if (r->bytes >= worth_another_core && store_->compute->submit([this, home = store_->home, r, take] {
          home->post([this, r, out = take()] { end(r, out); });
        }))
      return;
    end(r, take());
  }

  void end(const std::shared_ptr<reading>& r, const result<void>& out) {
    store_->room->give_back(r->slot);
    r->done(out);
  }

  const kv::target_id id_;
  const std::shared_ptr<store_peer> peer_;
  const std::shared_ptr<remote_store> store_;
};

}  // namespace

std::unique_ptr<kv::target> make_remote_target(kv::target_id id, std::shared_ptr<store_peer> peer,
                                               std::shared_ptr<remote_store> store) {
  return std::make_unique<remote_target>(id, std::move(peer), std::move(store));
}

}  // namespace troupe::actors
