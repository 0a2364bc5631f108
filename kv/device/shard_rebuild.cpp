// Of shard_store: making the records again from the shards on the disk.
#include <algorithm>
#include <map>

#include "kv/device/shard_store_impl.hpp"

namespace troupe::kv {
namespace {

constexpr size_t window_bytes = size_t{1} << 20;
constexpr size_t batch_records = 1'024;

}  // namespace

result<void> shard_store::impl::clear_records() {
  const std::string prefix = shard_record_prefix(options.target);
  for (;;) {
    write_batch batch;
    {
      TROUPE_TRY(const auto walk, database.scan(family::shard, prefix));
      for (; walk->valid() && walk->key().starts_with(prefix) && batch.size() < batch_records; walk->next())
        batch.erase(family::shard, walk->key());
      if (auto r = walk->status(); !r) return r;
    }
    if (batch.empty()) return {};
    if (auto r = database.write(batch, commit_sync()); !r) return r;
  }
}

result<void> shard_store::impl::rebuild() {
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  // Without chunk files there is nothing that a cut could leave incomplete. (A mark and no chunk files: a lost disk.)
  if (!numbers.empty())
    if (auto r = write_device(true); !r) return r;
  reach("rebuild.marked");
  if (auto r = clear_records(); !r) return r;
  reach("rebuild.cleared");
  report = {};
  report.rebuilt = true;
  TROUPE_TRY(report.repaired_headers, check_headers());
  space.clear();
  payload = shards = 0;
  for (const uint32_t n : numbers) {
    TROUPE_TRY(const uint64_t bytes, device_disk.size(n));
    space.add_chunk(n, static_cast<uint32_t>(std::min<uint64_t>(bytes / run_bytes, UINT32_MAX)));
  }
  for (const uint32_t n : numbers) {
    if (auto r = rebuild_chunk(n); !r) return r;
    reach("rebuild.chunk");
  }
  report.shards = shards;
  if (auto r = write_device(false); !r) return r;
  reach("rebuild.done");
  return {};
}

// Footers in bytes [from, to) of chunk `chunk` that say they lie where they were found; returns how many did not hold.
// `own`: of this device only.
uint64_t shard_store::impl::footers_in(uint32_t chunk, uint64_t from, uint64_t to, bool own,
                                       std::vector<shard_footer>& out) {
  uint64_t rotten = 0;
  const aligned_buffer buffer(window_bytes);
  for (uint64_t at = from; at < to; at += window_bytes) {
    const auto window = buffer.bytes().first(std::min<uint64_t>(window_bytes, to - at));
    const bool whole = device_disk.read(chunk, at, window).has_value();
    for (uint64_t in = 0; in < window.size(); in += run_bytes) {
      const auto page = window.subspan(in, run_bytes);
      // A window that cannot be read is read run by run: the shards around a bad spot are still there.
      if (!whole && !device_disk.read(chunk, at + in, page)) continue;
      auto f = decode_footer(page.subspan(run_bytes - footer_bytes));
      if (!f) {
        rotten += f.error().code == errc::corrupt;
        continue;
      }
      const uint64_t run = (at + in) / run_bytes;
      if ((!own || f->device == device) && f->chunk == chunk && uint64_t{f->first_run} + f->runs - 1 == run)
        out.push_back(std::move(*f));
    }
  }
  return rotten;
}

// Those of the whole chunk, newest first.
result<std::vector<shard_footer>> shard_store::impl::scan_chunk(uint32_t chunk, bool own) {
  TROUPE_TRY(const uint64_t bytes, device_disk.size(chunk));
  std::vector<shard_footer> out;
  report.rotten += footers_in(chunk, 0, bytes, own, out);
  std::sort(out.begin(), out.end(),
            [](const shard_footer& a, const shard_footer& b) { return a.sequence > b.sequence; });
  return out;
}

result<uint64_t> shard_store::impl::find_unrecorded(const std::function<bool(const shard_footer&)>& each) {
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  aligned_buffer buffer;
  uint64_t found = 0;
  for (const uint32_t n : numbers) {
    std::vector<run_range> free;
    {
      std::lock_guard lock(mutex);
      free = space.free_rows(n);
    }
    for (const run_range& row : free) {
      std::vector<shard_footer> here;
      (void)footers_in(n, uint64_t{row.first} * run_bytes, (uint64_t{row.first} + row.runs) * run_bytes, true, here);
      for (const shard_footer& f : here) {
        if (f.first_run < row.first || !verify(f, buffer, true)) continue;  // what is left of it was overwritten
        const auto recorded = load({f.extent.id, f.shard});
        if (recorded && recorded->sequence >= f.sequence) continue;
        ++found;
        if (!each(f)) return found;
      }
    }
  }
  return found;
}

// A newer shard may lie over what is left of older ones: newest first, each must hold its checksums and find its runs
// free. Of two versions of one shard the newer one stays.
result<void> shard_store::impl::rebuild_chunk(uint32_t chunk) {
  TROUPE_TRY(const auto found, scan_chunk(chunk, true));
  aligned_buffer buffer;
  write_batch batch;
  std::map<shard_key, shard_footer> waiting;  // in the batch, not yet written
  std::vector<run_range> losers;
  const auto flush = [&]() -> result<void> {
    if (!batch.empty())
      if (auto r = database.write(batch, commit_sync()); !r) return r;
    batch.clear();
    waiting.clear();
    for (const run_range& r : losers) wipe_and_free(r);
    losers.clear();
    return {};
  };
  std::string value;
  for (const shard_footer& f : found) {
    next_sequence = std::max(next_sequence, f.sequence + 1);
    const shard_key k{f.extent.id, f.shard};
    const run_range place{f.chunk, f.first_run, f.runs};
    if (!space.take(place)) {
      ++report.superseded;
      continue;
    }
    if (!verify(f, buffer, true)) {
      space.free(place);
      ++report.rotten;
      continue;
    }
    std::optional<shard_footer> other;
    if (const auto it = waiting.find(k); it != waiting.end()) {
      other = it->second;
    } else {
      TROUPE_TRY(const bool there, database.get(family::shard, key(k), value));
      if (there)
        if (auto old = decode_footer(std::as_bytes(std::span(value)))) other = std::move(*old);
    }
    if (other) ++report.superseded;
    if (other && other->sequence >= f.sequence) {
      losers.push_back(place);
      continue;
    }
    if (other) {
      losers.push_back({other->chunk, other->first_run, other->runs});
      payload -= other->payload_bytes;
      --shards;
    }
    batch.put(family::shard, key(k), encode(f));
    waiting[k] = f;
    payload += f.payload_bytes;
    ++shards;
    if (batch.size() >= batch_records)
      if (auto r = flush(); !r) return r;
  }
  return flush();
}

}  // namespace troupe::kv
