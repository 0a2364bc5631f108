// A store in a directory: real files, RocksDB, threads.
#include "kv/store/directory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "kv/store/bench.hpp"
#include "tests/kv/store/store_fixture.hpp"

namespace troupe::kv {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

struct directory_fixture : ::testing::Test {
  std::string dir = fs::temp_directory_path() / ("troupe-kv-test-" + std::to_string(getpid()));
  directory_fixture() { fs::remove_all(dir); }
  ~directory_fixture() override { fs::remove_all(dir); }
  directory_options options(bool create = true) const {
    directory_options o;
    o.dir = dir;
    o.create = create;
    o.chunk_bytes = 1 << 20;
    o.capacity_bytes = 64 << 20;
    o.io_threads = 3;
    return o;
  }
  static result<get_chain_reply> read(directory_store& s, const made_chain& c, bool* equal) {
    get_chain_request r;
    std::vector<std::vector<std::byte>> memory;
    for (const auto& b : c.blocks) memory.emplace_back(b.size());
    r.chain = c.hashes;
    for (auto& m : memory) r.into.emplace_back(m);
    auto got = s.get(std::move(r));
    *equal = got && std::equal(memory.begin(), memory.begin() + static_cast<ptrdiff_t>(got->blocks), c.blocks.begin());
    return got;
  }
};
using directory = directory_fixture;

TEST_F(directory, many_threads_put_and_get_and_everything_survives_a_close) {
  std::vector<made_chain> chains;
  for (int i = 0; i < 12; ++i) chains.emplace_back(test_seed() + static_cast<uint64_t>(i), 1 + 5 * i, 2000);
  {
    auto s = directory_store::open(options());
    ASSERT_TRUE(s) << s.error().message;
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < chains.size(); ++i) {
          const auto& c = chains[(i + static_cast<size_t>(t) * 3) % chains.size()];  // several write the same ones
          auto put = (*s)->put(c.put());
          bool equal = false;
          auto got = read(**s, c, &equal);
          good += put && got && got->blocks == c.blocks.size() && equal ? 1 : 0;
        }
      });
    }
    for (auto& t : threads) t.join();
    EXPECT_EQ(good, 48);
  }
  auto s = directory_store::open(options(false));
  ASSERT_TRUE(s) << s.error().message;
  for (const auto& c : chains) {
    bool equal = false;
    auto got = read(**s, c, &equal);
    ASSERT_TRUE(got && equal);
    EXPECT_EQ(got->blocks, c.blocks.size());
  }
  scrub_options v;
  v.orphan_grace_s = 0;
  auto verify = (*s)->scrub(v);
  ASSERT_TRUE(verify);
  EXPECT_TRUE(verify->clean()) << first_note(*verify);
}

TEST_F(directory, a_deleted_index_comes_back_and_a_deleted_target_is_made_again) {
  made_chain c(test_seed(), 40, 3000);
  {
    auto s = directory_store::open(options());
    ASSERT_TRUE(s) << s.error().message;
    ASSERT_TRUE((*s)->put(c.put()));
  }
  fs::remove_all(dir + "/index");
  {
    auto s = directory_store::open(options(false));
    ASSERT_TRUE(s) << s.error().message;
    ASSERT_TRUE((*s)->rebuilt());
    bool equal = false;
    auto got = read(**s, c, &equal);
    ASSERT_TRUE(got && equal);
    EXPECT_EQ(got->blocks, 40u);
    auto verify = (*s)->scrub({});
    ASSERT_TRUE(verify);
    EXPECT_TRUE(verify->clean()) << first_note(*verify);
  }
  fs::remove_all(dir + "/target-0002");
  {
    auto s = directory_store::open(options(false));
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_EQ((*s)->absent(), std::vector<target_id>{target_id{2}});
    bool equal = false;
    auto got = read(**s, c, &equal);
    ASSERT_TRUE(got && equal);
    EXPECT_EQ(got->blocks, 40u);
    made_chain more(test_seed() + 1, 5, 100);
    auto put = (*s)->put(more.put());
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, errc::unavailable);
    EXPECT_NE(put.error().message.find("2 storage targets can be written, 3 are needed"), std::string::npos)
        << put.error().message;
  }
  auto again = options(false);
  again.remake_missing = true;
  auto s = directory_store::open(again);
  ASSERT_TRUE(s) << s.error().message;
  scrub_options repair;
  repair.repair = true;
  auto fixed = (*s)->scrub(repair);
  ASSERT_TRUE(fixed);
  EXPECT_TRUE(fixed->repaired()) << first_note(*fixed);
  EXPECT_GT(fixed->rebuilt, 0u);
  auto verify = (*s)->scrub({});
  ASSERT_TRUE(verify);
  EXPECT_TRUE(verify->clean()) << first_note(*verify);
}

TEST_F(directory, what_does_not_fit_the_layout_is_refused) {
  auto none = directory_store::open(options(false));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::not_found);
  {
    auto o = options();
    o.expect.data = 4;
    o.expect.parity = 2;
    o.expect.targets = 7;
    auto s = directory_store::open(o);
    ASSERT_TRUE(s) << s.error().message;
    auto second = directory_store::open(options());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, errc::unavailable);
    EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  }
  const auto refused = [&](auto change) {
    auto o = options();
    change(o);
    auto s = directory_store::open(o);
    return s ? errc{} : s.error().code;
  };
  EXPECT_EQ(refused([](auto& o) { o.expect.data = 10; }), errc::invalid_argument);
  EXPECT_EQ(refused([](auto& o) { o.expect.parity = 1; }), errc::invalid_argument);
  EXPECT_EQ(refused([](auto& o) { o.expect.targets = 12; }), errc::invalid_argument);
  hash_scheme other;
  other.block_tokens = 64;
  EXPECT_EQ(refused([&](auto& o) { o.expect.scheme = other; }), errc::unsupported);
  other = {};
  other.fingerprint[3] = 1;
  EXPECT_EQ(refused([&](auto& o) { o.expect.scheme = other; }), errc::unsupported);
  EXPECT_EQ(refused([](auto&) {}), errc{});
  std::ofstream(dir + "/layout.json") << "{\"format\": \"troupe-kv\", \"version\": 3}";
  EXPECT_EQ(refused([](auto&) {}), errc::unsupported);
  std::ofstream(dir + "/layout.json") << "{";
  EXPECT_EQ(refused([](auto&) {}), errc::corrupt);
}

TEST(layout, survives_printing_and_refuses_damage) {
  store_layout l;
  l.data = 10;
  l.parity = 2;
  l.targets = 14;
  l.scheme.fingerprint[31] = 0xab;
  const std::string text = print_layout(l);
  auto back = parse_layout(text, "f");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(print_layout(*back), text);
  EXPECT_EQ(back->scheme, l.scheme);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    std::string cut = text.substr(0, i);
    EXPECT_FALSE(parse_layout(cut, "f")) << i;
  }
  l.targets = 12;
  l.changed.clear();
  for (uint32_t t = 2; t <= 13; ++t) l.changed.push_back({target_id{t}, false});
  l.next_target = 20;
  l.epoch = storage_epoch{7};
  back = parse_layout(print_layout(l), "f");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(print_layout(*back), print_layout(l));
  EXPECT_EQ(back->members(), l.changed);
  l.changed[3].draining = true;  // one more than the code can do without
  EXPECT_FALSE(parse_layout(print_layout(l), "f"));
  l.changed[3] = l.changed[4];
  EXPECT_FALSE(parse_layout(print_layout(l), "f")) << "twice the same";
}

TEST_F(directory, the_benchmark_runs_and_compares_what_it_reads) {
  bench_options b;
  b.store = options();
  b.store.expect.data = 4;
  b.store.expect.parity = 2;
  b.blocks = 48;
  b.chain = 32;
  b.block_bytes = 10'000;
  b.rounds = 1;
  auto r = run_bench(b, steady_clock());
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->reads.size(), 3u);
  for (const auto& x : r->reads) EXPECT_GT(x.gb_s, 0);
  EXPECT_GT(r->reads[2].shards_decoded, 0);
  EXPECT_GT(r->raw_read_gb_s, 0);
  EXPECT_GT(r->isal_gb_s, 0);
  EXPECT_GE(r->allocated_per_byte_full, 1.5);
  EXPECT_GT(r->allocated_per_byte_single, r->allocated_per_byte_full);
  r = run_bench(b, steady_clock());
  ASSERT_FALSE(r) << "it would fill a store that somebody uses";
  EXPECT_EQ(r.error().code, errc::invalid_argument);
}

}  // namespace
}  // namespace troupe::kv
