#include "kv/device/shard_store.hpp"

#include <algorithm>
#include <cstring>

#include "kv/device/shard_store_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

run_range place_of(const shard_footer& f) { return {f.chunk, f.first_run, f.runs}; }

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % run_bytes == 0; }

}  // namespace

aligned_buffer buffer_pool::take(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->size() >= bytes) {
        aligned_buffer b = std::move(*it);
        kept_.erase(it);
        return b;
      }
  }
  return aligned_buffer(bytes);
}

void buffer_pool::give(aligned_buffer b) {
  std::lock_guard lock(mutex_);
  if (b.size() > kept_bytes_max) return;
  if (kept_.size() == kept_max) kept_.erase(kept_.begin());  // sizes change over time: the oldest goes
  kept_.push_back(std::move(b));
}

std::vector<std::unique_lock<std::mutex>> shard_store::impl::lock_keys(std::vector<size_t> wanted) {
  std::sort(wanted.begin(), wanted.end());  // one order for all, so no two wait for each other
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::vector<std::unique_lock<std::mutex>> held;
  for (const size_t w : wanted) held.emplace_back(commit_locks[w]);
  return held;
}

result<void> shard_store::impl::put(std::span<const shard_put> items) {
  if (items.empty()) return {};
  if (options.read_only) return fail(errc::unavailable, "{}: was opened for reading only", device_disk.name());
  std::vector<shard_key> keys;
  for (const shard_put& i : items) {
    if (!i.extent) return fail(errc::invalid_argument, "put without an extent");
    if (auto r = validate(*i.extent); !r) return r;
    const shard_key k{i.extent->id, i.shard};
    if (i.shard >= i.extent->shards())
      return fail(errc::invalid_argument, "{}: the extent has {} shards", who(k), i.extent->shards());
    if (i.payload.size() != shard_bytes(*i.extent))
      return fail(errc::invalid_argument, "{}: payload of {} bytes, its shards have {}", who(k), i.payload.size(),
                  shard_bytes(*i.extent));
    if (!i.room.empty() && (i.room.data() != i.payload.data() || !is_aligned(i.room.data()) ||
                            i.room.size() != shard_buffer_bytes(i.payload.size())))
      return fail(errc::invalid_argument, "{}: its room is not the aligned buffer that starts with the payload",
                  who(k));
    keys.push_back(k);
  }
  std::sort(keys.begin(), keys.end());
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
    return fail(errc::invalid_argument, "{} is given twice", who(*twice));
  if (broken) return fail(errc::io, "{}: a commit failed before; open the target again", device_disk.name());

  // Runs that are not committed go back on every way out; a crash forgets them.
  struct reservation {
    impl& self;
    std::vector<run_range> places;
    ~reservation() {
      std::lock_guard lock(self.mutex);
      for (const run_range& r : places) self.space.free(r);
    }
  } reserved{*this, {}};
  for (const shard_put& i : items) {
    TROUPE_TRY(const run_range r, allocate(runs_of(i.payload.size())));
    reserved.places.push_back(r);
  }
  TROUPE_TRY(const uint64_t sequence, sequences(items.size()));
  reach("put.allocated");
  std::vector<std::string> records(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (auto r = write_shard(items[i], reserved.places[i], sequence + i, records[i]); !r) return r;
    reach("put.written");
  }
  if (options.durable == durability::power) {
    std::vector<uint32_t> touched;
    for (const run_range& r : reserved.places) touched.push_back(r.chunk);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const uint32_t c : touched)
      if (auto r = device_disk.sync(c); !r) return r;
    reach("put.synced");
  }
  auto places = std::move(reserved.places);
  reserved.places.clear();
  return commit_put(items, places, records);
}

result<void> shard_store::impl::write_shard(const shard_put& item, const run_range& at, uint64_t sequence,
                                            std::string& record) {
  shard_footer f;
  f.device = device;
  f.chunk = at.chunk;
  f.first_run = at.first;
  f.runs = at.runs;
  f.sequence = sequence;
  f.shard = item.shard;
  f.payload_bytes = item.payload.size();
  f.crc_shift = crc_shift_of(*item.extent);
  f.crcs = granule_crcs(item.payload, f.crc_shift);
  f.extent = *item.extent;
  record = encode(f);

  const size_t bytes = size_t{at.runs} * run_bytes;
  aligned_buffer own;
  std::span<std::byte> room = item.room;
  if (room.empty()) {
    own = buffers.take(bytes);
    room = own.bytes().first(bytes);
    std::memcpy(room.data(), item.payload.data(), item.payload.size());
  }
  std::memset(room.data() + item.payload.size(), 0, bytes - item.payload.size());
  std::memcpy(room.data() + bytes - footer_bytes, record.data(), record.size());
  auto done = device_disk.write(at.chunk, uint64_t{at.first} * run_bytes, room);
  if (own.data()) buffers.give(std::move(own));
  return done;
}

// After a commit that failed nobody knows whether the records count, so `places` stay taken; not so where the database
// had no room and says that nothing was written.
result<void> shard_store::impl::commit_put(std::span<const shard_put> items, const std::vector<run_range>& places,
                                           const std::vector<std::string>& records) {
  std::vector<size_t> wanted;
  for (const shard_put& i : items) wanted.push_back(stripe({i.extent->id, i.shard}));
  auto held = lock_keys(std::move(wanted));

  write_batch batch;
  std::vector<std::optional<shard_footer>> before(items.size());
  std::string value;
  uint64_t old_payload = 0, old_shards = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string k = key({items[i].extent->id, items[i].shard});
    auto there = database.get(family::shard, k, value);
    if (!there) {
      std::lock_guard lock(mutex);
      for (const run_range& r : places) space.free(r);
      return fail(std::move(there.error()));
    }
    batch.put(family::shard, k, records[i]);
    if (!*there) continue;
    // A record that has rotted since open names no runs any more: they come back at the next open.
    if (auto f = decode_footer(std::as_bytes(std::span(value))); f) before[i] = std::move(*f);
    ++old_shards;
    old_payload += before[i] ? before[i]->payload_bytes : items[i].payload.size();
  }
  if (auto r = database.write(batch, commit_sync()); !r) {
    if (r.error().code == errc::exhausted) {  // not written at all, see db.hpp
      std::lock_guard lock(mutex);
      for (const run_range& p : places) space.free(p);
    } else {
      broken = true;
    }
    return r;
  }
  {
    std::lock_guard lock(mutex);
    for (const shard_put& i : items) payload += i.payload.size();
    payload -= old_payload;
    shards += items.size() - old_shards;
  }
  reach("put.committed");
  for (size_t i = 0; i < items.size(); ++i)
    if (before[i]) release({items[i].extent->id, items[i].shard}, place_of(*before[i]));
  return {};
}

result<size_t> shard_store::impl::remove(std::span<const shard_key> keys) {
  if (options.read_only) return fail(errc::unavailable, "{}: was opened for reading only", device_disk.name());
  if (broken) return fail(errc::io, "{}: a commit failed before; open the target again", device_disk.name());
  std::vector<shard_key> unique(keys.begin(), keys.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  std::vector<size_t> wanted;
  for (const shard_key& k : unique) wanted.push_back(stripe(k));
  auto held = lock_keys(std::move(wanted));

  write_batch batch;
  std::vector<std::pair<shard_key, run_range>> gone;
  std::string value;
  uint64_t bytes = 0;
  for (const shard_key& k : unique) {
    if (k.shard >= max_data_shards + max_parity_shards) continue;
    TROUPE_TRY(const bool there, database.get(family::shard, key(k), value));
    if (!there) continue;
    batch.erase(family::shard, key(k));
    if (auto f = decode_footer(std::as_bytes(std::span(value))); f) {
      gone.emplace_back(k, place_of(*f));
      bytes += f->payload_bytes;
    }
  }
  if (batch.empty()) return size_t{0};
  if (auto r = database.write(batch, commit_sync()); !r) {
    broken = r.error().code != errc::exhausted;
    return fail(std::move(r.error()));
  }
  {
    std::lock_guard lock(mutex);
    payload -= bytes;
    shards -= batch.size();
  }
  reach("remove.committed");
  for (const auto& [k, r] : gone) release(k, r);
  return batch.size();
}

// After the commit that removed the runs' shard: they are free once nobody reads them any more.
void shard_store::impl::release(const shard_key& k, const run_range& r) {
  {
    std::lock_guard lock(mutex);
    if (const auto it = pins.find(k); it != pins.end()) {
      it->second.removed.push_back(r);
      return;
    }
  }
  wipe_and_free(r);
}

void shard_store::impl::wipe_and_free(const run_range& r) {
  alignas(run_bytes) static constexpr std::array<std::byte, run_bytes> zeros{};
  // If this write fails, a rebuild may find the shard once more; the scrub of the store removes it then.
  (void)device_disk.write(r.chunk, uint64_t{r.first + r.runs - 1} * run_bytes, zeros);
  reach("free.wiped");
  {
    std::lock_guard lock(mutex);
    space.free(r);
  }
  reach("free.done");
}

result<shard_footer> shard_store::impl::load(const shard_key& k) const {
  if (k.shard >= max_data_shards + max_parity_shards) return fail(errc::not_found, "{} does not exist", who(k));
  std::string value;
  TROUPE_TRY(const bool there, database.get(family::shard, key(k), value));
  if (!there) return fail(errc::not_found, "{} does not exist", who(k));
  auto f = decode_footer(std::as_bytes(std::span(value)));
  if (!f || f->extent.id != k.extent || f->shard != k.shard || f->device != device)
    return fail(errc::corrupt, "{}: its record does not hold ({})", who(k),
                f ? "it names another shard" : f.error().message);
  return f;
}

// The pin comes before the look at the record: a removal that commits after that look finds the pin.
result<void> shard_store::impl::with_pin(const shard_key& k,
                                         const std::function<result<void>(const shard_footer&)>& f) {
  {
    std::lock_guard lock(mutex);
    ++pins[k].readers;
  }
  auto record = load(k);
  auto done = record ? f(*record) : fail(std::move(record.error()));
  std::vector<run_range> removed;
  {
    std::lock_guard lock(mutex);
    const auto it = pins.find(k);
    if (--it->second.readers == 0) {
      removed = std::move(it->second.removed);
      pins.erase(it);
    }
  }
  for (const run_range& r : removed) wipe_and_free(r);
  return done;
}

result<void> shard_store::impl::read(const shard_footer& f, uint64_t offset, uint64_t bytes, std::span<std::byte> into,
                                     const std::function<void(std::span<const std::byte>)>* sink) {
  const shard_key k{f.extent.id, f.shard};
  if (offset > f.payload_bytes || bytes > f.payload_bytes - offset)
    return fail(errc::invalid_argument, "{}: bytes {} + {} are past its {}", who(k), offset, bytes, f.payload_bytes);
  if (bytes == 0) {
    if (sink) (*sink)({});
    return {};
  }
  const uint64_t size = f.granule();
  const uint64_t first = offset / size, last = (offset + bytes - 1) / size;
  const uint64_t from = first * size;
  const uint64_t to = std::min((last + 1) * size, f.payload_bytes);
  const uint64_t padded = (to + run_bytes - 1) / run_bytes * run_bytes;
  const bool straight = !sink && from == offset && padded == offset + bytes && is_aligned(into.data());
  aligned_buffer own;
  std::span<std::byte> buffer = into;
  if (!straight) {
    own = buffers.take(padded - from);
    buffer = own.bytes().first(padded - from);
  }
  auto done = device_disk.read(f.chunk, uint64_t{f.first_run} * run_bytes + from, buffer);
  for (uint64_t g = first; done && g <= last; ++g) {
    const uint64_t at = g * size, n = std::min(size, f.payload_bytes - at);
    if (crc32c(buffer.subspan(at - from, n)) != f.crcs[g])
      done = fail(errc::corrupt, "{}: bytes {} + {} (chunk {}, run {}) do not hold their checksum", who(k), at, n,
                  f.chunk, f.first_run + at / run_bytes);
  }
  if (done && sink) (*sink)(buffer.subspan(offset - from, bytes));
  if (done && !sink && !straight) std::memcpy(into.data(), buffer.data() + (offset - from), bytes);
  if (own.data()) buffers.give(std::move(own));
  return done;
}

// Reads all of a shard into `buffer` and compares with its record.
result<void> shard_store::impl::verify(const shard_footer& f, aligned_buffer& buffer, bool payload_only) {
  const shard_key k{f.extent.id, f.shard};
  const size_t bytes = size_t{f.runs} * run_bytes;
  if (buffer.size() < bytes) buffer = aligned_buffer(bytes);
  const auto all = buffer.bytes().first(bytes);
  if (auto r = device_disk.read(f.chunk, uint64_t{f.first_run} * run_bytes, all); !r) return r;
  if (granule_crcs(all.first(f.payload_bytes), f.crc_shift) != f.crcs)
    return fail(errc::corrupt, "{}: its payload does not hold its checksums", who(k));
  if (payload_only) return {};
  const std::string image = encode(f);
  std::vector<std::byte> tail(bytes - f.payload_bytes);
  std::memcpy(tail.data() + tail.size() - footer_bytes, image.data(), image.size());
  if (!std::equal(tail.begin(), tail.end(), all.begin() + static_cast<ptrdiff_t>(f.payload_bytes)))
    return fail(errc::corrupt, "{}: its footer or padding on the disk differs from its record", who(k));
  return {};
}

shard_store::shard_store(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
shard_store::~shard_store() = default;

result<void> shard_store::put(std::span<const shard_put> items) { return impl_->put(items); }

result<void> shard_store::put(const extent_info& extent, uint32_t shard, std::span<const std::byte> payload) {
  const shard_put one{&extent, shard, payload, {}};
  return impl_->put({&one, 1});
}

result<void> shard_store::read(const extent_id& extent, uint32_t shard, uint64_t offset, std::span<std::byte> out) {
  return impl_->with_pin({extent, shard},
                         [&](const shard_footer& f) { return impl_->read(f, offset, out.size(), out, nullptr); });
}

result<void> shard_store::read(const extent_id& extent, uint32_t shard, uint64_t offset, uint64_t bytes,
                               const std::function<void(std::span<const std::byte>)>& sink) {
  return impl_->with_pin({extent, shard},
                         [&](const shard_footer& f) { return impl_->read(f, offset, bytes, {}, &sink); });
}

result<shard_footer> shard_store::stat(const extent_id& extent, uint32_t shard) const {
  return impl_->load({extent, shard});
}

result<size_t> shard_store::remove(std::span<const shard_key> shards) { return impl_->remove(shards); }

result<size_t> shard_store::remove(const extent_id& extent, uint32_t shard) {
  const shard_key k{extent, shard};
  return impl_->remove({&k, 1});
}

result<std::vector<shard_footer>> shard_store::list(const std::optional<shard_key>& after, size_t n,
                                                    uint64_t* corrupt) const {
  const std::string prefix = shard_record_prefix(impl_->options.target);
  // The least key greater than `after`'s: the same with a zero byte behind it.
  const std::string from = after ? impl_->key({after->extent, std::min(after->shard, 255u)}) + '\0' : prefix;
  std::vector<shard_footer> out;
  if (corrupt) *corrupt = 0;
  TROUPE_TRY(const auto walk, impl_->database.scan(family::shard, from));
  for (; walk->valid() && walk->key().starts_with(prefix) && out.size() < n; walk->next()) {
    const auto k = parse_shard_record_key(walk->key());
    auto f = decode_footer(std::as_bytes(std::span(walk->value())));
    if (k && f && f->extent.id == k->extent && f->shard == k->shard && f->device == impl_->device)
      out.push_back(std::move(*f));
    else if (corrupt)
      ++*corrupt;
  }
  if (auto r = walk->status(); !r) return fail(std::move(r.error()));
  return out;
}

result<void> shard_store::check(const extent_id& extent, uint32_t shard) {
  aligned_buffer buffer;
  return impl_->with_pin({extent, shard}, [&](const shard_footer& f) { return impl_->verify(f, buffer, false); });
}

result<uint64_t> shard_store::check_headers() { return impl_->check_headers(); }

result<uint64_t> shard_store::find_unrecorded(const std::function<bool(const shard_footer&)>& each) {
  return impl_->find_unrecorded(each);
}

result<shard_store_report> shard_store::rebuild() {
  if (auto r = impl_->rebuild(); !r) return fail(std::move(r.error()));
  return impl_->report;
}

shard_usage shard_store::usage() const { return impl_->usage(); }
const shard_store_report& shard_store::report() const { return impl_->report; }
const device_uuid& shard_store::device() const { return impl_->device; }

}  // namespace troupe::kv
