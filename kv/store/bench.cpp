#include "kv/store/bench.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kv/device/aligned_buffer.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

struct samples {
  std::vector<double> us;
  void add(nanoseconds d) { us.push_back(static_cast<double>(d.count()) / 1e3); }
  latency sum() {
    latency l;
    l.calls = us.size();
    if (us.empty()) return l;
    std::sort(us.begin(), us.end());
    l.p50_us = us[us.size() / 2];
    l.p99_us = us[std::min(us.size() - 1, us.size() * 99 / 100)];
    l.max_us = us.back();
    return l;
  }
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// Bytes that programs can still have.
uint64_t memory_available() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  for (uint64_t kib; in >> name >> kib; in.ignore(256, '\n')) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

struct bench {
  const bench_options& o;
  const clock_source& clock;
  aligned_buffer given, back;  // of the blocks of one call
  std::vector<std::vector<block_hash>> chains, singles;
  bench_report out;

  std::span<std::byte> block(const aligned_buffer& b, uint64_t i) const {
    return {b.data() + i * o.block_bytes, o.block_bytes};
  }
  // The bytes of block `index` of all, into place `i` of `given`; made anew whenever they are needed.
  void make_block(uint64_t index, uint64_t i) {
    uint64_t x = (o.seed * 0x9e3779b97f4a7c15u + index) * 0xbf58476d1ce4e5b9u | 1;
    const auto to = block(given, i);
    for (size_t at = 0; at < to.size(); at += 8) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      std::memcpy(to.data() + at, &x, std::min<size_t>(8, to.size() - at));
    }
  }
  void make_chain(size_t c) {
    for (uint64_t b = 0; b < chains[c].size(); ++b) make_block(c * o.chain + b, b);
  }
  void say(const std::string& text) const {
    if (o.progress) o.progress(text);
  }
  result<void> stopped() const {
    if (o.stop && o.stop()) return fail(errc::cancelled, "stopped");
    return {};
  }

  // Before anything is made. Memory: two calls' blocks, the window of shards, all hashes.
  result<void> enough_room() {
    TROUPE_TRY(const auto layout, directory_store::plan(o.store));
    const uint64_t together = std::min(o.chain, o.blocks) * o.block_bytes;
    const uint64_t memory = 2 * together + 2 * o.store.window + o.blocks * 24;
    uint64_t there = memory_available();
    rlimit most{};
    if (getrlimit(RLIMIT_AS, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
      there = std::min<uint64_t>(there, most.rlim_cur);
    if (memory > there)
      return fail(errc::invalid_argument,
                  "{} blocks of {} bytes in calls of {} need {} bytes of memory, {} are free; make the calls (--chain) "
                  "smaller",
                  o.blocks, o.block_bytes, o.chain, memory, there);
    const uint64_t shards = layout.data + layout.parity;
    // Footers and whole runs, a chunk begun on each target, and the index.
    const uint64_t extents = o.blocks / std::min<uint64_t>(o.chain, slot_blocks) + 65;
    const uint64_t disk = (out.bytes + 64 * o.block_bytes) / layout.data * shards + extents * shards * 2 * run_bytes +
                          layout.targets * layout.chunk_bytes + (32ull << 20);
    std::filesystem::path at = o.store.dir;
    std::error_code ec;
    while (!std::filesystem::exists(at, ec) && at.has_parent_path() && at != at.parent_path()) at = at.parent_path();
    const auto space = std::filesystem::space(at.empty() ? "." : at, ec);
    if (!ec && disk > space.available)
      return fail(errc::invalid_argument,
                  "{} blocks of {} bytes take up to {} bytes on disk as {}+{}, {} are free at {}; fewer blocks, or "
                  "another directory",
                  o.blocks, o.block_bytes, disk, layout.data, layout.parity, space.available, o.store.dir);
    return {};
  }

  result<void> make() {
    say("hashing");
    const uint64_t together = std::min(o.chain, o.blocks);
    given = aligned_buffer(together * o.block_bytes);
    back = aligned_buffer(together * o.block_bytes);
    std::memset(back.data(), 0, back.size());
    TROUPE_TRY(const auto layout, directory_store::plan(o.store));
    const hash_scheme scheme = layout.scheme;
    rng random(o.seed, 12);
    const auto chain_of = [&](uint64_t blocks) -> result<std::vector<block_hash>> {
      std::vector<uint32_t> tokens(blocks * scheme.block_tokens);
      for (auto& t : tokens) t = static_cast<uint32_t>(random.below(128'000));
      return hash_chain(scheme, "bench", tokens);
    };
    for (uint64_t at = 0; at < o.blocks; at += o.chain) {
      TROUPE_TRY(auto c, chain_of(std::min(o.chain, o.blocks - at)));
      chains.push_back(std::move(c));
    }
    for (uint64_t i = 0; i < std::min<uint64_t>(64, o.blocks); ++i) {
      TROUPE_TRY(auto c, chain_of(1));
      singles.push_back(std::move(c));
    }
    return {};
  }

  result<void> write(directory_store& s) {
    say("writing");
    samples calls;
    nanoseconds spent{0};
    for (size_t c = 0; c < chains.size(); ++c) {
      if (auto r = stopped(); !r) return r;
      make_chain(c);
      put_chain_request r;
      r.chain = chains[c];
      for (uint64_t b = 0; b < chains[c].size(); ++b) r.blocks.push_back(block(given, b));
      const auto call = clock.now();
      TROUPE_TRY(auto done, s.put(std::move(r)));
      spent += clock.now() - call;
      calls.add(clock.now() - call);
      if (done.stored != chains[c].size())
        return fail(errc::invalid_argument, "{} holds blocks of this benchmark already; give an empty directory",
                    s.dir());
    }
    out.write_gb_s = static_cast<double>(out.bytes) / static_cast<double>(spent.count());
    out.put = calls.sum();
    out.allocated_per_byte_full = static_cast<double>(s.usage().allocated) / static_cast<double>(out.bytes);
    const uint64_t before = s.usage().allocated;
    samples single;
    for (size_t i = 0; i < singles.size(); ++i) {
      put_chain_request r;
      r.chain = singles[i];
      make_block(i, 0);
      r.blocks.push_back(block(given, 0));
      const auto call = clock.now();
      TROUPE_TRY(auto done, s.put(std::move(r)));
      single.add(clock.now() - call);
      (void)done;
    }
    out.put_single = single.sum();
    out.allocated_per_byte_single =
        static_cast<double>(s.usage().allocated - before) / static_cast<double>(singles.size() * o.block_bytes);
    return {};
  }

  // All blocks once; bytes are made anew and compared while no clock runs.
  result<double> read_all(directory_store& s, samples& calls, uint64_t& decoded) {
    decoded = 0;
    nanoseconds spent{0};
    for (size_t c = 0; c < chains.size(); ++c) {
      if (auto r = stopped(); !r) return fail(r.error());
      get_chain_request r;
      r.chain = chains[c];
      for (uint64_t b = 0; b < chains[c].size(); ++b) r.into.push_back(block(back, b));
      const auto call = clock.now();
      TROUPE_TRY(auto got, s.get(std::move(r)));
      spent += clock.now() - call;
      calls.add(clock.now() - call);
      if (got.blocks != chains[c].size())
        return fail(got.stopped ? got.stopped->code : errc::internal, "{} of {} blocks came back: {}", got.blocks,
                    chains[c].size(), got.stopped ? got.stopped->message : "no reason");
      decoded += got.decoded;
      make_chain(c);
      if (std::memcmp(given.data(), back.data(), chains[c].size() * o.block_bytes) != 0)
        return fail(errc::corrupt, "bytes came back that were not put");
      std::memset(back.data(), 0, back.size());
    }
    return static_cast<double>(out.bytes) / static_cast<double>(spent.count());
  }

  // The runs of every data shard, by as many threads as the store has, straight from the disks.
  result<double> read_raw(directory_store& s) {
    struct piece {
      disk* device;
      uint32_t chunk;
      uint64_t offset, bytes;
    };
    std::vector<piece> pieces;
    TROUPE_TRY(auto places, s.data_shards());
    for (const auto& p : places) {
      if (p.footer.extent.count == 1 && o.chain > 1) continue;  // of the single puts
      pieces.push_back({p.device, p.footer.chunk, uint64_t{p.footer.first_run} * run_bytes,
                        (p.footer.payload_bytes + run_bytes - 1) / run_bytes * run_bytes});
    }
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto begin = clock.now();
    std::vector<std::thread> threads;
    for (size_t t = 0; t < o.store.io_threads; ++t) {
      threads.emplace_back([&] {
        aligned_buffer memory;
        for (size_t i; (i = next.fetch_add(1)) < pieces.size();) {
          const auto& p = pieces[i];
          if (memory.size() < p.bytes) memory = aligned_buffer(p.bytes);
          if (!p.device->read(p.chunk, p.offset, memory.bytes().first(p.bytes))) failed = true;
        }
      });
    }
    for (auto& t : threads) t.join();
    const auto spent = clock.now() - begin;
    if (failed) return fail(errc::io, "a raw read failed");
    return static_cast<double>(out.bytes) / static_cast<double>(spent.count());
  }

  result<void> read(directory_store& s) {
    std::vector<double> raw, ours, share;
    samples calls;
    uint64_t decoded = 0;
    for (uint32_t i = 0; i < o.rounds; ++i) {
      say(fmt::format("reading, round {} of {}", i + 1, o.rounds));
      TROUPE_TRY(double a, read_raw(s));
      raw.push_back(a);
      TROUPE_TRY(double b, read_all(s, calls, decoded));
      ours.push_back(b);
      share.push_back(b / a);
    }
    out.raw_read_gb_s = median(raw);
    out.reads.push_back({0, median(ours), static_cast<double>(decoded), calls.sum()});
    out.read_share_of_raw = median(share);

    say("single blocks and matches");
    rng random(o.seed, 13);
    samples single, match;
    for (int i = 0; i < 400; ++i) {
      if (auto r = stopped(); !r) return r;
      const uint64_t at = random.below(o.blocks);
      get_chain_request r;
      const auto& chain = chains[at / o.chain];
      r.first = at % o.chain;
      r.chain.assign(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(r.first) + 1);
      r.into.push_back(block(back, 0));
      make_block(at, 0);
      auto call = clock.now();
      TROUPE_TRY(auto got, s.get(std::move(r)));
      single.add(clock.now() - call);
      if (got.blocks != 1 || std::memcmp(back.data(), given.data(), o.block_bytes) != 0)
        return fail(errc::corrupt, "block {} came back wrong or not at all", at);
      auto hashes = chain;
      call = clock.now();
      TROUPE_TRY(uint64_t n, s.match(std::move(hashes)));
      match.add(clock.now() - call);
      if (n != chain.size()) return fail(errc::corrupt, "a chain of {} blocks matched {}", chain.size(), n);
    }
    out.get_single = single.sum();
    out.match_chain = match.sum();
    return {};
  }

  result<void> run() {
    if (o.blocks == 0 || o.chain == 0 || o.block_bytes == 0 || o.block_bytes > max_block_bytes || o.rounds == 0)
      return fail(errc::invalid_argument, "blocks, block bytes (at most {}) and rounds must be more than 0",
                  max_block_bytes);
    out.bytes = o.blocks * o.block_bytes;
    if (std::error_code ec; std::filesystem::exists(o.store.dir + "/layout.json", ec))
      return fail(errc::invalid_argument,
                  "{} is a store already; a benchmark fills one of its own: give a new directory", o.store.dir);
    if (auto r = enough_room(); !r) return r;
    if (auto r = make(); !r) return r;
    uint32_t parity = 0;
    {
      TROUPE_TRY(auto s, directory_store::open(o.store));
      parity = s->layout().parity;
      out.disk = s->disk_name();
      if (auto r = write(*s); !r) return r;
      if (auto r = read(*s); !r) return r;
      say("encoding");
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(slot_blocks, o.blocks));
      TROUPE_TRY(auto e, bench_encode(s->layout().data, parity,
                                      shard_bytes(count, static_cast<uint32_t>(o.block_bytes), s->layout().data), 32,
                                      o.seed, clock));
      out.encode_gb_s = e.ours_gb_s;
      out.isal_gb_s = e.isal_gb_s;
      out.encode_share_of_isal = e.isal_gb_s > 0 ? e.ours_gb_s / e.isal_gb_s : 0;
    }
    for (uint32_t gone = 1; gone <= parity; ++gone) {
      say(fmt::format("reading with {} target{} gone", gone, gone == 1 ? "" : "s"));
      auto without = o.store;
      without.create = false;
      for (uint32_t t = 1; t <= gone; ++t) without.without.push_back(t);
      TROUPE_TRY(auto s, directory_store::open(without));
      samples calls;
      std::vector<double> rates;
      uint64_t decoded = 0;
      for (uint32_t i = 0; i < o.rounds; ++i) {
        TROUPE_TRY(double r, read_all(*s, calls, decoded));
        rates.push_back(r);
      }
      out.reads.push_back({gone, median(rates), static_cast<double>(decoded), calls.sum()});
    }
    return {};
  }
};

}  // namespace

result<bench_report> run_bench(const bench_options& options, const clock_source& clock) {
  bench b{options, clock, {}, {}, {}, {}, {}};
  if (auto r = b.run(); !r) return fail(r.error());
  return std::move(b.out);
}

}  // namespace troupe::kv
