// Of shard_store: opening a target, and making the taken runs known from the records.
#include <algorithm>

#include "kv/device/shard_store_impl.hpp"

namespace troupe::kv {
namespace {

constexpr size_t dropped_at_once = 1'024;

std::string hex(const device_uuid& u) {
  std::string out;
  for (const uint8_t b : u) out += fmt::format("{:02x}", b);
  return out;
}

}  // namespace

result<std::unique_ptr<shard_store>> shard_store::open(disk& d, db& database, const shard_store_options& options) {
  if (options.target.value == 0) return fail(errc::invalid_argument, "{}: target 0 is none", d.name());
  if (options.chunk_bytes < min_chunk_bytes || options.chunk_bytes > max_chunk_bytes || options.chunk_bytes % run_bytes)
    return fail(errc::invalid_argument, "{}: chunk files of {} bytes; they have 1 MiB to 16 GiB, a multiple of 4 KiB",
                d.name(), options.chunk_bytes);
  if (options.capacity_bytes / options.chunk_bytes > UINT32_MAX)
    return fail(errc::invalid_argument, "{}: a capacity of {} bytes is too large", d.name(), options.capacity_bytes);
  auto i = std::make_unique<impl>(d, database, options);
  i->max_chunks = static_cast<uint32_t>(std::max<uint64_t>(1, options.capacity_bytes / options.chunk_bytes));
  if (auto r = i->open(); !r) return fail(std::move(r.error()));
  return std::unique_ptr<shard_store>(new shard_store(std::move(i)));
}

result<void> shard_store::impl::open() {
  std::string value;
  TROUPE_TRY(const bool there, database.get(family::meta, device_record_key(options.target), value));
  std::optional<device_record> known;
  if (there)
    if (auto r = decode_device_record(value)) known = *r;
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  if (known && options.renew && !options.read_only && !numbers.empty()) known.reset();
  if (known) {
    device = known->device;
    next_sequence = sequence_ceiling = known->sequence_ceiling;
  } else if (auto r = find_device(); !r) {
    return r;
  }
  if (known && numbers.empty() && !options.accept_blank_disk && !options.renew) {
    TROUPE_TRY(const bool records, has_records());
    if (records || known->rebuilding)
      return fail(
          errc::unavailable,
          "{}: no chunk files, but the database knows shards of target {} there: is the disk mounted? If it is a "
          "new one: `troupe kv targets renew --dir DIR {}`, then `troupe kv scrub` fills it",
          device_disk.name(), options.target.value, options.target.value);
  }
  if (options.read_only && (!known || known->rebuilding) && !numbers.empty())
    return fail(errc::stale,
                "{}: the records of its shards must be made again; a command that may write does that, for example "
                "`troupe kv scrub`",
                device_disk.name());
  if (options.read_only && !known) return {};  // new and empty
  if (!known || known->rebuilding) {
    if (!numbers.empty() || known) return rebuild();
    // A new device. Records of an earlier one under this target's number would name its shards.
    if (auto r = clear_records(); !r) return r;
    if (auto r = write_device(false); !r) return r;
    reach("open.recorded");
    return {};
  }
  TROUPE_TRY(report.repaired_headers, check_headers());
  for (const uint32_t n : numbers) {
    TROUPE_TRY(const uint64_t bytes, device_disk.size(n));
    space.add_chunk(n, static_cast<uint32_t>(std::min<uint64_t>(bytes / run_bytes, UINT32_MAX)));
  }
  if (auto r = load_records(); !r) return r;
  reach("open.loaded");
  if (options.read_only) return {};
  if (auto r = write_device(false); !r) return r;
  reach("open.recorded");
  return {};
}

result<bool> shard_store::impl::has_records() const {
  const std::string prefix = shard_record_prefix(options.target);
  TROUPE_TRY(const auto walk, database.scan(family::shard, prefix));
  if (walk->valid()) return walk->key().starts_with(prefix);
  if (auto r = walk->status(); !r) return fail(std::move(r.error()));
  return false;
}

// Without a record of the device: its chunk headers name it, else its footers, else it is new.
result<void> shard_store::impl::find_device() {
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  alignas(run_bytes) std::array<std::byte, run_bytes> page;
  std::optional<device_uuid> found;
  for (const uint32_t n : numbers) {
    if (!device_disk.read(n, 0, page)) continue;
    const auto h = decode_chunk_header(page);
    if (!h) continue;
    if (found && *found != h->device)
      return fail(errc::unavailable, "{}: chunk {} belongs to device {}, others to {}; move the strangers away",
                  device_disk.name(), n, hex(h->device), hex(*found));
    found = h->device;
  }
  for (size_t i = 0; !found && i < numbers.size(); ++i) {
    TROUPE_TRY(const auto shards_there, scan_chunk(numbers[i], false));
    if (!shards_there.empty()) found = shards_there.front().device;
  }
  if (!found && options.new_device == device_uuid{})
    return fail(errc::invalid_argument, "{}: a new device needs an identity (new_device)", device_disk.name());
  device = found.value_or(options.new_device);
  return {};
}

// All headers must be of this device; those that do not hold are written again. A file that was cut gets its size back:
// what its header says, or that of new files where the header went too. Shards that lay there are found rotten.
result<uint64_t> shard_store::impl::check_headers() {
  TROUPE_TRY(const auto numbers, device_disk.chunks());
  alignas(run_bytes) std::array<std::byte, run_bytes> page;
  uint64_t repaired = 0;
  for (const uint32_t n : numbers) {
    TROUPE_TRY(uint64_t bytes, device_disk.size(n));
    // A header that cannot be read is written again like one that does not hold: that heals a bad sector.
    const bool read = device_disk.read(n, 0, page).has_value();
    const auto h = read ? decode_chunk_header(page) : fail(errc::corrupt, "unreadable");
    if (h && h->device != device)
      return fail(errc::unavailable,
                  "{}: chunk {} belongs to device {}, the database of target {} knows device {}: give each target its "
                  "own disk, or take this one as it is with `troupe kv targets renew --dir DIR {}`",
                  device_disk.name(), n, hex(h->device), options.target.value, hex(device), options.target.value);
    if ((h && h->number == n && h->bytes == bytes) || options.read_only) continue;
    const bool told = h && h->number == n && h->bytes <= max_chunk_bytes;
    const uint64_t whole = told ? h->bytes : bytes < min_chunk_bytes ? options.chunk_bytes : bytes;
    if (bytes < whole) {
      const auto grown = device_disk.create(n, whole);
      if (!grown && grown.error().code == errc::exhausted) continue;  // served as it is; again at the next open
      if (!grown) return fail(grown.error());
      bytes = whole;
    }
    if (auto r = write_header(n, bytes); !r) return fail(std::move(r.error()));
    ++repaired;
  }
  return repaired;
}

result<void> shard_store::impl::drop_records(const std::vector<std::string>& keys) {
  write_batch batch;
  for (const std::string& k : keys) batch.erase(family::shard, k);
  report.dropped_records += keys.size();
  if (options.read_only) return {};
  return batch.empty() ? result<void>{} : database.write(batch, commit_sync());
}

result<void> shard_store::impl::load_records() {
  const std::string prefix = shard_record_prefix(options.target);
  bool overlap = false;
  std::vector<std::string> bad;
  {
    TROUPE_TRY(const auto walk, database.scan(family::shard, prefix));
    for (; walk->valid() && walk->key().starts_with(prefix); walk->next()) {
      const auto k = parse_shard_record_key(walk->key());
      const auto f = decode_footer(std::as_bytes(std::span(walk->value())));
      const bool ours = k && f && f->extent.id == k->extent && f->shard == k->shard && f->device == device;
      const run_range place = ours ? run_range{f->chunk, f->first_run, f->runs} : run_range{};
      if (!ours || !space.contains(place)) {
        bad.emplace_back(walk->key());
        if (bad.size() < dropped_at_once) continue;
        if (auto r = drop_records(bad); !r) return r;
        bad.clear();
        continue;
      }
      if (!space.take(place)) {
        overlap = true;
        continue;
      }
      payload += f->payload_bytes;
      ++shards;
      next_sequence = std::max(next_sequence, f->sequence + 1);
    }
    if (auto r = walk->status(); !r) return r;
  }
  if (auto r = drop_records(bad); !r) return r;
  if (overlap)
    if (auto r = settle_overlaps(); !r) return r;
  report.shards = shards;
  return {};
}

// Two records cannot share runs unless something rotted. The newer one keeps them. Rare, so all records are held at
// once.
result<void> shard_store::impl::settle_overlaps() {
  struct entry {
    std::string key;
    run_range place;
    uint64_t sequence, bytes;
  };
  std::vector<entry> all;
  const std::string prefix = shard_record_prefix(options.target);
  TROUPE_TRY(const auto walk, database.scan(family::shard, prefix));
  for (; walk->valid() && walk->key().starts_with(prefix); walk->next())
    if (const auto f = decode_footer(std::as_bytes(std::span(walk->value()))))
      all.push_back({std::string(walk->key()), {f->chunk, f->first_run, f->runs}, f->sequence, f->payload_bytes});
  if (auto r = walk->status(); !r) return r;
  std::sort(all.begin(), all.end(), [](const entry& a, const entry& b) { return a.sequence > b.sequence; });
  space.clear();
  payload = shards = 0;
  std::vector<std::string> losers;
  for (entry& e : all) {
    if (!space.take(e.place)) {
      losers.push_back(std::move(e.key));
      continue;
    }
    payload += e.bytes;
    ++shards;
  }
  return drop_records(losers);
}

}  // namespace troupe::kv
