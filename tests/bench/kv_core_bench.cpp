// The block store's arithmetic: erasure code beside plain ISA-L on the same buffers, checksums, hash chain.
// Extents of the released model: blocks of 113,920 B, 16 in an extent. `cold`: 64 extents in turn, more than the caches
// hold.
#include <benchmark/benchmark.h>
#include <isa-l/erasure_code.h>

#include <numeric>
#include <vector>

#include "kv/device/aligned_buffer.hpp"
#include "kv/erasure/codec.hpp"
#include "kv/extent/footer.hpp"
#include "kv/hash/block_hash.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

constexpr uint32_t block_bytes = 113'920;

// Shards of some extents in one buffer each, filled with drawn bytes.
struct extents {
  uint32_t k, m;
  size_t bytes;  // of a shard
  std::vector<aligned_buffer> buffers;
  std::vector<std::vector<std::byte*>> shards;

  extents(uint32_t data, uint32_t parity, uint32_t blocks, size_t n)
      : k(data), m(parity), bytes(shard_bytes(blocks, block_bytes, data)) {
    rng draw(1);
    for (size_t i = 0; i < n; ++i) {
      auto& b = buffers.emplace_back(bytes * (k + m));
      auto words = std::span(reinterpret_cast<uint64_t*>(b.data()), b.size() / 8);
      for (size_t w = 0; w < words.size(); ++w) words[w] = w % 64 ? words[w - w % 64] * (2 * w + 1) : draw.next();
      auto& s = shards.emplace_back();
      for (uint32_t j = 0; j < k + m; ++j) s.push_back(b.data() + j * bytes);
    }
  }
  size_t next = 0;
  std::vector<std::byte*>& turn() { return shards[next = (next + 1) % shards.size()]; }
};

// Arguments: k, m, blocks of the extent, extents in turn.
extents made(const benchmark::State& s) {
  return {static_cast<uint32_t>(s.range(0)), static_cast<uint32_t>(s.range(1)), static_cast<uint32_t>(s.range(2)),
          static_cast<size_t>(s.range(3))};
}

void count(benchmark::State& s, const extents& e) {
  s.SetBytesProcessed(static_cast<int64_t>(s.iterations() * e.k * e.bytes));
}

void encode_troupe(benchmark::State& state) {
  extents e = made(state);
  const auto c = *codec::get(e.k, e.m);
  for (auto _ : state) {
    auto& s = e.turn();
    const std::vector<const std::byte*> data(s.begin(), s.begin() + e.k);
    const auto r = c->encode(data, std::span(s).subspan(e.k), e.bytes);
    TROUPE_CHECK(r.has_value(), "encode failed");
  }
  count(state, e);
}

void encode_isal(benchmark::State& state) {
  extents e = made(state);
  std::vector<unsigned char> matrix((e.k + e.m) * e.k), tables(32 * e.k * e.m);
  gf_gen_cauchy1_matrix(matrix.data(), static_cast<int>(e.k + e.m), static_cast<int>(e.k));
  ec_init_tables(static_cast<int>(e.k), static_cast<int>(e.m), matrix.data() + e.k * e.k, tables.data());
  for (auto _ : state) {
    auto** s = reinterpret_cast<unsigned char**>(e.turn().data());
    ec_encode_data(static_cast<int>(e.bytes), static_cast<int>(e.k), static_cast<int>(e.m), tables.data(), s, s + e.k);
    benchmark::ClobberMemory();
  }
  count(state, e);
}

// Argument 4: lost data shards.
void rebuild(benchmark::State& state) {
  extents e = made(state);
  const auto c = *codec::get(e.k, e.m);
  const auto lost = static_cast<uint32_t>(state.range(4));
  std::vector<uint32_t> have(e.k), want(lost);
  std::iota(have.begin(), have.end(), lost);
  std::iota(want.begin(), want.end(), 0);
  for (auto _ : state) {
    auto& s = e.turn();
    const std::vector<const std::byte*> sources(s.begin() + lost, s.begin() + lost + e.k);
    const auto r = c->reconstruct(have, sources, want, std::span(s).first(lost), e.bytes);
    TROUPE_CHECK(r.has_value(), "rebuild failed");
  }
  count(state, e);
}

void encode_cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"k", "m", "blocks", "extents"});
  for (const int64_t n : {1, 64}) b->Args({10, 2, 16, n})->Args({2, 1, 16, n})->Args({10, 2, 1, n});
}
BENCHMARK(encode_troupe)->Apply(encode_cases);
BENCHMARK(encode_isal)->Apply(encode_cases);
BENCHMARK(rebuild)
    ->ArgNames({"k", "m", "blocks", "extents", "lost"})
    ->Args({10, 2, 16, 64, 1})
    ->Args({10, 2, 16, 64, 2})
    ->Args({2, 1, 16, 64, 1})
    ->Args({10, 2, 1, 64, 1});

void checksum(benchmark::State& state) {
  const aligned_buffer b(static_cast<size_t>(state.range(0)));
  std::fill(b.bytes().begin(), b.bytes().end(), std::byte{0x5a});
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(b.bytes()));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * b.size()));
}
BENCHMARK(checksum)->Arg(4'096)->Arg(184'320);

void checksums_of_a_shard(benchmark::State& state) {
  const aligned_buffer b(182'272);
  std::fill(b.bytes().begin(), b.bytes().end(), std::byte{0x5a});
  for (auto _ : state) benchmark::DoNotOptimize(granule_crcs(b.bytes().first(182'272), 0));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 182'272));
}
BENCHMARK(checksums_of_a_shard);

// A million tokens: 8,192 blocks of 128. Items: blocks.
void hash_a_million_tokens(benchmark::State& state) {
  std::vector<uint32_t> ids(1 << 20);
  rng draw(1);
  for (auto& t : ids) t = static_cast<uint32_t>(draw.below(129'280));
  const std::string salt(16, 's');
  std::vector<block_hash> out;
  for (auto _ : state) {
    out.clear();
    auto h = block_hasher::make({}, salt);
    const auto n = h->append(ids, out);
    TROUPE_CHECK(n && *n == 8'192, "hashed {}", out.size());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * 8'192);
}
BENCHMARK(hash_a_million_tokens)->Unit(benchmark::kMillisecond);

void footer_encode_and_decode(benchmark::State& state) {
  shard_footer f;
  extent_info& e = f.extent;
  e.id = {1, 2};
  e.count = 16;
  e.block_bytes = block_bytes;
  e.hashes.resize(16);
  for (uint32_t i = 0; i < 16; ++i) e.hashes[i].tokens = (i + 1) * 128;
  e.slot_first = e.hashes[0];
  e.block_crcs.resize(16);
  e.data = 10;
  e.parity = 2;
  e.targets.resize(12);
  f.first_run = 1;
  f.payload_bytes = shard_bytes(e);
  f.runs = runs_of(f.payload_bytes);
  f.crcs.resize(45);
  for (auto _ : state) {
    const std::string image = encode(f);
    benchmark::DoNotOptimize(decode_footer(std::as_bytes(std::span(image))));
  }
}
BENCHMARK(footer_encode_and_decode);

}  // namespace
}  // namespace troupe::kv

BENCHMARK_MAIN();
