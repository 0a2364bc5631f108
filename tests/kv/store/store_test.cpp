// Putting, matching and reading chains on a whole store of memory twins.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;
constexpr int64_t day = 86'400, start = 1'800'000'000;

struct store_fixture {
  manual_unix_clock wall{start};
  twin_world world;
  twin_options options;
  std::unique_ptr<twin_store> store;
  explicit store_fixture(twin_options o = {}, size_t targets = 12, size_t owners = 3)
      : world(targets, owners), options(o) {
    open();
  }
  void open() {
    store.reset();
    ++options.seed;  // every life draws ids of its own
    store = std::make_unique<twin_store>(world, options, wall);
  }
  uint64_t shards() {
    uint64_t n = 0;
    for (uint32_t t = 1; t <= world.disks.size(); ++t) {
      if (auto* d = (*store)->device(target_id{t})) n += d->usage().shards;
    }
    return n;
  }
  size_t extents() {
    auto r = store->scrub(false);
    EXPECT_TRUE(r);
    EXPECT_TRUE(r && r->clean()) << (r && !r->notes.empty() ? first_note(*r) : "");
    return r ? r->extents : 0;
  }
};

TEST(store, what_was_put_is_matched_and_read_back_also_after_a_restart) {
  store_fixture f;
  made_chain c(test_seed(), 37, 1000);
  auto put = f.store->put(c.put());
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->stored, 37u);
  EXPECT_EQ(put->extents, 3u);
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(f.store->match(c.hashes).value_or(0), 37u);
    read_back all(*f.store, c);
    EXPECT_EQ(all.reply.blocks, 37u);
    EXPECT_FALSE(all.reply.stopped);
    read_back some(*f.store, c, 13, 18);
    EXPECT_EQ(some.reply.blocks, 5u);
    EXPECT_EQ(some.reply.extents, 2u);
    f.store->settle();
    f.open();
  }
  EXPECT_EQ(f.extents(), 3u);
}

TEST(store, match_is_the_longest_shared_chain) {
  store_fixture f;
  rng random(test_seed());
  made_chain base(random.next(), 50, 64);
  ASSERT_TRUE(f.store->put(base.put()));
  for (int i = 0; i < 60; ++i) {
    // Another conversation that shares the first blocks.
    const size_t shared = random.below(51), length = shared + random.below(40);
    made_chain other(random.next(), length == 0 ? 1 : length, 64, "", 0);
    std::vector<block_hash> chain(base.hashes.begin(), base.hashes.begin() + static_cast<ptrdiff_t>(shared));
    for (size_t b = shared; b < other.hashes.size(); ++b) chain.push_back(other.hashes[b]);
    EXPECT_EQ(f.store->match(chain).value_or(999), shared);
  }
}

TEST(store, a_second_put_of_the_same_stores_nothing) {
  store_fixture f;
  made_chain c(test_seed(), 20, 500);
  ASSERT_TRUE(f.store->put(c.put()));
  const uint64_t before = f.shards();
  auto again = f.store->put(c.put());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->stored, 0u);
  EXPECT_EQ(again->present, 20u);
  EXPECT_EQ(f.shards(), before);
}

TEST(store, partial_extents_are_completed_by_new_ones_and_never_cross_a_slot) {
  store_fixture f;
  made_chain c(test_seed(), 40, 300);
  ASSERT_TRUE(f.store->put(c.put(0, 5)));
  ASSERT_TRUE(f.store->put(c.put(0, 7)));
  auto rest = f.store->put(c.put(3, 40));
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->present, 4u);  // 3 to 6
  EXPECT_EQ(rest->stored, 33u);  // 7..15, 16..31, 32..39
  EXPECT_EQ(rest->extents, 3u);
  read_back all(*f.store, c);
  EXPECT_EQ(all.reply.blocks, 40u);
  EXPECT_EQ(f.extents(), 5u);
}

TEST(store, blocks_of_different_sizes_come_back_with_their_true_length) {
  store_fixture f;
  made_chain c(test_seed(), 18, 700);
  c.blocks[17].resize(123);
  c.blocks[3].resize(1);
  ASSERT_TRUE(f.store->put(c.put()));
  read_back all(*f.store, c);
  EXPECT_EQ(all.reply.blocks, 18u);
  c.blocks[5].resize(600);  // a reader with another idea of the size gets what lies before
  read_back wrong(*f.store, c);
  EXPECT_EQ(wrong.reply.blocks, 5u);
  EXPECT_EQ(wrong.reply.stopped->code, errc::invalid_argument);
}

TEST(store, tenants_and_token_counts_share_nothing) {
  store_fixture f;
  const uint64_t seed = test_seed();
  made_chain a(seed, 20, 100, "tenant a"), b(seed, 20, 100, "tenant b");
  ASSERT_TRUE(f.store->put(a.put()));
  EXPECT_EQ(f.store->match(b.hashes).value_or(99), 0u);
  read_back other(*f.store, b);
  EXPECT_EQ(other.reply.blocks, 0u);
  EXPECT_EQ(other.reply.stopped->code, errc::not_found);
  auto wrong = a.hashes;
  for (auto& h : wrong) h.tokens *= 2;
  EXPECT_EQ(f.store->match(wrong).value_or(99), 0u);
}

// Two writers of the same keys with other bytes, in every interleaving that the seed draws.
TEST(store, of_two_writers_one_wins_whole) {
  rng random(test_seed());
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    store_fixture f({.data = 4, .parity = 2}, 7, 3);
    made_chain a(random.next(), 24, 200);
    made_chain b = a;
    for (auto& block : b.blocks) {
      for (auto& x : block) x = ~x;
    }
    auto options = (*f.store)->io().options();
    options.seed = 4711;
    executor_worker slow(f.store->home(), nanoseconds(random.below(3)));
    client second(options, (*f.store)->who(), f.store->home(), slow, f.wall);
    f.store->work().set_delay(nanoseconds(random.below(3)));
    int answers = 0;
    const size_t from = random.below(20);
    (*f.store)->io().put(a.put(), [&](result<put_chain_reply> r) { answers += r ? 1 : 0; });
    for (uint64_t n = random.below(120); n > 0; --n) f.store->home().step() || f.store->home().advance_to_next();
    second.put(b.put(from), [&](result<put_chain_reply> r) { answers += r ? 1 : 0; });
    ASSERT_TRUE(f.store->home().run_until([&] { return answers == 2; }));
    f.store->home().run_until([] { return false; });

    get_chain_request r;
    std::vector<std::vector<std::byte>> memory(24, std::vector<std::byte>(200));
    r.chain = a.hashes;
    for (auto& m : memory) r.into.emplace_back(m);
    auto got = f.store->get(std::move(r));
    ASSERT_TRUE(got);
    ASSERT_EQ(got->blocks, 24u);
    for (size_t i = 0; i < 24; ++i) ASSERT_TRUE(memory[i] == a.blocks[i] || memory[i] == b.blocks[i]) << i;
    // What lost is gone: every shard that exists is named by the index.
    auto verify = f.store->scrub(false);
    ASSERT_TRUE(verify);
    ASSERT_TRUE(verify->clean()) << first_note(*verify);
    ASSERT_EQ(f.shards(), verify->extents * 6);
  }
}

TEST(store, a_hole_truncates) {
  store_fixture f;
  made_chain c(test_seed(), 48, 100);
  ASSERT_TRUE(f.store->put(c.put()));
  auto places = f.store->wait<std::vector<std::optional<block_place>>>(
      [&](reply<std::vector<std::optional<block_place>>> back) { (*f.store)->io().lookup(c.hashes, 0, back); });
  ASSERT_TRUE(places);
  const extent_id middle = (*places)[20]->extent;
  for (owner* o : (*f.store)->who().owners) {
    ASSERT_TRUE(f.store->wait<remove_reply>(
        [&](reply<remove_reply> back) { o->remove({middle}, remove_why::replaced, back); }));
  }
  read_back all(*f.store, c);
  EXPECT_EQ(all.reply.blocks, 16u);
  EXPECT_EQ(all.reply.stopped->code, errc::not_found);
  read_back behind(*f.store, c, 32, 48);
  EXPECT_EQ(behind.reply.blocks, 16u);
}

TEST(store, the_index_survives_the_loss_of_owners) {
  store_fixture f({.data = 4, .parity = 2}, 8, 5);
  made_chain c(test_seed(), 200, 64);
  ASSERT_TRUE(f.store->put(c.put()));
  f.store.reset();
  f.world.owners.erase(f.world.owners.begin() + 1);  // two of five, with all that they had
  f.world.owners.erase(f.world.owners.begin() + 2);
  // Numbers of the others change with their place here, so every slot may have new owners: scrub tells them.
  f.open();
  auto repair = f.store->scrub(true);
  ASSERT_TRUE(repair);
  EXPECT_EQ(repair->lost, 0u);
  EXPECT_EQ(f.store->match(c.hashes).value_or(0), 200u);
  read_back all(*f.store, c);
  EXPECT_EQ(all.reply.blocks, 200u);
}

TEST(store, an_owner_that_does_not_answer_is_replaced_by_its_replicas) {
  store_fixture f({.data = 4, .parity = 2}, 8, 4);
  made_chain c(test_seed(), 100, 64), more(test_seed() + 1, 100, 64);
  ASSERT_TRUE(f.store->put(c.put()));
  // Writes of one owner fail: puts go to the next one.
  f.world.owners[0]->fail_writes(error{errc::io, "disk gone"});
  auto put = f.store->put(more.put());
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->stored, 100u);
}

TEST(store, a_read_extends_and_a_match_does_not) {
  store_fixture f;
  made_chain c(test_seed(), 20, 100), d(test_seed() + 1, 20, 100);
  ASSERT_TRUE(f.store->put(c.put(0, SIZE_MAX, traffic_class::agent)));
  ASSERT_TRUE(f.store->put(d.put(0, SIZE_MAX, traffic_class::chatbot)));
  f.wall.advance(2 * day);
  EXPECT_EQ(f.store->match(c.hashes).value_or(0), 20u);
  EXPECT_EQ(read_back(*f.store, c, 0, 17).reply.blocks, 17u);  // the last extent too, for its first block
  f.wall.advance(2 * day);
  EXPECT_EQ(f.store->match(c.hashes).value_or(0), 20u);  // 4 days old, read 2 days ago
  EXPECT_EQ(f.store->match(d.hashes).value_or(0), 20u);
  f.wall.advance(day + 7200);
  EXPECT_EQ(f.store->match(c.hashes).value_or(99), 0u);  // invisible at once
  EXPECT_EQ(read_back(*f.store, c).reply.blocks, 0u);
  EXPECT_EQ(f.store->match(d.hashes).value_or(0), 20u);
  auto gone = f.store->maintain();
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->expired, 2u);
  EXPECT_EQ(f.shards(), 2u * 12);
  f.wall.advance(2 * day);
  ASSERT_TRUE(f.store->maintain());
  EXPECT_EQ(f.shards(), 0u);
  for (uint32_t t = 1; t <= 12; ++t) EXPECT_EQ((*f.store)->device(target_id{t})->usage().allocated, 0u);
}

TEST(store, a_leased_extent_is_not_reclaimed_and_a_late_read_is_not_believed) {
  for (bool late : {false, true}) {
    store_fixture f;
    made_chain c(test_seed(), 16, 100);
    ASSERT_TRUE(f.store->put(c.put()));
    f.store->settle();
    f.wall.advance(3 * day);
    get_chain_request r;
    std::vector<std::vector<std::byte>> memory(16, std::vector<std::byte>(100));
    r.chain = c.hashes;
    for (auto& m : memory) r.into.emplace_back(m);
    f.store->work().set_delay(late ? 6s : 1s);  // of the lookup, and again of the reads
    std::optional<get_chain_reply> got;
    (*f.store)->io().get(std::move(r), [&](result<get_chain_reply> x) { got = *x; });
    f.store->home().run_until([&] { return f.store->home().now() > 0s; });
    f.store->home().run_ready();  // the lookup is there, the reads are not
    f.wall.advance(day);          // now it expires
    f.store->work().set_delay(0s);
    auto reclaim = f.store->maintain();
    ASSERT_TRUE(reclaim);
    EXPECT_EQ(reclaim->expired, 0u);
    ASSERT_TRUE(f.store->home().run_until([&] { return got.has_value(); }));
    if (late) {
      EXPECT_EQ(got->blocks, 0u);
      EXPECT_EQ(got->stopped->code, errc::stale);
    } else {
      EXPECT_EQ(got->blocks, 16u);
      for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(memory[i] == c.blocks[i]) << i;
    }
    f.store->settle();
    ASSERT_TRUE(f.store->maintain());
    EXPECT_EQ(f.shards(), 0u);
  }
}

TEST(store, the_space_of_what_expired_is_back_within_the_stated_time) {
  store_fixture f;
  made_chain c(test_seed(), 20, 100);
  ASSERT_TRUE(f.store->put(c.put()));
  (*f.store)->keep_maintained(30s);
  f.store->home().run_until([&] { return f.store->home().now() > 100s; });
  EXPECT_EQ(f.shards(), 24u);
  f.wall.advance(3 * day + 3601);
  const auto since = f.store->home().now();
  ASSERT_TRUE(f.store->home().run_until([&] { return f.shards() == 0; }));
  EXPECT_LE(f.store->home().now() - since, 30s);
  bool stopped = false;
  (*f.store)->stop_maintaining([&] { stopped = true; });
  EXPECT_FALSE(f.store->home().run_until([] { return false; })) << "the last timer has gone";
  EXPECT_TRUE(stopped);
}

TEST(store, a_deadline_ends_a_read_with_what_has_come) {
  store_fixture f;
  made_chain c(test_seed(), 64, 100);
  ASSERT_TRUE(f.store->put(c.put()));
  get_chain_request r;
  std::vector<std::vector<std::byte>> memory(64, std::vector<std::byte>(100));
  r.chain = c.hashes;
  for (auto& m : memory) r.into.emplace_back(m);
  r.deadline = 5ms;
  f.store->work().set_delay(3ms);
  auto got = f.store->get(r);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->blocks, 0u);
  EXPECT_EQ(got->stopped->code, errc::timeout);
  for (auto& m : memory) std::fill(m.begin(), m.end(), std::byte{7});
  f.store->home().run_until([] { return false; });
  for (auto& m : memory) EXPECT_TRUE(std::all_of(m.begin(), m.end(), [](std::byte b) { return b == std::byte{7}; }));
  r.deadline = 7ms;
  auto in_time = f.store->get(std::move(r));
  ASSERT_TRUE(in_time);
  EXPECT_EQ(in_time->blocks, 64u);
}

TEST(store, calls_without_sense_are_refused) {
  store_fixture f;
  made_chain c(test_seed(), 4, 100);
  auto code = [&](put_chain_request r) {
    auto x = f.store->put(std::move(r));
    return x ? errc{} : x.error().code;
  };
  auto none = c.put();
  none.blocks.clear();
  EXPECT_EQ(code(none), errc::invalid_argument);
  auto beyond = c.put();
  beyond.first = 1;
  EXPECT_EQ(code(beyond), errc::invalid_argument);
  auto empty = c.put();
  empty.blocks[2] = {};
  EXPECT_EQ(code(empty), errc::invalid_argument);
  auto mixed = c.put();
  std::swap(mixed.chain[1], mixed.chain[2]);
  EXPECT_EQ(code(mixed), errc::invalid_argument);
  EXPECT_EQ(f.shards(), 0u);
  auto got = f.store->get({});
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, errc::invalid_argument);
}

TEST(store, a_million_tokens_go_through_the_window) {
  store_fixture f({.data = 2, .parity = 1, .capacity_bytes = 256 << 20}, 3, 1);
  made_chain c(test_seed(), 2048, 64);
  auto put = f.store->put(c.put());
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->extents, 128u);
  EXPECT_EQ(read_back(*f.store, c).reply.blocks, 2048u);
}

}  // namespace
}  // namespace troupe::kv
