// What only the loopback can show: every interleaving is the caller's.
#include "runtime/transport/loopback.hpp"

#include <gtest/gtest.h>

#include "tests/transport/pattern.hpp"

namespace troupe::transport {
namespace {

using std::chrono::milliseconds;

struct loopback : testing::Test {
  manual_clock clock;
  std::unique_ptr<loopback_network> net = make_loopback_network(clock, 7);
  options o{.deadline = milliseconds(200)};
  std::unique_ptr<transport> a = *net->make(o), b = *net->make(o);
  region_ptr local = *a->allocate(4096), remote = *b->allocate(4096);
  peer_id peer = *a->add_peer(b->address());
};

TEST_F(loopback, nothing_happens_by_itself) {
  pending p;
  ASSERT_TRUE(a->get(peer, local, 0, remote->descriptor(), 0, 4096, p.callback()));
  EXPECT_FALSE(p.done());
  EXPECT_TRUE(net->step());
  EXPECT_FALSE(p.done());
  EXPECT_TRUE(net->step());
  EXPECT_TRUE(p.done());
  EXPECT_FALSE(net->step());
}

TEST_F(loopback, a_killed_peer_completes_all_operations_with_peer_lost) {
  std::vector<pending> all(3);
  for (auto& p : all) ASSERT_TRUE(a->get(peer, local, 0, remote->descriptor(), 0, 4096, p.callback()));
  int notices = 0;
  a->on_peer_lost([&](peer_id, const std::string&) { ++notices; });
  net->step();
  net->kill(b->address());
  net->drain();
  for (auto& p : all) {
    ASSERT_TRUE(p.done());
    EXPECT_EQ(p.value().error().code, errc::peer_lost);
  }
  EXPECT_EQ(notices, 1);
  EXPECT_EQ(b->send(peer_id{1}, channel_id{1}, {}, {}).error().code, errc::unavailable);
}

TEST_F(loopback, a_stalled_peer_is_lost_at_the_deadline_not_before) {
  net->stall(b->address(), true);
  pending p;
  ASSERT_TRUE(a->get(peer, local, 0, remote->descriptor(), 0, 4096, p.callback()));
  clock.advance(milliseconds(199));
  net->drain();
  EXPECT_FALSE(p.done());
  clock.advance(milliseconds(1));
  net->drain();
  ASSERT_TRUE(p.done());
  EXPECT_EQ(p.value().error().code, errc::peer_lost);
}

TEST_F(loopback, late_writes_of_an_ended_connection_do_not_land) {
  auto mine = *b->allocate(4096);
  fill_pattern(mine->bytes(), 5);
  const peer_id back = *b->add_peer(a->address());
  pending late;
  ASSERT_TRUE(b->put(back, mine, 0, local->descriptor(), 0, 4096, late.callback()));
  net->stall(a->address(), true);
  clock.advance(milliseconds(200));
  net->drain();
  ASSERT_TRUE(late.done());
  EXPECT_EQ(late.value().error().code, errc::peer_lost);
  net->stall(a->address(), false);
  fill_pattern(local->bytes(), 6);
  pending fresh;
  ASSERT_TRUE(b->get(back, mine, 0, local->descriptor(), 0, 4096, fresh.callback()));
  net->drain();
  EXPECT_TRUE(fresh.done() && fresh.value());
  EXPECT_EQ(check_pattern(local->bytes(), 6), -1) << "the put of the old connection landed";
  EXPECT_EQ(a->stats().stale_dropped, 1u);
}

TEST_F(loopback, the_same_calls_give_the_same_run) {
  const auto run = [] {
    manual_clock c;
    auto n = make_loopback_network(c, 99);
    auto x = *n->make({}), y = *n->make({});
    std::string trace;
    y->on_message(channel_id{1}, [&](peer_id from, std::span<const std::byte> m) {
      trace += fmt::format("m{}:{} ", from.value, m.size());
    });
    auto r = *y->allocate(64);
    auto l = *x->allocate(64);
    const peer_id p = *x->add_peer(y->address());
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(
          x->send(p, channel_id{1}, std::vector<std::byte>(i), [&](result<void> v) { trace += v ? "s " : "f "; }));
      EXPECT_TRUE(x->get(p, l, 0, r->descriptor(), 0, 64, [&](result<void> v) { trace += v ? "g " : "f "; }));
      n->step();
    }
    n->drain();
    return trace + x->address() + r->descriptor().encode();
  };
  EXPECT_EQ(run(), run());
}

TEST(remote_region_blob, round_trip_and_every_truncation_and_flip) {
  remote_region r{1, 2, 3, 4, 5, std::string("key\0\xff", 5)};
  const std::string blob = r.encode();
  EXPECT_LT(blob.size(), 256u);
  ASSERT_TRUE(remote_region::decode(blob));
  EXPECT_EQ(*remote_region::decode(blob), r);
  EXPECT_EQ(remote_region::decode(blob)->encode(), blob);
  for (size_t n = 0; n < blob.size(); ++n)
    EXPECT_EQ(remote_region::decode(blob.substr(0, n)).error().code, errc::corrupt) << n;
  EXPECT_EQ(remote_region::decode(blob + "x").error().code, errc::corrupt);
  for (size_t i = 0; i < blob.size() * 8; ++i) {
    std::string bad = blob;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
    EXPECT_EQ(remote_region::decode(bad).error().code, errc::corrupt) << i;
  }
}

}  // namespace
}  // namespace troupe::transport
