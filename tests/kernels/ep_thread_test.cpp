// Ranks as threads: the protocol of a group under every kind of traffic, loss, parking and bad headers.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "kernels/ep/exchange_group.hpp"
#include "kernels/ep/local_group.hpp"
#include "kernels/ep/thread_group.hpp"
#include "kernels/ep/wire.hpp"
#include "tests/kernels/ep_scenario.hpp"

namespace troupe::kernels::ep {
namespace {

using std::chrono::milliseconds;

constexpr group_shape small(uint32_t ranks) { return {ranks, 24, 3, 9, 4, 2}; }

/// One thread per rank running `f(group)`; joined.
template <class F>
void on_ranks(thread_group& g, F f) {
  std::vector<std::thread> threads;
  for (auto& rank : g.ranks) threads.emplace_back([&f, r = rank.get()] { f(*r); });
  for (auto& t : threads) t.join();
}

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/// Waits for a condition that other threads bring about.
template <class F>
bool eventually(F f, milliseconds limit = milliseconds(20000)) {
  const auto until = steady_clock().now() + limit;
  while (!f()) {
    if (steady_clock().now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class ep_traffic : public testing::TestWithParam<std::tuple<uint32_t, bool, traffic>> {};

TEST_P(ep_traffic, matches_the_naive_model) {
  const auto [ranks, messages, kind] = GetParam();
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  ep_scenario s{seed, kind};
  auto g = make_thread_group(small(ranks), {group_epoch{3}, milliseconds(20000), {}, messages});
  ASSERT_TRUE(g) << g.error().message;
  on_ranks(*g, [&](group& rank) { EXPECT_EQ(run_scenario(rank, s), "") << "seed " << seed; });
  for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(g->control->counters(r).stale_headers, 0u);
}

INSTANTIATE_TEST_SUITE_P(all, ep_traffic,
                         testing::Combine(testing::Values(1u, 2u, 4u), testing::Bool(),
                                          testing::Values(traffic::random, traffic::empty_ranks, traffic::one_expert,
                                                          traffic::redundant, traffic::zero_rows)));

TEST(ep_local, matches_the_naive_model) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  for (const traffic kind : {traffic::random, traffic::zero_rows, traffic::one_expert}) {
    auto g = make_local_group(small(1));
    ASSERT_TRUE(g);
    EXPECT_EQ(run_scenario(**g, {seed, kind}), "") << "seed " << seed;
  }
}

TEST(ep_local, parks_until_woken_and_ends) {
  auto g = make_local_group(small(1));
  ASSERT_TRUE(g);
  (*g)->wake();  // before: the next park does not happen
  auto first = (*g)->begin_step({});
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->has_work);
  std::thread waker([&] { (*g)->wake(); });
  EXPECT_TRUE((*g)->begin_step({}));
  waker.join();
  std::thread ender([&] { (*g)->end(); });
  EXPECT_EQ((*g)->begin_step({}).error().code, errc::cancelled);
  ender.join();
  EXPECT_EQ((*g)->dispatch(0, {}, {}, 1).error().code, errc::cancelled);
}

TEST(ep_arguments, wrong_shapes_and_orders_are_refused_and_change_nothing) {
  EXPECT_EQ(make_local_group({2, 8, 1, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(make_thread_group({0, 8, 1, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(make_thread_group({2, 0, 1, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(make_thread_group({2, 1u << 20, 64, 1u << 20}).error().code, errc::invalid_argument);
  EXPECT_EQ(make_local_group({1, 8, 1, 1, 0, 3}).error().code, errc::invalid_argument) << "three micro-batches";
  auto threads = make_thread_group(small(1));
  auto local = make_local_group(small(1));
  ASSERT_TRUE(threads && local);
  for (group* g : {threads->ranks[0].get(), local->get()}) {
    std::vector<float> x(24), y(24), out(24);
    std::vector<route> routes(1);
    EXPECT_EQ(g->combine(0, y, out).error().code, errc::invalid_argument) << "nothing dispatched";
    EXPECT_EQ(g->dispatch_wait(0).error().code, errc::invalid_argument) << "nothing sent";
    EXPECT_EQ(g->combine_wait(0).error().code, errc::invalid_argument) << "nothing sent";
    EXPECT_EQ(g->dispatch_send(2, 0, x, routes, 1).error().code, errc::invalid_argument) << "no third micro-batch";
    EXPECT_EQ(g->dispatch_wait(2).error().code, errc::invalid_argument);
    EXPECT_EQ(g->combine_send(2, 0, y, out, {}).error().code, errc::invalid_argument);
    EXPECT_EQ(g->combine_wait(2).error().code, errc::invalid_argument);
    EXPECT_EQ(g->dispatch(0, x, routes, 0).error().code, errc::invalid_argument) << "k 0";
    EXPECT_EQ(g->dispatch(0, x, routes, 4).error().code, errc::invalid_argument) << "k over top_k";
    EXPECT_EQ(g->dispatch(0, std::span(x).first(23), routes, 1).error().code, errc::invalid_argument);
    routes[0].rank = 1;
    EXPECT_EQ(g->dispatch(0, x, routes, 1).error().code, errc::invalid_argument) << "rank out of range";
    routes[0].rank = 0;
    std::vector<float> many(24 * 10);
    EXPECT_EQ(g->dispatch(0, many, std::vector<route>(10), 1).error().code, errc::invalid_argument) << "too many rows";
    ASSERT_TRUE(g->dispatch(0, x, routes, 1));
    EXPECT_EQ(g->dispatch(1, x, routes, 1).error().code, errc::invalid_argument) << "two dispatches";
    EXPECT_EQ(g->begin_step({}).error().code, errc::invalid_argument) << "step begun before combine";
    EXPECT_EQ(g->combine(1, y, out).error().code, errc::invalid_argument) << "other layer";
    EXPECT_EQ(g->combine(0, {}, out).error().code, errc::invalid_argument) << "y too short";
    EXPECT_EQ(g->combine(0, y, {}).error().code, errc::invalid_argument) << "out too short";
    EXPECT_TRUE(g->combine(0, y, out));
  }
}

TEST(ep_placement, contiguous_blocks_cover_all_ranks) {
  const auto p = contiguous_placement(3, 2, 8);
  ASSERT_EQ(p.copies.size(), 2u);
  std::vector<uint32_t> ranks;
  for (const auto& c : p.copies[1]) {
    ASSERT_EQ(c.size(), 1u);
    ranks.push_back(c[0]);
  }
  EXPECT_EQ(ranks, (std::vector<uint32_t>{0, 0, 0, 1, 1, 1, 2, 2}));
}

class ep_both : public testing::TestWithParam<bool> {
 protected:
  thread_group make(uint32_t ranks, milliseconds deadline = milliseconds(20000), wait_policy wait = {}) {
    auto g = make_thread_group(small(ranks), {group_epoch{3}, deadline, wait, GetParam()});
    EXPECT_TRUE(g) << g.error().message;
    return std::move(*g);
  }
};
INSTANTIATE_TEST_SUITE_P(stores_and_messages, ep_both, testing::Bool());

TEST_P(ep_both, sleeping_waits_are_woken) {
  // No spins, no yields: every wait that is not satisfied at once sleeps.
  auto g = make(3, milliseconds(20000), {0, nanoseconds(0)});
  const ep_scenario s{7, traffic::random, 20, 3};
  on_ranks(g, [&](group& rank) { EXPECT_EQ(run_scenario(rank, s), ""); });
}

TEST_P(ep_both, a_missing_rank_is_suspected_by_all_after_the_deadline) {
  const milliseconds deadline(200);
  auto g = make(4, deadline);
  on_ranks(g, [&](group& rank) {
    step_header h;
    h.has_work = true;
    ASSERT_TRUE(rank.begin_step(h));
    if (rank.rank() == 2) return;
    const auto start = steady_clock().now();
    auto got = rank.begin_step(h);
    const auto took = steady_clock().now() - start;
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, errc::peer_lost) << got.error().message;
    EXPECT_EQ(rank.suspects(), std::vector<uint32_t>{2}) << got.error().message;
    EXPECT_LT(took, deadline + milliseconds(500));
    // For good.
    EXPECT_EQ(rank.begin_step(h).error().code, errc::peer_lost);
    EXPECT_EQ(rank.dispatch(0, {}, {}, 1).error().code, errc::peer_lost);
  });
}

TEST_P(ep_both, a_killed_rank_ends_exchanges_and_parking_at_once) {
  for (const bool parked : {false, true}) {
    auto g = make(3);
    std::atomic<int> ready{0};
    std::thread killer([&] {
      EXPECT_TRUE(eventually([&] { return ready == 3; }));
      g.control->kill(1);
    });
    on_ranks(g, [&](group& rank) {
      step_header h;
      h.has_work = !parked;
      ++ready;
      if (!parked && rank.rank() == 1) return;
      const auto start = steady_clock().now();
      auto got = rank.begin_step(h);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().code, errc::peer_lost) << got.error().message;
      if (rank.rank() != 1) {
        EXPECT_EQ(rank.suspects(), std::vector<uint32_t>{1});
      }
      EXPECT_LT(steady_clock().now() - start, milliseconds(5000));
    });
    killer.join();
  }
}

// A peer that takes messages and never answers; its death notice comes with the n-th progress.
class dying_peer_lane final : public lane {
 public:
  dying_peer_lane(const group_shape& shape, int dies_at)
      : dies_at_(dies_at), inbox_(inbox_layout(shape).total / sizeof(cell) + 1) {}
  std::recursive_mutex& serial() override { return serial_; }
  std::byte* inbox() override { return reinterpret_cast<std::byte*>(inbox_.data()); }
  std::byte* peer_inbox(uint32_t) override { return nullptr; }
  bool has_message_peers() const override { return true; }
  std::byte* buffer(uint32_t, size_t bytes, nanoseconds, lane_sink&) override {
    out_.resize(bytes + 1);
    return out_.data();
  }
  void post(uint32_t, const slot_header&, size_t) override {}
  void progress(lane_sink& sink) override {
    if (++progressed_ == dies_at_) sink.on_dead(1);
  }
  void sleep(nanoseconds) override { slept_over_death |= progressed_ >= dies_at_; }
  void signal() override {}
  void flush(nanoseconds, lane_sink&) override {}

  bool slept_over_death = false;

 private:
  struct alignas(64) cell {
    std::byte bytes[64];
  };
  const int dies_at_;
  int progressed_ = 0;
  std::recursive_mutex serial_;
  std::vector<cell> inbox_;
  std::vector<std::byte> out_;
};

// No second notice would end a sleep, so one that comes just before it must not be slept over.
TEST(ep_wait, a_death_notice_is_never_slept_over) {
  for (int dies_at = 1; dies_at <= 9; ++dies_at) {
    exchange_group::parts parts;
    parts.shape = small(2);
    parts.epoch = group_epoch{1};
    parts.incarnations = {1, 2};
    parts.deadline = std::chrono::seconds(20);
    parts.wait = {0, nanoseconds(0)};
    auto link = std::make_shared<dying_peer_lane>(parts.shape, dies_at);
    parts.link = link;
    parts.counters = std::make_shared<atomic_counters>();
    exchange_group group(std::move(parts));
    step_header h;
    h.has_work = true;
    auto got = group.begin_step(h);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, errc::peer_lost);
    EXPECT_EQ(group.suspects(), std::vector<uint32_t>{1});
    EXPECT_FALSE(link->slept_over_death) << "notice at progress " << dies_at;
  }
}

TEST_P(ep_both, a_rank_that_left_does_not_fail_the_others) {
  auto g = make(3);
  std::atomic<bool> gone{false};
  on_ranks(g, [&](group& rank) {
    step_header h;
    h.leaving = rank.rank() == 0;
    h.has_work = true;
    auto all = rank.begin_step(h);
    ASSERT_TRUE(all) << all.error().message;
    EXPECT_TRUE(all->leaving);
    const ep_scenario s{5, traffic::random};
    EXPECT_EQ(run_layers(rank, s, 0), "");
    if (rank.rank() == 0) {
      g.control->kill(0);
      gone = true;
      return;
    }
    EXPECT_TRUE(eventually([&] { return gone.load(); }));
    auto after = rank.begin_step({});
    ASSERT_FALSE(after);
    EXPECT_EQ(rank.suspects(), std::vector<uint32_t>{0});
  });
}

TEST_P(ep_both, parking_sleeps_and_any_rank_wakes_all) {
  auto g = make(3);
  std::atomic<int> parked{0};
  for (uint32_t waker = 0; waker < 3; ++waker) {
    parked = 0;
    std::thread t([&] {
      EXPECT_TRUE(eventually([&] { return parked == 3; }));
      g.ranks[waker]->wake();
    });
    on_ranks(g, [&](group& rank) {
      ++parked;
      auto got = rank.begin_step({});
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_FALSE(got->has_work);
      step_header h;
      h.has_work = rank.rank() == waker;
      got = rank.begin_step(h);
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_TRUE(got->has_work);
    });
    t.join();
  }
}

TEST_P(ep_both, a_parked_group_uses_no_cpu) {
  auto g = make(3);
  std::vector<std::thread> threads;
  for (auto& rank : g.ranks)
    threads.emplace_back([r = rank.get()] { EXPECT_EQ(r->begin_step({}).error().code, errc::cancelled); });
  // Measured while this thread waits for something that does not come.
  std::mutex m;
  std::condition_variable never;
  std::unique_lock lock(m);
  never.wait_for(lock, milliseconds(100));
  const double before = cpu_seconds();
  never.wait_for(lock, milliseconds(400));
  const double used = cpu_seconds() - before;
  EXPECT_LT(used, 0.04) << "of 0.4 s";
  for (auto& rank : g.ranks) rank->end();
  for (auto& t : threads) t.join();
}

TEST_P(ep_both, ranks_that_make_different_calls_are_told) {
  auto g = make(2, milliseconds(2000));
  on_ranks(g, [&](group& rank) {
    step_header h;
    h.has_work = true;
    ASSERT_TRUE(rank.begin_step(h));
    auto got = rank.dispatch(rank.rank() == 0 ? 4 : 5, {}, {}, 1);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, errc::peer_lost) << got.error().message;
  });
}

TEST(ep_messages, stale_and_malformed_headers_are_ignored) {
  auto g = make_thread_group(small(2), {group_epoch{3}, milliseconds(20000), {}, true});
  ASSERT_TRUE(g);
  const auto inject = [&](auto change, std::vector<std::byte> payload) {
    slot_header h;
    h.stamp = 1;
    h.epoch = 3;
    h.incarnation = 2;
    h.step = 1;
    h.kind = slot_kind::step;
    h.source = 1;
    change(h);
    std::vector<std::byte> bytes(sizeof h);
    std::memcpy(bytes.data(), &h, sizeof h);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    g->control->inject(1, 0, std::move(bytes));
  };
  const std::vector<std::byte> step(sizeof(wire_step));
  inject([](slot_header& h) { h.epoch = 2; }, step);
  inject([](slot_header& h) { h.epoch = 4; }, step);
  inject([](slot_header& h) { h.incarnation = 1; }, step);
  inject([](slot_header& h) { h.source = 0; }, step);
  inject([](slot_header& h) { h.source = 7; }, step);
  inject([](slot_header& h) { h.stamp = 0; }, step);
  inject([](slot_header& h) { h.stamp = 9; }, step);
  inject([](slot_header& h) { h.kind = static_cast<slot_kind>(99); }, step);
  inject([](slot_header&) {}, {});
  inject([](slot_header& h) { h.kind = slot_kind::dispatch, h.rows = 1000; }, step);
  inject([](slot_header& h) { h.kind = slot_kind::dispatch, h.items = 3; }, step);
  inject([](slot_header& h) { h.kind = slot_kind::combine, h.items = UINT32_MAX; }, step);
  inject([](slot_header& h) { h.kind = slot_kind::combine, h.items = 1; }, std::vector<std::byte>(4 + 24 * 4));
  inject([](slot_header& h) { h.kind = slot_kind::combine, h.rows = 5; }, std::vector<std::byte>(5 * 4));
  const ep_scenario s{11, traffic::random};
  on_ranks(*g, [&](group& rank) { EXPECT_EQ(run_scenario(rank, s), ""); });
  EXPECT_EQ(g->control->counters(0).stale_headers, 14u);
  EXPECT_EQ(g->control->counters(1).stale_headers, 0u);
}

}  // namespace
}  // namespace troupe::kernels::ep
