// The snapshot tier as an actor: snapshots come and go by the transport, and what is gone is not found.
#include "actors/storage/kv_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/scoped_actor.hpp>

#include "actors/protocol/messages.hpp"
#include "runtime/transport/loopback.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
constexpr uint64_t entry = 5000;

kv::block_hash hash(uint8_t n) {
  kv::block_hash h;
  h.bytes.fill(n);
  h.tokens = 128u * n;
  return h;
}

struct fixture : ::testing::Test {
  struct config : caf::actor_system_config {
    config() {
      register_messages(*this);
      set("scheduler.policy", caf::atom("testing"));
    }
  };
  config cfg;
  caf::actor_system system{cfg};
  caf::scheduler::test_coordinator& steps = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  manual_clock time;
  std::unique_ptr<transport::loopback_network> wires = transport::make_loopback_network(time, 3);
  std::shared_ptr<transport::transport> rank = std::move(*wires->make({}));
  std::shared_ptr<transport::transport> plane = std::move(*wires->make({}));
  transport::region_ptr memory = *rank->allocate(4 * entry), back = *rank->allocate(entry);
  caf::scoped_actor self{system};
  kv_tier tier;

  fixture() {
    kv_tier_options o;
    o.plane = plane;
    o.tier.entry_bytes = entry;
    o.tier.ttl = 60s;
    tier = spawn_kv_tier(self.ptr(), o, *plane->allocate(4 * entry));
  }
  ~fixture() override {
    end_actor(caf::actor_cast<any_handle>(tier.actor));
    run();
  }
  void run() {
    do steps.run();
    while (wires->step());
    steps.run();
  }
  template <class Answer, class Query>
  Answer ask(Query q) {
    auto open = self->request(tier.actor, caf::infinite, std::move(q));
    run();
    Answer out;
    open.receive([&](const Answer& a) { out = a; }, [&](const caf::error& e) { ADD_FAILURE() << system.render(e); });
    return out;
  }
  std::span<std::byte> bytes_of(uint8_t n) { return memory->bytes().subspan(n % 4 * entry, entry); }
  status put(uint64_t request, uint8_t n, uint32_t wrong = 0) {
    const auto bytes = bytes_of(n);
    std::ranges::fill(bytes, std::byte{n});
    tier_put m;
    m.request = request;
    m.at = hash(n);
    m.address = rank->address();
    m.region = memory->descriptor().encode();
    m.offset = n % 4 * entry;
    m.bytes = entry;
    m.crc = kv::crc32c(bytes) + wrong;
    return ask<ack>(m).outcome;
  }
  // Whether the bytes come back whole, under the checksum that is told.
  bool pull(const tier_opened& o) {
    auto peer = rank->add_peer(plane->address());
    auto region = transport::remote_region::decode(o.region);
    transport::pending p;
    if (!peer || !region || !rank->get(*peer, back, 0, *region, o.offset, o.bytes, p.callback())) return false;
    run();
    return p.done() && p.value() && kv::crc32c(back->bytes().first(o.bytes)) == o.crc;
  }
};
using kv_tier_test = fixture;

TEST_F(kv_tier_test, messages_survive_the_network) {
  const auto same = [&](auto m) {
    std::vector<char> bytes;
    caf::binary_serializer out{system, bytes};
    EXPECT_FALSE(out(m));
    decltype(m) back;
    caf::binary_deserializer in{system, bytes};
    EXPECT_FALSE(in(back));
    EXPECT_EQ(back, m);
  };
  same(tier_put{1, hash(2), "address", "region", 3, 4, 5});
  same(tier_find{{hash(1), hash(2)}, 3});
  same(tier_found{{errc::stale, "why"}, {7, 2}});
  same(tier_open{hash(9)});
  same(tier_opened{{errc::io, "why"}, "region", 1, 2, 3, 4});
  same(tier_close{5});
  same(tier_forget{6});
  same(tier_drop{6, hash(3)});
  same(tier_report{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
  same(tier_pulled{7, {errc::timeout, "why"}});
}

TEST_F(kv_tier_test, a_snapshot_is_kept_found_and_read) {
  EXPECT_TRUE(put(1, 5).ok());
  EXPECT_TRUE(put(1, 6).ok());
  EXPECT_EQ(put(1, 7, 1).code, errc::corrupt) << "not what was promised";
  EXPECT_EQ((ask<tier_found>(tier_find{{hash(4), hash(5), hash(6), hash(7)}, 3}).positions),
            (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(tier.entries->newest(std::vector{hash(5), hash(9)}, 3), std::vector<size_t>{0});
  const auto o = ask<tier_opened>(tier_open{hash(5)});
  ASSERT_TRUE(o.outcome.ok()) << o.outcome.text;
  ASSERT_TRUE(pull(o));
  EXPECT_EQ(back->bytes()[77], std::byte{5});
  auto r = ask<tier_report>(tier_query{});
  EXPECT_EQ(r.entries, 2u);
  EXPECT_EQ(r.capacity, 4u);
  EXPECT_EQ(r.reading, 1u);
  EXPECT_EQ(r.writing, 0u);
  EXPECT_EQ(r.refused, 1u);
  EXPECT_EQ(r.memory_bytes, 4 * entry);
  self->send(tier.actor, tier_close{o.ticket});
  EXPECT_EQ(ask<tier_report>(tier_query{}).reading, 0u);
  EXPECT_TRUE(put(9, 5, 1).ok()) << "it is there: nobody pulls it again";
  EXPECT_EQ(ask<tier_report>(tier_query{}).refused, 1u);
  EXPECT_EQ(ask<tier_opened>(tier_open{hash(4)}).outcome.code, errc::not_found);
  // Two requests more than there is room for: what was used longest ago goes.
  for (uint8_t n = 10; n < 14; ++n) EXPECT_TRUE(put(n, n).ok());
  EXPECT_EQ(ask<tier_opened>(tier_open{hash(6)}).outcome.code, errc::not_found);
  tier_put wrong;
  wrong.bytes = entry - 1;
  EXPECT_EQ(ask<ack>(wrong).outcome.code, errc::invalid_argument);
}

TEST_F(kv_tier_test, time_ends_what_nobody_uses_and_readers_that_give_up) {
  ASSERT_TRUE(put(1, 5).ok());
  const auto o = ask<tier_opened>(tier_open{hash(5)});
  ASSERT_TRUE(o.outcome.ok());
  const auto advance = [&](nanoseconds d) {
    steps.advance_time(std::chrono::duration_cast<caf::timespan>(d));
    run();
  };
  advance(9s);
  EXPECT_EQ(ask<tier_report>(tier_query{}).reading, 1u);
  advance(1s);
  EXPECT_EQ(ask<tier_report>(tier_query{}).reading, 0u) << "it had ten seconds";
  for (int i = 0; i < 6; ++i) advance(10s);
  EXPECT_EQ(ask<tier_opened>(tier_open{hash(5)}).outcome.code, errc::not_found);
  const auto r = ask<tier_report>(tier_query{});
  EXPECT_EQ(r.entries, 0u);
  EXPECT_EQ(r.expired, 1u);
  // A rank that is gone before its snapshot was pulled: refused, and the room is free again.
  wires->kill(rank->address());
  EXPECT_EQ(put(2, 8).code, errc::peer_lost);
  EXPECT_EQ(ask<tier_report>(tier_query{}).writing, 0u);
}

}  // namespace
}  // namespace troupe::actors
