// A device that is used, cut at a chosen place, and examined: the oracle of the crash tests of the shard store.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/kv/device/shard_fixture.hpp"

namespace troupe::kv::testing_support {

/// Thrown by the hook at the chosen pass.
struct cut_here {};

/// Counts crash points and throws at pass number `at` (from 0). A torn write always cuts.
class cutter final : public crash_hook {
 public:
  explicit cutter(uint64_t at) : at_(at) {}
  void reach(std::string_view point) override {
    seen.emplace(point);
    last = point;
    if (point == "disk.torn" || passes++ == at_) throw cut_here{};
  }
  std::set<std::string> seen;
  std::string last;
  uint64_t passes = 0;

 private:
  const uint64_t at_;
};

/// One call of the store: all of its changes become visible, or none.
struct operation {
  std::vector<made_shard> puts;
  std::vector<shard_key> removes;
  bool rebuild = false;
};

/// Shards that must be there, by key.
using shard_set = std::map<shard_key, made_shard>;

/// What the set is after `op`.
inline shard_set after(shard_set s, const operation& op) {
  for (const made_shard& p : op.puts) s.insert_or_assign(p.key(), p);
  for (const shard_key& k : op.removes) s.erase(k);
  return s;
}

/// New shards, batches, replacements, removals, a second chunk, freed runs that are used again, a rebuild.
inline std::vector<operation> workload() {
  const auto small = [](uint64_t seed) { return make_shard(seed, seed % 3, 9'000); };
  const auto large = [](uint64_t seed) { return make_shard(seed, 0, 400'000); };
  const auto newer = [](made_shard s) {
    s.extent.epoch = storage_epoch{99};
    return s;
  };
  return {{.puts = {small(1)}},
          {.puts = {small(2)}},
          {.puts = {small(3), small(4), small(5)}},
          {.puts = {newer(small(1))}},
          {.removes = {small(2).key()}},
          {.puts = {large(20)}},
          {.puts = {large(21), small(6)}},
          {.removes = {small(3).key(), large(20).key()}},
          {.puts = {large(22)}},
          {.puts = {newer(small(4)), small(7)}},
          {.rebuild = true},
          {.puts = {small(8), small(9)}},
          {.removes = {large(22).key(), small(1).key()}}};
}

/// The device, its database, and what has been acknowledged.
struct crash_world {
  explicit crash_world(durability d, crash_hook* hook = nullptr) : device({.crash = hook}), options(small_device()) {
    options.durable = d;
    options.crash = hook;
  }

  memory_disk device;
  memory_db records;
  shard_store_options options;
  shard_set committed;
  const operation* under_way = nullptr;

  /// Runs the workload until the hook cuts. True: it came to its end.
  bool run(const std::vector<operation>& ops) {
    try {
      auto store = shard_store::open(device, records, options);
      EXPECT_TRUE(store) << store.error().message;
      for (const operation& op : ops) {
        under_way = &op;
        apply(**store, op);
        committed = after(std::move(committed), op);
        under_way = nullptr;
      }
      return true;
    } catch (const cut_here&) {
      return false;
    }
  }

  static void apply(shard_store& store, const operation& op) {
    std::vector<shard_put> puts;
    for (const made_shard& s : op.puts) puts.push_back(s.put());
    if (!puts.empty()) {
      const auto r = store.put(puts);
      EXPECT_TRUE(r) << r.error().message;
    }
    if (!op.removes.empty()) {
      const auto r = store.remove(op.removes);
      EXPECT_TRUE(r) << r.error().message;
    }
    if (op.rebuild) {
      const auto r = store.rebuild();
      EXPECT_TRUE(r) << r.error().message;
    }
  }

  /// The store as it is opened again, without a hook.
  std::unique_ptr<shard_store> reopen() {
    shard_store_options o = options;
    o.crash = nullptr;
    return opened(device, records, o);
  }

  /// Exactly the acknowledged shards are there, or those and the whole of the operation that was cut; all hold.
  ::testing::AssertionResult kept_its_word(shard_store& store) const {
    if (is(store, committed)) return ::testing::AssertionSuccess();
    const auto why = under_way ? is(store, after(committed, *under_way)) : is(store, committed);
    return why;
  }

  /// Every acknowledged shard is there, in its version or the one under way (a rebuild may know more); all that is
  /// visible holds.
  ::testing::AssertionResult kept_at_least(shard_store& store) const {
    const shard_set next = under_way ? after(committed, *under_way) : committed;
    for (const auto& [k, s] : committed) {
      const auto it = next.find(k);
      if (it == next.end()) continue;
      if (!holds(store, s) && !holds(store, it->second))
        return ::testing::AssertionFailure() << "lost " << to_string(k.extent);
    }
    for (const auto& [k, f] : all_of(store))
      if (auto r = store.check(k.extent, k.shard); !r) return ::testing::AssertionFailure() << r.error().message;
    return ::testing::AssertionSuccess();
  }

  /// What is visible has the right bytes or says that it does not.
  static ::testing::AssertionResult serves_nothing_wrong(shard_store& store, const std::vector<operation>& ops) {
    shard_set every;
    for (const operation& op : ops)
      for (const made_shard& s : op.puts) every.insert_or_assign(s.key(), s);
    for (const auto& [k, f] : all_of(store)) {
      std::vector<std::byte> out(f.payload_bytes);
      const auto r = store.read(k.extent, k.shard, 0, out);
      if (r ? out != every.at(k).payload : r.error().code != errc::corrupt)
        return ::testing::AssertionFailure() << "shard " << k.shard << " of " << to_string(k.extent);
    }
    return ::testing::AssertionSuccess();
  }

  static ::testing::AssertionResult is(shard_store& store, const shard_set& wanted) {
    const auto there = all_of(store);
    if (there.size() != wanted.size())
      return ::testing::AssertionFailure() << there.size() << " shards instead of " << wanted.size();
    for (const auto& [k, s] : wanted)
      if (auto r = holds(store, s); !r) return r;
    return ::testing::AssertionSuccess();
  }
};

}  // namespace troupe::kv::testing_support
