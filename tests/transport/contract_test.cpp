// The contract of transport.hpp, the same tests over every backend; both ends in this process.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <numeric>

#include "runtime/base/rng.hpp"
#include "runtime/transport/loopback.hpp"
#ifdef TROUPE_TEST_PROCESS
#include "runtime/transport/process_transport.hpp"
#else
#include "runtime/transport/wired_transport.hpp"
#endif
#include "tests/transport/pattern.hpp"

namespace troupe::transport {
namespace {

using std::chrono::seconds;

class contract : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<transport> make(options o = {}) {
    const std::string kind = GetParam();
    if (kind == "loopback") {
      if (!net_) net_ = make_loopback_network(clock_, 42);
      return *net_->make(o);
    }
#ifdef TROUPE_TEST_PROCESS
    o.shared_memory = kind == "shm";
    if (kind == "ucx") o.messages = message_path::ucx;
    auto t = make_process_transport(o);
    EXPECT_TRUE(t) << t.error().message;
    return std::move(*t);
#else
    o.shared_memory = kind == "shm";
    auto w = open_tcp_wire(wire_options(o));
    EXPECT_TRUE(w) << w.error().message;
    return std::make_unique<wired_transport>(o, std::move(*w));
#endif
  }
  /// Completes it; its value.
  result<void> wait(const pending& p) {
    if (net_) net_->drain();
    if (!p.wait(seconds(20))) return fail(errc::timeout, "the operation did not complete");
    return p.value();
  }
  template <class F>
  bool eventually(F f) {
    if (net_) net_->drain();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), f);
  }
  template <class F>
  void change(F f) {
    {
      std::lock_guard lock(mutex_);
      f();
    }
    changed_.notify_all();
  }

  manual_clock clock_;
  std::unique_ptr<loopback_network> net_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

#ifdef TROUPE_TEST_PROCESS
INSTANTIATE_TEST_SUITE_P(backends, contract, testing::Values("shm", "tcp", "ucx"),
                         [](const auto& i) { return std::string(i.param); });
#else
INSTANTIATE_TEST_SUITE_P(backends, contract, testing::Values("loopback", "tcp", "shm"),
                         [](const auto& i) { return std::string(i.param); });
#endif

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto b = std::as_bytes(std::span(text));
  return {b.begin(), b.end()};
}

TEST_P(contract, get_and_put_move_exactly_the_range) {
  auto a = make(), b = make();
  auto local = *a->allocate(3 << 20), remote = *b->allocate(3 << 20);
  EXPECT_EQ(local->bytes().size(), size_t{3} << 20);
  EXPECT_TRUE(std::all_of(local->bytes().begin(), local->bytes().end(), [](std::byte x) { return x == std::byte{0}; }));
  fill_pattern(remote->bytes(), 1);
  const peer_id peer = *a->add_peer(b->address());
  EXPECT_EQ(*a->add_peer(b->address()), peer) << "the same address gives the same peer";
  const remote_region d = *remote_region::decode(remote->descriptor().encode());
  for (const auto& [from, to, n] : std::vector<std::array<uint64_t, 3>>{
           {0, 0, 1}, {5, 77, 4096}, {1, 3, (3 << 20) - 7}, {100, 0, (1 << 20) + 1}, {0, 9, 0}}) {
    fill_pattern(local->bytes(), 2);
    pending p;
    ASSERT_TRUE(a->get(peer, local, to, d, from, n, p.callback()));
    const auto r = wait(p);
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(check_pattern(local->bytes().first(to), 2), -1) << "before the range";
    EXPECT_EQ(check_pattern(local->bytes().subspan(to, n), 1, from), -1);
    EXPECT_EQ(check_pattern(local->bytes().subspan(to + n), 2, to + n), -1) << "after the range";
  }
  fill_pattern(local->bytes(), 3);
  pending p;
  ASSERT_TRUE(a->put(peer, local, 11, d, 1000, (2 << 20) + 5, p.callback()));
  ASSERT_TRUE(wait(p));
  EXPECT_EQ(check_pattern(remote->bytes().first(1000), 1), -1);
  EXPECT_EQ(check_pattern(remote->bytes().subspan(1000, (2 << 20) + 5), 3, 11), -1);
  EXPECT_EQ(check_pattern(remote->bytes().subspan(1000 + (2 << 20) + 5), 1, 1000 + (2 << 20) + 5), -1);
  EXPECT_EQ(a->stats().gets, 5u);
  EXPECT_EQ(a->stats().bytes_out, (2u << 20) + 5);
  EXPECT_EQ(a->stats().connections, 1u);
}

TEST_P(contract, pull_moves_scattered_pages) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  constexpr size_t pages = 64, page = 11392;
  auto a = make(), b = make();
  auto local = *a->allocate(pages * page), remote = *b->allocate(pages * page);
  fill_pattern(remote->bytes(), seed);
  rng r(seed);
  std::vector<uint64_t> from(pages), to(pages);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), 0);
  for (size_t i = pages; i > 1; --i) {
    std::swap(from[i - 1], from[r.below(i)]);
    std::swap(to[i - 1], to[r.below(i)]);
  }
  std::vector<page_move> moves;
  for (size_t i = 0; i < pages; ++i) moves.push_back({from[i] * page, to[i] * page});
  pending p;
  ASSERT_TRUE(a->pull(*a->add_peer(b->address()), local, remote->descriptor(), page, moves, p.callback()));
  ASSERT_TRUE(wait(p));
  for (const auto& m : moves)
    EXPECT_EQ(check_pattern(local->bytes().subspan(m.local_offset, page), seed, m.remote_offset), -1)
        << "seed " << seed;
  pending none;
  ASSERT_TRUE(a->pull(*a->add_peer(b->address()), local, remote->descriptor(), page, {}, none.callback()));
  EXPECT_TRUE(wait(none)) << "an empty list";
  EXPECT_EQ(a->stats().pages, pages);
}

TEST_P(contract, messages_arrive_in_order_and_can_be_answered) {
  auto a = make(), b = make();
  std::vector<int> got, back;
  b->on_message(channel_id{1}, [&](peer_id from, std::span<const std::byte> m) {
    change([&] { got.push_back(static_cast<int>(m.size())); });
    EXPECT_TRUE(b->send(from, channel_id{2}, {m.begin(), m.end()}, {}));
  });
  a->on_message(channel_id{2}, [&](peer_id, std::span<const std::byte> m) {
    change([&] { back.push_back(static_cast<int>(m.size())); });
  });
  const peer_id peer = *a->add_peer(b->address());
  std::vector<int> sizes;
  std::vector<pending> done(100);
  for (int i = 0; i < 100; ++i) {
    sizes.push_back(i * 97);
    ASSERT_TRUE(a->send(peer, channel_id{1}, std::vector<std::byte>(i * 97), done[i].callback()));
  }
  for (auto& d : done) EXPECT_TRUE(wait(d));
  EXPECT_TRUE(eventually([&] { return back.size() == 100; }));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(got, sizes);
  EXPECT_EQ(back, sizes);
}

TEST_P(contract, a_channel_without_handler_answers_not_found) {
  auto a = make(), b = make();
  pending p;
  ASSERT_TRUE(a->send(*a->add_peer(b->address()), channel_id{9}, bytes_of("x"), p.callback()));
  EXPECT_EQ(wait(p).error().code, errc::not_found);
}

TEST_P(contract, bad_arguments_are_refused_at_once) {
  options small;
  small.max_pages = 4;
  small.max_message = 16;
  auto a = make(small), b = make(), c = make();
  auto local = *a->allocate(4096), remote = *b->allocate(4096);
  const peer_id peer = *a->add_peer(b->address());
  const auto never = [](result<void>) { ADD_FAILURE() << "completed an operation that was refused"; };
  const auto get = [&](region_ptr to, uint64_t at, uint64_t from, uint64_t n) {
    return a->get(peer, std::move(to), at, remote->descriptor(), from, n, never).error().code;
  };
  EXPECT_EQ(get(nullptr, 0, 0, 1), errc::invalid_argument);
  EXPECT_EQ(get(local, 0, 0, 4097), errc::invalid_argument);
  EXPECT_EQ(get(local, 4096, 0, 1), errc::invalid_argument);
  EXPECT_EQ(get(local, 0, UINT64_MAX, 2), errc::invalid_argument);
  EXPECT_EQ(get(local, UINT64_MAX - 1, 0, 4), errc::invalid_argument);
  EXPECT_EQ(a->get(peer_id{77}, local, 0, remote->descriptor(), 0, 1, never).error().code, errc::not_found);
  EXPECT_EQ(a->get(*a->add_peer(c->address()), local, 0, remote->descriptor(), 0, 1, never).error().code,
            errc::invalid_argument)
      << "another's region";
  EXPECT_EQ(a->pull(peer, local, remote->descriptor(), 1, std::vector<page_move>(5), never).error().code,
            errc::invalid_argument);
  EXPECT_EQ(a->send(peer, channel_id{1}, std::vector<std::byte>(17), never).error().code, errc::invalid_argument);
  EXPECT_EQ(a->allocate(0).error().code, errc::invalid_argument);
  EXPECT_EQ(a->add_peer(a->address()).error().code, errc::invalid_argument);
  for (size_t n = 0; n < b->address().size(); ++n)
    EXPECT_EQ(a->add_peer(b->address().substr(0, n)).error().code, errc::corrupt) << n;
}

TEST_P(contract, freed_and_foreign_regions_are_stale) {
  auto a = make(), b = make();
  auto local = *a->allocate(4096);
  auto remote = *b->allocate(4096);
  const remote_region d = remote->descriptor();
  const peer_id peer = *a->add_peer(b->address());
  const auto get = [&](const remote_region& r) {
    pending p;
    EXPECT_TRUE(a->get(peer, local, 0, r, 0, 4096, p.callback()));
    return wait(p);
  };
  EXPECT_TRUE(get(d));
  remote_region other = d;
  other.generation ^= 1;
  EXPECT_EQ(get(other).error().code, errc::stale);
  other = d;
  other.id += 5;
  EXPECT_EQ(get(other).error().code, errc::stale);
  pending put;
  ASSERT_TRUE(a->put(peer, local, 0, other, 0, 4096, put.callback()));
  EXPECT_EQ(wait(put).error().code, errc::stale);
  remote.reset();
  EXPECT_EQ(get(d).error().code, errc::stale);
  remote = *b->allocate(8192);
  EXPECT_EQ(get(d).error().code, errc::stale) << "memory in the same place is another region";
  EXPECT_TRUE(get(remote->descriptor()));
}

TEST_P(contract, the_number_of_operations_is_bounded) {
  options four;
  four.max_operations = 4;
  auto a = make(four), b = make();
  // The peer's handler holds up everything until it is let go.
  bool go = false;
  b->on_message(channel_id{1}, [&](peer_id, std::span<const std::byte>) {
    if (net_) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return go; });
  });
  const peer_id peer = *a->add_peer(b->address());
  std::vector<pending> done(4);
  for (auto& d : done) ASSERT_TRUE(a->send(peer, channel_id{1}, bytes_of("x"), d.callback()));
  EXPECT_EQ(a->send(peer, channel_id{1}, bytes_of("x"), {}).error().code, errc::exhausted);
  EXPECT_EQ(a->stats().refused, 1u);
  change([&] { go = true; });
  for (auto& d : done) EXPECT_TRUE(wait(d));
  pending again;
  EXPECT_TRUE(a->send(peer, channel_id{1}, bytes_of("x"), again.callback()));
  EXPECT_TRUE(wait(again));
}

TEST_P(contract, the_number_of_peers_is_bounded) {
  options two;
  two.max_peers = 2;
  auto a = make(two), b = make(), c = make(), d = make();
  const auto first = a->add_peer(b->address());
  ASSERT_TRUE(first && a->add_peer(c->address()));
  EXPECT_EQ(a->add_peer(d->address()).error().code, errc::exhausted);
  a->remove_peer(*first);
  const auto until = steady_clock().now() + seconds(20);
  while (!a->add_peer(d->address())) ASSERT_LT(steady_clock().now(), until);
}

TEST_P(contract, a_peer_that_went_away_is_lost_and_told_once) {
  options quick;
  quick.deadline = std::chrono::milliseconds(300);
  auto a = make(quick), b = make(quick);
  b->on_message(channel_id{1}, [](peer_id, std::span<const std::byte>) {});
  auto local = *a->allocate(4096);
  auto remote = *b->allocate(4096);
  const remote_region d = remote->descriptor();
  const peer_id peer = *a->add_peer(b->address());
  int notices = 0;
  a->on_peer_lost([&](peer_id p, const std::string& why) {
    EXPECT_EQ(p, peer) << why;
    change([&] { ++notices; });
  });
  pending first;
  ASSERT_TRUE(a->send(peer, channel_id{1}, bytes_of("x"), first.callback()));
  ASSERT_TRUE(wait(first));
  remote.reset();
  b.reset();
  EXPECT_TRUE(eventually([&] { return notices == 1; }));
  for (int i = 0; i < 2; ++i) {
    pending p, q;
    ASSERT_TRUE(a->send(peer, channel_id{1}, bytes_of("x"), p.callback()));
    ASSERT_TRUE(a->get(peer, local, 0, d, 0, 4096, q.callback()));
    EXPECT_EQ(wait(p).error().code, errc::peer_lost);
    EXPECT_EQ(wait(q).error().code, errc::peer_lost);
  }
}

TEST_P(contract, a_removed_peer_can_be_added_again) {
  auto a = make(), b = make();
  int got = 0;
  b->on_message(channel_id{1}, [&](peer_id, std::span<const std::byte> m) { change([&] { got += !m.empty(); }); });
  for (int round = 1; round <= 5; ++round) {
    const peer_id peer = *a->add_peer(b->address());
    EXPECT_EQ(peer.value, static_cast<uint32_t>(round)) << "ids are not reused";
    pending p;
    const auto sent = a->send(peer, channel_id{1}, bytes_of("x"), p.callback());
    ASSERT_TRUE(sent) << sent.error().message;
    const auto r = wait(p);
    EXPECT_TRUE(r) << r.error().message;
    a->remove_peer(peer);
    // Removal is a command in a queue where the transport has a thread.
    const auto until = steady_clock().now() + seconds(20);
    for (;;) {
      pending q;  // waited for, so that these sends do not fill the queue
      const auto refused = a->send(peer, channel_id{1}, {}, q.callback());
      if (!refused && refused.error().code == errc::not_found) break;
      ASSERT_TRUE(refused) << refused.error().message;
      (void)wait(q);
      ASSERT_LT(steady_clock().now(), until);
    }
  }
  EXPECT_EQ(got, 5);
}

TEST_P(contract, stopping_cancels_what_is_outstanding) {
  auto a = make(), b = make();
  bool go = false;
  b->on_message(channel_id{1}, [&](peer_id, std::span<const std::byte>) {
    if (net_) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return go; });
  });
  pending p;
  ASSERT_TRUE(a->send(*a->add_peer(b->address()), channel_id{1}, bytes_of("x"), p.callback()));
  a.reset();
  ASSERT_TRUE(p.done());
  EXPECT_EQ(p.value().error().code, errc::cancelled);
  change([&] { go = true; });
}

TEST_P(contract, options_out_of_bounds_are_refused) {
  options o;
  o.deadline = std::chrono::milliseconds(19);
  const auto net = make_loopback_network(clock_, 1);
  EXPECT_EQ(net->make(o).error().code, errc::invalid_argument);
#ifdef TROUPE_TEST_PROCESS
  EXPECT_EQ(make_process_transport(o).error().code, errc::invalid_argument);
  options wrong;
  wrong.interface = "no-such-device";
  EXPECT_EQ(make_process_transport(wrong).error().code, errc::unavailable);
#endif
}

}  // namespace
}  // namespace troupe::transport
