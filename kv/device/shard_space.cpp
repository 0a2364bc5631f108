// Of shard_store: room on the disk, chunk files and their headers, numbers of writes.
#include <algorithm>

#include "kv/device/shard_store_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

constexpr uint64_t sequence_step = uint64_t{1} << 20;  // numbers that one record in the database reserves

}  // namespace

result<run_range> shard_store::impl::allocate(uint32_t runs) {
  const uint64_t room = options.chunk_bytes / run_bytes - 1;
  {
    std::lock_guard lock(mutex);
    if (auto r = space.take(runs)) return *r;
    if (runs > room)
      return fail(errc::invalid_argument,
                  "{}: a shard of {} runs of 4 KiB fits into no chunk file of {} bytes; make them larger",
                  device_disk.name(), runs, options.chunk_bytes);
  }
  // Another put may have made a chunk meanwhile, or others may take the room of ours: so again, until the disk is full.
  std::lock_guard growing(grow_lock);
  for (;;) {
    {
      std::lock_guard lock(mutex);
      if (auto r = space.take(runs)) return *r;
    }
    if (auto r = grow(); !r) return fail(std::move(r.error()));
  }
}

result<void> shard_store::impl::grow() {
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  if (numbers.size() >= max_chunks)
    return fail(errc::exhausted, "{}: full, all of its {} chunk files of {} bytes are in use", device_disk.name(),
                numbers.size(), options.chunk_bytes);
  const uint32_t number = numbers.empty() ? 0 : numbers.back() + 1;
  if (auto r = device_disk.create(number, options.chunk_bytes); !r) return r;
  reach("grow.created");
  if (auto r = write_header(number, options.chunk_bytes); !r) {
    (void)device_disk.remove(number);  // an empty file: the next open would give it a header too
    return r;
  }
  reach("grow.header");
  std::lock_guard lock(mutex);
  space.add_chunk(number, static_cast<uint32_t>(options.chunk_bytes / run_bytes));
  return {};
}

result<void> shard_store::impl::write_header(uint32_t chunk, uint64_t bytes) {
  alignas(run_bytes) std::array<std::byte, run_bytes> page;
  encode(chunk_header{device, chunk, bytes}, page);
  if (auto r = device_disk.write(chunk, 0, page); !r) return r;
  return device_disk.sync(chunk);
}

result<uint64_t> shard_store::impl::sequences(uint64_t n) {
  const auto take = [&]() -> std::optional<uint64_t> {
    std::lock_guard lock(mutex);
    if (next_sequence + n > sequence_ceiling) return std::nullopt;
    next_sequence += n;
    return next_sequence - n;
  };
  if (auto s = take()) return *s;
  std::lock_guard growing(grow_lock);
  if (auto s = take()) return *s;
  {
    std::lock_guard lock(mutex);
    sequence_ceiling = next_sequence;  // nobody takes one while the next ceiling is being recorded
  }
  if (auto r = write_device(false); !r) return fail(std::move(r.error()));
  auto s = take();
  TROUPE_CHECK(s.has_value(), "{} numbers at once", n);
  return *s;
}

// Records the device with a higher ceiling, then uses it. Safe from power loss in every mode: a number that was used
// twice would let a rebuild take an old shard for a newer one.
result<void> shard_store::impl::write_device(bool rebuilding) {
  uint64_t ceiling = 0;
  {
    std::lock_guard lock(mutex);
    ceiling = std::max(sequence_ceiling, next_sequence) + sequence_step;
  }
  write_batch batch;
  batch.put(family::meta, device_record_key(options.target), encode(device_record{device, ceiling, rebuilding}));
  if (auto r = database.write(batch, sync_write::yes); !r) return r;
  std::lock_guard lock(mutex);
  sequence_ceiling = ceiling;
  return {};
}

shard_usage shard_store::impl::usage() {
  std::lock_guard lock(mutex);
  shard_usage u;
  const uint64_t chunk_runs = options.chunk_bytes / run_bytes - 1;
  const uint64_t more = max_chunks > space.chunks() ? max_chunks - space.chunks() : 0;
  u.capacity = (space.total() + more * chunk_runs) * run_bytes;
  u.allocated = space.taken() * run_bytes;
  u.payload = payload;
  u.shards = shards;
  u.largest_free = std::max<uint64_t>(space.largest_free(), more ? chunk_runs : 0) * run_bytes;
  u.chunks = static_cast<uint32_t>(space.chunks());
  return u;
}

std::span<const std::string_view> shard_store::crash_points() {
  static constexpr std::string_view points[] = {
      "open.recorded",    "open.loaded",    "grow.created",    "grow.header",   "put.allocated",
      "put.written",      "put.synced",     "put.committed",   "free.wiped",    "free.done",
      "remove.committed", "rebuild.marked", "rebuild.cleared", "rebuild.chunk", "rebuild.done"};
  return points;
}

}  // namespace troupe::kv
