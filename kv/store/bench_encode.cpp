// Encoding by kv/erasure beside plain ISA-L on the same buffers.
#include <isa-l.h>

#include <algorithm>
#include <cstring>

#include "kv/device/aligned_buffer.hpp"
#include "kv/erasure/codec.hpp"
#include "kv/store/bench.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {

result<encode_rates> bench_encode(uint32_t data, uint32_t parity, uint64_t shard_bytes, size_t extents, uint64_t seed,
                                  const clock_source& clock) {
  encode_rates out;
  if (parity == 0) return out;
  TROUPE_TRY(auto code, codec::get(data, parity));
  const uint32_t n = data + parity;
  aligned_buffer memory(shard_bytes * n * extents);
  rng random(seed, 11);
  for (size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const uint64_t v = random.next();
    std::memcpy(memory.data() + at, &v, 8);
  }
  std::vector<uint8_t> matrix(size_t{n} * data), tables(32ul * data * parity);
  gf_gen_cauchy1_matrix(matrix.data(), static_cast<int>(n), static_cast<int>(data));
  ec_init_tables(static_cast<int>(data), static_cast<int>(parity), matrix.data() + size_t{data} * data, tables.data());
  std::vector<std::byte*> shards(n);
  const auto point = [&](size_t extent) {
    for (uint32_t s = 0; s < n; ++s) shards[s] = memory.data() + (extent * n + s) * shard_bytes;
  };
  const double bytes = static_cast<double>(shard_bytes * data * extents);
  for (int round = 0; round < 15; ++round) {
    auto begin = clock.now();
    for (size_t e = 0; e < extents; ++e) {
      point(e);
      ec_encode_data(static_cast<int>(shard_bytes), static_cast<int>(data), static_cast<int>(parity), tables.data(),
                     reinterpret_cast<uint8_t**>(shards.data()), reinterpret_cast<uint8_t**>(shards.data() + data));
    }
    out.isal_gb_s = std::max(out.isal_gb_s, bytes / static_cast<double>((clock.now() - begin).count()));
    begin = clock.now();
    for (size_t e = 0; e < extents; ++e) {
      point(e);
      const std::vector<const std::byte*> from(shards.begin(), shards.begin() + data);
      if (auto r = code->encode(from, std::span(shards).subspan(data), shard_bytes); !r) return fail(r.error());
    }
    out.ours_gb_s = std::max(out.ours_gb_s, bytes / static_cast<double>((clock.now() - begin).count()));
  }
  return out;
}

}  // namespace troupe::kv
