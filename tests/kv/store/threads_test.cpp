// The store on its real executor and I/O threads, over memory twins: callers on many threads, scrub and eviction beside
// them. Meant for ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;

template <class T>
result<T> wait(executor& home, std::function<void(reply<T>)> call) {
  auto p = std::make_shared<std::promise<result<T>>>();
  auto f = p->get_future();
  home.post([call, p] { call([p](result<T> r) { p->set_value(std::move(r)); }); });
  return f.get();
}

TEST(threads, puts_gets_scrubs_and_upkeep_at_the_same_time) {
  const uint64_t seed = test_seed();
  twin_world world(7, 2);
  thread_executor home(64);  // small: I/O threads have to wait for room
  {
    auto pool = std::make_unique<io_pool>(3, 4096);
    local_store_options o;
    for (uint32_t i = 0; i < 7; ++i)
      o.targets.push_back({target_id{i + 1}, world.disks[i].get(), world.records.get(), 0, {}});
    for (auto& d : world.owners) o.owners.push_back(d.get());
    o.device.chunk_bytes = 1 << 20;
    o.device.capacity_bytes = 64 << 20;
    o.index.hold_after_open = false;
    o.client.data = 4;
    o.client.parity = 2;
    o.client.scheme = hash_scheme{}.id();
    o.client.seed = seed;
    o.client.read_window = o.client.write_window = 100'000;  // small: calls wait for each other
    o.client.hedge_after = std::chrono::microseconds(300);
    o.client.hedge_share = 1;
    auto opened = local_store::open(o, home, *pool, system_unix_clock());
    ASSERT_TRUE(opened) << opened.error().message;
    local_store& store = **opened;
    home.post([&] { store.keep_maintained(std::chrono::milliseconds(2)); });
    std::vector<made_chain> chains;
    for (uint64_t i = 0; i < 8; ++i) chains.emplace_back(seed + i, 3 + 4 * i, 1500);
    std::atomic<int> good{0}, calls{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < chains.size(); ++i) {
          const auto& c = chains[(i + 3 * t) % chains.size()];
          auto put = wait<put_chain_reply>(home, [&](reply<put_chain_reply> back) { store.io().put(c.put(), back); });
          std::vector<std::vector<std::byte>> memory;
          for (const auto& b : c.blocks) memory.emplace_back(b.size());
          auto got = wait<get_chain_reply>(home, [&](reply<get_chain_reply> back) {
            get_chain_request r;
            r.chain = c.hashes;
            for (auto& m : memory) r.into.emplace_back(m);
            if (i % 4 == 3) r.deadline = std::chrono::microseconds(200);
            store.io().get(std::move(r), back);
          });
          ++calls;
          const bool whole = put && got && (i % 4 == 3 || got->blocks == c.blocks.size());
          good += whole && std::equal(memory.begin(), memory.begin() + static_cast<ptrdiff_t>(got->blocks),
                                      c.blocks.begin())
                      ? 1
                      : 0;
        }
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        scrub_options s;
        s.repair = true;
        auto r = wait<scrub_report>(home, [&](reply<scrub_report> back) { store.scrub(s, back); });
        ++calls;
        good += r && r->rotten + r->missing + r->lost == 0 ? 1 : 0;
      }
    });
    for (auto& t : threads) t.join();
    EXPECT_EQ(good, calls);
    std::promise<void> idle;
    home.post([&] { store.stop_maintaining([&] { store.io().idle([&] { idle.set_value(); }); }); });
    idle.get_future().wait();
    scrub_options v;
    v.orphan_grace_s = 0;
    auto verify = wait<scrub_report>(home, [&](reply<scrub_report> back) { store.scrub(v, back); });
    ASSERT_TRUE(verify);
    EXPECT_TRUE(verify->clean()) << first_note(*verify);
    pool.reset();  // before the store: a read that lost against a hedge or a deadline may still be under way
  }
}

}  // namespace
}  // namespace troupe::kv
