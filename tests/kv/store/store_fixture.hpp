// A store on memory twins that a test can cut, break and open again.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/device/memory_disk.hpp"
#include "kv/hash/block_hash.hpp"
#include "kv/index/memory_db.hpp"
#include "kv/store/local_store.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv::testing_support {

/// TROUPE_SEED, or a new one; printed.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TROUPE_SEED");
    const uint64_t s = given ? std::strtoull(given, nullptr, 10) : entropy_seed() % 1'000'000;
    printf("TROUPE_SEED=%llu\n", static_cast<unsigned long long>(s));
    fflush(stdout);
    return s;
  }();
  return seed;
}

/// The first finding in words.
inline std::string first_note(const scrub_report& r) { return r.notes.empty() ? "without a note" : r.notes[0]; }

/// Whether the long version of a test is asked for.
inline bool long_version() {
  const char* v = std::getenv("TROUPE_LONG");
  return v && std::string(v) == "1";
}

/// What survives a process: disks and databases.
struct twin_world {
  std::vector<std::unique_ptr<memory_disk>> disks;  // of targets 1, 2, …; null: taken away
  std::unique_ptr<memory_db> records;               // of all targets
  std::vector<std::unique_ptr<memory_db>> owners;

  twin_world(size_t targets, size_t owner_count, uint64_t disk_bytes = 1ull << 40) {
    for (size_t i = 0; i < targets; ++i)
      disks.push_back(std::make_unique<memory_disk>(memory_disk_options{
          .capacity_bytes = disk_bytes, .seed = i + 1, .faults = {}, .crash = nullptr, .name = "memory"}));
    records = std::make_unique<memory_db>();
    for (size_t i = 0; i < owner_count; ++i) owners.push_back(std::make_unique<memory_db>());
  }
  twin_world() = default;

  /// The same as a new process would find it when this one dies now.
  twin_world copy() const;
};

/// Every family of a database copied.
inline std::unique_ptr<memory_db> copy_of(const memory_db& from) {
  auto to = std::make_unique<memory_db>();
  for (size_t f = 0; f < family_count; ++f) {
    write_batch b;
    std::string value;
    for (const auto& key : from.keys(static_cast<family>(f))) {
      if (from.get(static_cast<family>(f), key, value).value_or(false)) b.put(static_cast<family>(f), key, value);
    }
    if (!b.empty()) {
      EXPECT_TRUE(to->write(b, sync_write::yes));
    }
  }
  return to;
}

inline twin_world twin_world::copy() const {
  twin_world w;
  for (const auto& d : disks) w.disks.push_back(d ? d->copy() : nullptr);
  w.records = copy_of(*records);
  for (const auto& o : owners) w.owners.push_back(copy_of(*o));
  return w;
}

/// Shape of the store.
struct twin_options {
  uint32_t data = 10, parity = 2;
  uint64_t chunk_bytes = 1 << 20, capacity_bytes = 64 << 20;
  uint64_t seed = 1;
  crash_hook* crash = nullptr;
  nanoseconds hedge_after{0};
  double high = 0.9, low = 0.85;
  bool hold_after_open = false;
  uint32_t draining = 0;  // target that gets no new shards; 0: none
};

/// One life of the store: an executor stepped by hand and everything on it.
class twin_store {
 public:
  twin_store(twin_world& world, const twin_options& o, manual_unix_clock& wall) : wall_(wall), work_(home_) {
    hash_scheme scheme;
    local_store_options s;
    for (size_t i = 0; i < world.disks.size(); ++i) {
      local_target_place p;
      p.id = target_id{static_cast<uint32_t>(i + 1)};
      p.device = world.disks[i].get();
      p.records = world.records.get();
      p.draining = p.id.value == o.draining;
      if (!p.device) p.absent = "taken away";
      s.targets.push_back(p);
    }
    for (auto& d : world.owners) s.owners.push_back(d.get());
    s.device.chunk_bytes = o.chunk_bytes;
    s.device.capacity_bytes = o.capacity_bytes;
    s.device.crash = o.crash;
    s.device.accept_blank_disk = true;  // tests put new disks in the place of lost ones
    s.index.hook = o.crash;
    s.index.hold_after_open = o.hold_after_open;
    s.client.data = o.data;
    s.client.parity = o.parity;
    s.client.scheme = scheme.id();
    s.client.seed = o.seed;
    s.client.crash = o.crash;
    s.client.hedge_after = o.hedge_after;
    s.reclaim.high = o.high;
    s.reclaim.low = o.low;
    s.reclaim.crash = o.crash;
    s.device_seed = o.seed + 7;
    crash_ = o.crash;
    auto opened = local_store::open(s, home_, work_, wall_);
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }

  local_store& operator*() { return *store_; }
  local_store* operator->() { return store_.get(); }
  manual_executor& home() { return home_; }
  executor_worker& work() { return work_; }

  /// Steps until the answer is there.
  template <class T>
  result<T> wait(const std::function<void(reply<T>)>& call) {
    std::shared_ptr<std::optional<result<T>>> got = std::make_shared<std::optional<result<T>>>();
    call([got](result<T> r) { got->emplace(std::move(r)); });
    if (!home_.run_until([&] { return got->has_value(); })) {
      ADD_FAILURE() << "no answer";
      return fail(errc::internal, "no answer");
    }
    return std::move(**got);
  }
  result<put_chain_reply> put(put_chain_request r) {
    return wait<put_chain_reply>([&](reply<put_chain_reply> back) { store_->io().put(std::move(r), back); });
  }
  result<get_chain_reply> get(get_chain_request r) {
    auto out = wait<get_chain_reply>([&](reply<get_chain_reply> back) { store_->io().get(std::move(r), back); });
    settle();
    return out;
  }
  result<uint64_t> match(const std::vector<block_hash>& chain) {
    return wait<uint64_t>([&](reply<uint64_t> back) { store_->io().match(chain, back); });
  }
  result<scrub_report> scrub(bool repair, bool restore = false, bool drop_lost = true) {
    scrub_options o;
    o.drop_lost = drop_lost;
    o.repair = repair;
    o.restore = restore;
    o.orphan_grace_s = 0;
    o.crash = crash_;
    return wait<scrub_report>([&](reply<scrub_report> back) { store_->scrub(o, back); });
  }
  result<reclaim_report> maintain() {
    return wait<reclaim_report>([&](reply<reclaim_report> back) { store_->maintain(back); });
  }
  /// What runs after an answer: touches, freed shards.
  void settle() {
    bool idle = false;
    store_->io().idle([&] { idle = true; });
    EXPECT_TRUE(home_.run_until([&] { return idle; }));
  }

 private:
  manual_executor home_;
  manual_unix_clock& wall_;
  executor_worker work_;
  crash_hook* crash_ = nullptr;
  std::unique_ptr<local_store> store_;
};

/// A chain with known tokens and bytes, drawn from a seed.
struct made_chain {
  std::vector<block_hash> hashes;
  std::vector<std::vector<std::byte>> blocks;

  made_chain(uint64_t seed, size_t count, size_t block_bytes, std::string_view salt = "", size_t shared = 0,
             uint64_t shared_seed = 0) {
    std::vector<uint32_t> tokens;
    rng own(seed, 1), common(shared_seed, 1);
    for (size_t i = 0; i < count * 128; ++i)
      tokens.push_back(static_cast<uint32_t>((i < shared * 128 ? common : own).below(100'000)));
    auto h = hash_chain(hash_scheme{}, salt, tokens);
    EXPECT_TRUE(h);
    hashes = *h;
    for (size_t i = 0; i < count; ++i) {
      // The bytes follow from the hash, as in a model: the same key has the same bytes.
      uint64_t key;
      std::memcpy(&key, hashes[i].bytes.data(), 8);
      rng bytes(key, 2);
      auto& b = blocks.emplace_back(block_bytes);
      for (size_t at = 0; at < b.size(); at += 8) {
        const uint64_t v = bytes.next();
        std::memcpy(b.data() + at, &v, std::min<size_t>(8, b.size() - at));
      }
    }
  }
  put_chain_request put(size_t from = 0, size_t to = SIZE_MAX, traffic_class c = traffic_class::agent) const {
    put_chain_request r;
    to = std::min(to, blocks.size());
    r.chain.assign(hashes.begin(), hashes.begin() + static_cast<ptrdiff_t>(to));
    r.first = from;
    for (size_t i = from; i < to; ++i) r.blocks.emplace_back(blocks[i]);
    r.traffic = c;
    return r;
  }
};

/// Reads [from, to) of a chain and checks every byte that is served.
struct read_back {
  std::vector<std::vector<std::byte>> memory;
  get_chain_reply reply;
  std::optional<error> refused;

  read_back(twin_store& store, const made_chain& c, size_t from = 0, size_t to = SIZE_MAX) {
    to = std::min(to, c.blocks.size());
    get_chain_request r;
    r.chain.assign(c.hashes.begin(), c.hashes.begin() + static_cast<ptrdiff_t>(to));
    r.first = from;
    for (size_t i = from; i < to; ++i) memory.emplace_back(c.blocks[i].size());
    for (auto& m : memory) r.into.emplace_back(m);
    auto got = store.get(std::move(r));
    if (!got) {
      refused = got.error();
      return;
    }
    reply = *got;
    for (size_t i = 0; i < reply.blocks; ++i) EXPECT_TRUE(memory[i] == c.blocks[from + i]) << "block " << from + i;
  }
};

}  // namespace troupe::kv::testing_support
