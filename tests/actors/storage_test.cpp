// The block store over actors and transport, in virtual time: what is put is got, a lost node costs nothing that the
// code can make good, a node that comes back is taken back.
#include <gtest/gtest.h>

#include <algorithm>

#include "actors/protocol/tier.hpp"
#include "actors/serving/prefix_store.hpp"
#include "tests/actors/storage_world.hpp"
#include "tests/kv/store/store_fixture.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
using kv::testing_support::made_chain;

/// Reads a chain and checks every byte that is served.
struct got_chain {
  std::vector<std::vector<std::byte>> memory;
  result<kv::get_chain_reply> reply;

  got_chain(storage_world& w, const made_chain& c, size_t from = 0) : reply(kv::get_chain_reply{}) {
    kv::get_chain_request r;
    r.chain = c.hashes;
    r.first = from;
    for (size_t i = from; i < c.blocks.size(); ++i) memory.emplace_back(c.blocks[i].size());
    for (auto& m : memory) r.into.emplace_back(m);
    reply = w.get(std::move(r));
    EXPECT_TRUE(reply) << reply.error().message;
    if (!reply) return;
    for (size_t i = 0; i < reply->blocks; ++i) EXPECT_TRUE(memory[i] == c.blocks[from + i]) << "block " << from + i;
  }
  size_t blocks() const { return reply ? reply->blocks : 0; }
  std::string why() const { return reply && reply->stopped ? reply->stopped->message : ""; }
};

uint64_t print_seed(uint64_t seed) {
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(storage, what_is_put_is_matched_and_got) {
  storage_world_options o;
  o.seed = print_seed(11);
  o.disks = 2;
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(1, 40, 5000);
  EXPECT_EQ(w.match(c.hashes).value(), 0u);
  auto put = w.put(c.put());
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->stored, 40u);
  EXPECT_EQ(put->extents, 3u);
  const auto messages = w.net().messages();
  EXPECT_EQ(w.match(c.hashes).value(), 40u);
  // One question per owner: at most 3 owners, question and answer each; heartbeats and views go on meanwhile.
  EXPECT_LE(w.net().messages() - messages, 6u + 4u);
  got_chain got(w, c);
  EXPECT_EQ(got.blocks(), 40u) << got.why();
  EXPECT_EQ(got.reply->decoded, 0u);
  put = w.put(c.put());
  ASSERT_TRUE(put);
  EXPECT_EQ(put->present, 40u);
  EXPECT_EQ(put->stored, 0u);
  const auto found = w.scrub(false);
  EXPECT_TRUE(found.clean()) << kv::testing_support::first_note(found);
  EXPECT_EQ(found.extents, 3u) << "every extent is looked at by one node";
  for (uint32_t n = 0; n < 3; ++n) {
    const auto node = w.call<store_state::node>([n](store_state& s, auto back) { back(s.nodes[n]); });
    ASSERT_TRUE(node);
    for (const auto& t : node->targets) {
      auto u = w.ask_now<kv_usage_reply>(caf::actor_cast<storage_target_actor>(t.actor), kv_usage_query{});
      EXPECT_EQ(u.staging_used, 0u) << "every read gave its room back";
      EXPECT_EQ(u.refused, 0u);
    }
  }
}

TEST(storage, a_node_reports_a_disk_that_fails_until_it_works_again) {
  storage_world_options o;
  o.seed = print_seed(13);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const auto troubles = [&] {
    return w.ask_now<storage_report>(caf::actor_cast<storage_node_actor>(w.node(0).actor), storage_query{}).troubles;
  };
  ASSERT_TRUE(w.put(made_chain(6, 10, 1000).put()));
  EXPECT_TRUE(troubles().empty());
  w.node(0).disks[0]->fail_writes(error{errc::io, "the chunk was deleted while it was in use"});
  (void)w.put(made_chain(7, 10, 1000).put());  // 2 + 1 over 3 targets: refused or not, the shard was tried
  EXPECT_EQ(troubles(), std::vector<std::string>{"the chunk was deleted while it was in use"});
  w.node(0).disks[0]->fail_writes({});
  ASSERT_TRUE(w.put(made_chain(8, 10, 1000).put()));
  EXPECT_TRUE(troubles().empty());
}

TEST(storage, a_match_lists_the_window_snapshots_that_a_node_keeps) {
  storage_world_options o;
  o.seed = print_seed(12);
  o.snapshots.entry_bytes = 5000;
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(6, 10, 1000);
  ASSERT_TRUE(w.put(c.put()));
  auto memory = *w.client_plane().allocate(5000);
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{7});
  const tier_put snapshot{1, c.hashes[6], w.client_plane().address(), memory->descriptor().encode(),
                          0, 5000,        kv::crc32c(memory->bytes())};
  int listing = 0;
  for (uint32_t n = 0; n < 3; ++n) {
    const auto node = caf::actor_cast<storage_node_actor>(w.node(n).actor);
    kv_hello hello;
    hello.any_scheme = true;
    const auto met = w.ask_now<kv_welcome>(node, hello);
    ASSERT_TRUE(met.outcome.ok() && met.tier) << met.outcome.text;
    const auto kept = w.ask_now<ack>(caf::actor_cast<kv_tier_actor>(met.tier), snapshot);
    ASSERT_TRUE(kept.outcome.ok()) << kept.outcome.text;
    const auto report = w.ask_now<storage_report>(node, storage_query{});
    EXPECT_EQ(report.snapshots, 1u);
    EXPECT_EQ(report.snapshot_room, 4u);
    kv_match m;
    m.from.epoch = report.epoch;
    m.slots = {0};
    m.counts = {10};
    m.hashes = pack(c.hashes);
    m.limit = 10;
    const auto index = caf::actor_cast<kv_index_actor>(met.index);
    auto found = w.ask_now<kv_match_reply>(index, m);
    ASSERT_TRUE(found.outcome.ok()) << found.outcome.text;
    if (found.first_missing == 0) {  // not an owner of the slot
      EXPECT_TRUE(found.snapshots.empty());
      continue;
    }
    ++listing;
    EXPECT_EQ(found.first_missing, 10u);
    EXPECT_EQ(found.snapshots, std::vector<uint64_t>{6});
    m.limit = 6;
    found = w.ask_now<kv_match_reply>(index, m);
    EXPECT_TRUE(found.snapshots.empty()) << "behind the limit";
  }
  EXPECT_EQ(listing, 2) << "the owner and its replica";
}

template <class T>
result<T> wait_for(storage_world& w, const std::function<void(std::function<void(result<T>)>)>& call) {
  auto got = std::make_shared<std::optional<result<T>>>();
  call([got](result<T> r) { got->emplace(std::move(r)); });
  if (!w.run_until([&] { return got->has_value(); }, std::chrono::seconds(60)))
    return fail(errc::internal, "no answer");
  return std::move(**got);
}

// As ranks put and read them: by the owner of their block's slot, wherever that is.
TEST(storage, snapshots_of_a_request_are_put_listed_read_and_superseded_over_all_nodes) {
  storage_world_options o;
  o.seed = print_seed(13);
  o.snapshots.entry_bytes = 5000;
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(7, 40, 1000);
  ASSERT_TRUE(w.put(c.put()));
  const auto store = make_prefix_store(w.new_client({}));
  const auto match = [&] { return wait_for<prefix_match>(w, [&](auto back) { store->match(c.hashes, back); }); };
  ASSERT_TRUE(w.run_until([&] { return match().has_value(); }, std::chrono::seconds(10)));
  auto memory = *w.client_plane().allocate(5000), back = *w.client_plane().allocate(5000);
  const auto key = [&](size_t blocks) {
    return blocks == 0 ? snapshot_key{} : snapshot_key{c.hashes[blocks - 1], c.hashes[(blocks - 1) / 16 * 16]};
  };
  const auto put = [&](uint64_t request, size_t blocks, size_t older, uint32_t wrong = 0) {
    std::fill(memory->bytes().begin(), memory->bytes().end(), static_cast<std::byte>(blocks));
    snapshot_offer offer{request, key(blocks), key(older), {}};
    offer.source = {
        w.client_plane().address(), memory->descriptor().encode(), 0, 5000, kv::crc32c(memory->bytes()) + wrong, 0, 0};
    return wait_for<void>(w, [&](auto done) { store->put_snapshot(offer, done); });
  };
  for (size_t blocks : {14, 15, 16, 17, 18}) ASSERT_TRUE(put(1, blocks, blocks - 3)) << blocks;
  EXPECT_EQ(put(1, 19, 0, 1).error().code, errc::corrupt);
  auto found = match();
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->blocks, 40u);
  EXPECT_EQ(found->snapshots, (std::vector<uint32_t>{18, 17, 16})) << "three of the request, in two slots";
  const auto there = wait_for<snapshot_source>(w, [&](auto done) { store->open_snapshot(key(17), done); });
  ASSERT_TRUE(there) << there.error().message;
  transport::pending p;
  ASSERT_TRUE(w.client_plane().get(*w.client_plane().add_peer(there->address), back, 0,
                                   *transport::remote_region::decode(there->region), there->offset, there->bytes,
                                   p.callback()));
  ASSERT_TRUE(w.run_until([&] { return p.done(); }, std::chrono::seconds(10)));
  EXPECT_EQ(kv::crc32c(back->bytes()), there->crc);
  EXPECT_EQ(back->bytes()[123], std::byte{17});
  store->close_snapshot(there->seat, there->ticket);
  EXPECT_EQ((wait_for<snapshot_source>(w, [&](auto done) { store->open_snapshot(key(15), done); }).error().code),
            errc::not_found);
  const auto load = store->load();
  EXPECT_EQ(load.matches + load.snapshots + load.reads, 0u);
}

TEST(storage, a_lost_node_costs_nothing_and_is_taken_back) {
  for (auto kind : {sim::crash_kind::killed, sim::crash_kind::silent}) {
    storage_world_options o;
    o.seed = print_seed(20 + static_cast<uint64_t>(kind));
    storage_world w{o};
    ASSERT_NO_FATAL_FAILURE(w.wait_ready());
    const made_chain c(2, 33, 3000);
    ASSERT_TRUE(w.put(c.put()));
    w.crash(1, kind);
    const auto begin = w.agenda().now();
    got_chain got(w, c);
    EXPECT_EQ(got.blocks(), 33u) << got.why();
    EXPECT_GT(got.reply->decoded, 0u);
    // Killed: noticed at once. Silent: when the director has given it up.
    EXPECT_LT(w.agenda().now() - begin, kind == sim::crash_kind::killed ? nanoseconds(100ms) : nanoseconds(8s));
    EXPECT_EQ(w.match(c.hashes).value(), 33u);
    const made_chain other(3, 5, 3000);
    auto put = w.put(other.put());
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, errc::unavailable) << put.error().message;
    w.run_for(5s);
    w.restart(1);
    ASSERT_NO_FATAL_FAILURE(w.wait_ready());
    w.run_for(1s);
    ASSERT_TRUE(w.put(other.put()));
    got_chain whole(w, c);
    EXPECT_EQ(whole.blocks(), 33u);
    EXPECT_EQ(whole.reply->decoded, 0u);
    const auto repaired = w.scrub(true);
    EXPECT_EQ(repaired.lost, 0u);
    EXPECT_EQ(repaired.waiting, 0u);
    const auto found = w.scrub(false);
    EXPECT_TRUE(found.clean()) << kv::testing_support::first_note(found);
  }
}

TEST(storage, a_new_disk_in_the_place_of_a_lost_one_is_filled) {
  storage_world_options o;
  o.seed = print_seed(31);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(4, 20, 4000);
  ASSERT_TRUE(w.put(c.put()));
  w.crash(2);
  w.node(2).disks[0] = std::make_unique<kv::memory_disk>();
  w.run_for(1s);
  w.restart(2);
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  auto found = w.scrub(false);
  EXPECT_GT(found.missing, 0u);
  found = w.scrub(true);
  EXPECT_GT(found.rebuilt, 0u);
  EXPECT_EQ(found.waiting, 0u);
  found = w.scrub(false);
  EXPECT_TRUE(found.clean()) << kv::testing_support::first_note(found);
  w.crash(0);
  got_chain got(w, c);
  EXPECT_EQ(got.blocks(), 20u) << got.why();
}

TEST(storage, a_node_without_its_index_takes_over_what_the_others_know) {
  storage_world_options o;
  o.seed = print_seed(41);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(5, 48, 1000);
  ASSERT_TRUE(w.put(c.put()));
  w.crash(0);
  w.node(0).records = std::make_unique<kv::memory_db>();
  w.run_for(1s);
  w.restart(0);
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  w.run_for(2s);
  const auto found = w.scrub(false);
  EXPECT_EQ(found.unreplicated, 0u);
  EXPECT_TRUE(found.clean()) << kv::testing_support::first_note(found);
  EXPECT_EQ(w.match(c.hashes).value(), 48u);
}

TEST(storage, a_whole_cluster_that_was_killed_still_hits) {
  storage_world_options o;
  o.seed = print_seed(51);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(6, 24, 2000);
  ASSERT_TRUE(w.put(c.put()));
  for (uint32_t n = 0; n < 3; ++n) w.crash(n);
  got_chain none(w, c);
  EXPECT_EQ(none.blocks(), 0u);
  EXPECT_EQ(none.reply->stopped->code, errc::unavailable) << none.why();
  w.run_for(1s);
  for (uint32_t n = 0; n < 3; ++n) w.restart(n);
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  got_chain got(w, c);
  EXPECT_EQ(got.blocks(), 24u) << got.why();
}

// Bytes that do not come are made from others, and what waited for them goes back.
TEST(storage, a_read_that_is_late_is_hedged) {
  storage_world_options o;
  o.seed = print_seed(56);
  o.hedge_after = 20ms;
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(8, 16, 3000);
  ASSERT_TRUE(w.put(c.put()));
  for (uint32_t n = 0; n < 3; ++n) {  // one of them holds parity only
    w.stall(n, true);
    const auto begin = w.agenda().now();
    got_chain got(w, c);
    EXPECT_EQ(got.blocks(), 16u) << got.why();
    EXPECT_LT(w.agenda().now() - begin, nanoseconds(1s));
    w.stall(n, false);
    w.run_for(15s);
  }
  EXPECT_GT(w.call<uint64_t>([](store_state& s, auto back) { back(s.client->stats().hedges); }).value(), 0u);
  for (uint32_t n = 0; n < 3; ++n) {
    const auto node = w.call<store_state::node>([n](store_state& s, auto back) { back(s.nodes[n]); });
    ASSERT_TRUE(node);
    auto u = w.ask_now<kv_usage_reply>(caf::actor_cast<storage_target_actor>(node->targets[0].actor), kv_usage_query{});
    EXPECT_EQ(u.staging_used, 0u);
  }
}

TEST(storage, another_hash_scheme_is_refused) {
  storage_world_options o;
  o.seed = print_seed(61);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  kv::hash_scheme other;
  other.block_tokens = 64;
  auto session = w.new_client(other);
  std::optional<result<void>> got;
  session->when_ready(5s, [&](result<void> r, store_state&) { got = r; });
  ASSERT_TRUE(w.run_until([&] { return got.has_value(); }, 10s));
  ASSERT_FALSE(*got);
  EXPECT_EQ(got->error().code, errc::unsupported);
  EXPECT_NE(got->error().message.find("block"), std::string::npos) << got->error().message;
}

TEST(storage, what_acts_on_a_past_epoch_is_refused) {
  storage_world_options o;
  o.seed = print_seed(71);
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const auto node = w.call<store_state::node>([](store_state& s, auto back) { back(s.nodes[0]); });
  ASSERT_TRUE(node);
  const auto target = caf::actor_cast<storage_target_actor>(node->targets[0].actor);
  const auto epoch = w.call<storage_epoch>([](store_state& s, auto back) { back(s.epoch); });
  kv_shard_remove m;
  m.shards = {{kv::extent_id{1, 1}, 0}};
  m.from.epoch = *epoch;
  EXPECT_TRUE(w.ask_now<ack>(target, m).outcome.ok());
  m.from.epoch = storage_epoch{epoch->value - 1};
  EXPECT_EQ(w.ask_now<ack>(target, m).outcome.code, errc::stale);
}

// Reads whose bytes nobody fetches: the room is bounded, others wait, and it comes back after `staging_hold`.
TEST(storage, room_for_reads_is_bounded_and_comes_back) {
  storage_world_options o;
  o.seed = print_seed(81);
  o.staging_bytes = 16 * 4096;
  storage_world w{o};
  ASSERT_NO_FATAL_FAILURE(w.wait_ready());
  const made_chain c(7, 2, 8000);
  ASSERT_TRUE(w.put(c.put()));
  kv::extent_id id;
  ASSERT_TRUE(w.call<bool>([&](store_state& s, auto back) {
    s.client->lookup(c.hashes, 0, [&id, back](result<std::vector<std::optional<kv::block_place>>> r) {
      id = (*r)[0]->extent;
      back(true);
    });
  }));
  const auto node = w.call<store_state::node>([](store_state& s, auto back) { back(s.nodes[0]); });
  const auto target = caf::actor_cast<storage_target_actor>(node->targets[0].actor);
  auto list = w.ask_now<kv_shard_list_reply>(target, kv_shard_list{true, {}, 10});
  ASSERT_EQ(list.shards.size(), 1u);
  kv_read m;
  m.at = {id, list.shards[0].shard};
  m.bytes = 4096;
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(w.ask_now<kv_read_reply>(target, m).outcome.ok()) << i;
  // Each probe has ended, and with it what it held: nothing may be left.
  w.run_for(1s);
  auto u = w.ask_now<kv_usage_reply>(target, kv_usage_query{});
  EXPECT_EQ(u.staging_used, 0u) << "the room of clients that are gone";
  kv_read large = m;
  large.bytes = 17 * 4096;
  EXPECT_EQ(w.ask_now<kv_read_reply>(target, large).outcome.code, errc::invalid_argument);
}

}  // namespace
}  // namespace troupe::actors
