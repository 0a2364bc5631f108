// What the process that is killed does, and what its examiner expects: both derive it from the seed.
#pragma once

#include <string>

#include "kv/device/disk.hpp"
#include "kv/index/rocks_db.hpp"
#include "tests/kv/device/crash_world.hpp"

namespace troupe::kv::testing_support {

inline constexpr uint64_t kill_operations = 60;

/// Operation number `n` of a seed: puts of one to four shards (new or again), or removals of up to three.
inline operation kill_operation(uint64_t seed, uint64_t n) {
  rng draw(seed, 10 + n);
  operation op;
  std::set<uint64_t> chosen;
  const bool put = draw.below(4) != 0;
  const uint64_t many = 1 + draw.below(put ? 4 : 3);
  while (chosen.size() < many) chosen.insert(draw.below(16));
  for (const uint64_t which : chosen) {
    made_shard s = make_shard(which, which % 3, static_cast<uint32_t>(500 + which * 3'000));
    s.extent.epoch = storage_epoch{n};  // which version it is
    if (put)
      op.puts.push_back(std::move(s));
    else
      op.removes.push_back(s.key());
  }
  return op;
}

/// The store in `directory`, on real files. `hook` may be null.
struct real_store {
  std::unique_ptr<disk> files;
  std::unique_ptr<db> records;
  std::unique_ptr<shard_store> store;
};

/// Opens it; errors as those of its parts.
inline result<real_store> open_real(const std::string& directory, crash_hook* hook) {
  real_store r;
  TROUPE_TRY(r.files, open_file_disk(directory + "/disk"));
  rocks_options o;
  o.path = directory + "/db";
  o.block_cache_bytes = o.write_buffer_bytes = uint64_t{8} << 20;
  TROUPE_TRY(r.records, open_rocks_db(o));
  shard_store_options s = small_device();
  s.crash = hook;
  TROUPE_TRY(r.store, shard_store::open(*r.files, *r.records, s));
  return r;
}

}  // namespace troupe::kv::testing_support
