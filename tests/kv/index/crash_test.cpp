// Every crash point of the index, with every number of lost batches: no record contradicts another, nothing that was
// acknowledged as safe is gone, and the counters are what the records say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kv/index/keys.hpp"
#include "kv/index/memory_db.hpp"
#include "kv/index/records.hpp"
#include "tests/kv/index/made_chain.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

struct cut {};  // thrown at the crash point

// Throws at the n-th point that is passed; remembers all names.
class cutter final : public crash_hook {
 public:
  explicit cutter(size_t at) : at_(at) {}
  void reach(std::string_view point) override {
    names_.insert(std::string(point));
    last_ = point;
    if (passed_++ == at_) throw cut{};
  }
  size_t passed() const { return passed_; }
  const std::set<std::string>& names() const { return names_; }
  const std::string& last() const { return last_; }

 private:
  const size_t at_;
  size_t passed_ = 0;
  std::set<std::string> names_;
  std::string last_;
};

// What a run has been told.
struct told {
  std::map<block_hash, extent_id> blocks;  // acknowledged and not removed since
  bool all_safe = true;                    // no call since is still open
};

// A life of an index with every kind of change. The same each time.
void live(block_index& index, told& t) {
  rng draw(77);
  uint64_t id = 1;
  std::vector<std::vector<block_hash>> chains{made_chain(draw, 40)};
  const auto put = [&](const std::vector<extent_info>& extents, int64_t now) {
    t.all_safe = false;
    const auto r = index.put(extents, now);
    ASSERT_TRUE(r) << r.error().message;
    t.all_safe = true;
    for (size_t i = 0; i < extents.size(); ++i)
      for (size_t j = 0; j < extents[i].hashes.size(); ++j) t.blocks[extents[i].hashes[j]] = r->winners[i][j].extent;
  };
  const auto remove = [&](const std::vector<extent_id>& ids, remove_why why, int64_t now) {
    t.all_safe = false;
    for (const auto& gone : ids) std::erase_if(t.blocks, [&](const auto& b) { return b.second == gone; });
    ASSERT_TRUE(index.remove(ids, why, now, {}));
    t.all_safe = true;
  };
  put(made_extents(chains[0], 0, 25, id), start_s);
  put(made_extents(chains[0], 25, 40, id), start_s + 10);
  chains.push_back(made_chain(draw, 60, chains[0], 20));
  put(made_extents(chains[1], 16, 60, id, traffic_class::chatbot), start_s + 4'000);
  ASSERT_TRUE(index.touch(chains[0], policies::ttl_touch::read, traffic_class::agent, start_s + 8'000));
  remove({{42, 3}}, remove_why::evicted, start_s + 8'000);
  const int64_t late = start_s + 4 * 86'400;
  put(made_extents(chains[0], 0, 20, id), late);  // takes over what has expired
  const auto plan = index.expired(late, 10);
  ASSERT_TRUE(plan);
  remove(plan->extents, remove_why::expired, late);
  std::vector<index_change> changes;
  const auto more = made_chain(draw, 16);
  changes.push_back({index_change::kind_t::put, made_extents(more, 0, 16, id)[0], 0xffff, late + 3'600});
  changes.push_back({index_change::kind_t::raise, made_extent_of(more, 0, 16, id - 1), 0, late + 7'200});
  ASSERT_TRUE(index.apply(changes));
}

void check_records(memory_db& database, const std::string& where) {
  SCOPED_TRACE(where);
  auto index = open_index(database);
  ASSERT_TRUE(index);
  ASSERT_EQ(findings(*index), std::vector<std::string>{});
  // Independently of `check`: every block record names an extent that owns it, every extent has exactly its expiry
  // entry.
  uint64_t extents = 0, blocks = 0, bytes = 0, owned = 0;
  std::string value;
  for (const auto& key : database.keys(family::extent)) {
    ASSERT_TRUE(*database.get(family::extent, key, value));
    const auto r = decode_extent(key, value);
    ASSERT_TRUE(r);
    ASSERT_TRUE(*database.get(family::expiry, expiry_key(expiry_entry_of(*r)), value));
    ++extents, owned += static_cast<uint64_t>(__builtin_popcount(r->owned));
    bytes += uint64_t{r->info.count} * r->info.block_bytes;
  }
  ASSERT_EQ(database.keys(family::expiry).size(), extents);
  for (const auto& key : database.keys(family::block)) {
    ASSERT_TRUE(*database.get(family::block, key, value));
    const auto b = decode_block(key, value);
    ASSERT_TRUE(b);
    ASSERT_TRUE(*database.get(family::extent, extent_key(b->place.extent), value));
    const auto r = decode_extent(extent_key(b->place.extent), value);
    ASSERT_TRUE(r && (r->owned >> b->place.ordinal & 1) && r->info.hashes[b->place.ordinal] == *parse_block_key(key));
    ++blocks;
  }
  ASSERT_EQ(blocks, owned);
  const auto s = index->stats(start_s);
  ASSERT_EQ(s.extents, extents);
  ASSERT_EQ(s.blocks, blocks);
  ASSERT_EQ(s.bytes, bytes);
}

TEST(crash_test, every_point_and_every_lost_suffix) {
  std::set<std::string> seen;
  size_t cases = 0;
  for (size_t point = 0;; ++point) {
    bool finished = false;
    for (size_t keep = 0;; ++keep) {
      memory_db database;
      cutter hook(point);
      told t;
      finished = true;
      {
        const auto index = open_index(database, {.hold_after_open = false, .hook = &hook});
        try {
          live(*index, t);
        } catch (const cut&) {
          finished = false;
        }
      }
      ASSERT_FALSE(HasFatalFailure());
      seen.insert(hook.names().begin(), hook.names().end());
      const size_t unsynced = database.unsynced();
      if (keep > unsynced) break;
      database.power_loss(keep);
      check_records(database,
                    fmt::format("cut at point {} ({}), {} of {} batches kept", point, hook.last(), keep, unsynced));
      ASSERT_FALSE(HasFatalFailure());
      ++cases;
    }
    if (finished) break;
  }
  for (const char* name :
       {"index.put.before", "index.put.written", "index.raise.before", "index.raise.written", "index.remove.before",
        "index.remove.written", "index.follow.before", "index.follow.written"})
    EXPECT_TRUE(seen.contains(name)) << name;
  EXPECT_GT(cases, 80u);
}

TEST(crash_test, nothing_acknowledged_is_lost_when_writes_are_synced) {
  for (size_t point = 0;; ++point) {
    memory_db database;
    cutter hook(point);
    told t;
    bool finished = true;
    {
      const auto index = open_index(database, {.hold_after_open = false, .hook = &hook, .sync = sync_write::yes});
      try {
        live(*index, t);
      } catch (const cut&) {
        finished = false;
      }
    }
    ASSERT_FALSE(HasFatalFailure());
    database.power_loss(0);
    check_records(database, fmt::format("cut at point {} ({})", point, hook.last()));
    ASSERT_FALSE(HasFatalFailure());
    const auto index = open_index(database);
    for (const auto& [hash, extent] : t.blocks) {
      const auto place = (*index->lookup(std::span(&hash, 1), start_s))[0];
      ASSERT_TRUE(place) << to_string(hash) << " was acknowledged before " << hook.last();
      if (t.all_safe) {
        ASSERT_EQ(place->extent, extent);
      }
    }
    if (finished) break;
  }
}

}  // namespace
}  // namespace troupe::kv
