// What a store does on this machine: rates and latencies of puts and gets, beside what disk and ISA-L do alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kv/store/directory.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kv {

/// What is measured.
struct bench_options {
  directory_options store;  // a directory that has no store yet
  uint64_t blocks = 1024;   // in all, in chains of `chain`
  uint64_t chain = 1024;    // blocks of one put or get call; 1,024 of 128 tokens are a context of 131,072
  uint64_t block_bytes = 113'920;
  uint32_t rounds = 3;  // of reads, raw and through the store in turn; medians are reported
  uint64_t seed = 1;
  std::function<void(const std::string&)> progress;  // may be null
  std::function<bool()> stop;                        // may be null; true ends it with errc::cancelled
};

/// Times of one kind of call, in microseconds.
struct latency {
  uint64_t calls = 0;
  double p50_us = 0, p99_us = 0, max_us = 0;
};

/// One read of everything.
struct read_rate {
  uint32_t targets_gone = 0;
  double gb_s = 0;            // block data, GB = 1e9 bytes; median of the rounds
  double shards_decoded = 0;  // of a round
  latency call;
};

/// The results. Rates count block data and GB = 1e9 bytes.
struct bench_report {
  uint64_t bytes = 0;
  double write_gb_s = 0;
  latency put, put_single;
  std::vector<read_rate> reads;  // with 0, 1, … m targets gone
  latency get_single, match_chain;
  double raw_read_gb_s = 0, read_share_of_raw = 0;  // the same bytes by the disk alone, with as many threads
  double encode_gb_s = 0, isal_gb_s = 0, encode_share_of_isal = 0;
  double allocated_per_byte_full = 0, allocated_per_byte_single = 0;
  std::string disk;  // and how it does I/O
};

/// Runs it; the store stays in its directory. Every byte read is compared. Errors: those of the store;
/// invalid_argument; corrupt (bytes came back that were not put); cancelled.
result<bench_report> run_bench(const bench_options& options, const clock_source& clock);

/// Encoding alone: `extents` extents of the given shape out of the cache, by kv/erasure and by plain ISA-L, best of
/// five.
struct encode_rates {
  double ours_gb_s = 0, isal_gb_s = 0;
};
result<encode_rates> bench_encode(uint32_t data, uint32_t parity, uint64_t shard_bytes, size_t extents, uint64_t seed,
                                  const clock_source& clock);

}  // namespace troupe::kv
