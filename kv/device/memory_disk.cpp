#include "kv/device/memory_disk.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace troupe::kv {

memory_disk::memory_disk(memory_disk_options options) : options_(std::move(options)), draw_(options_.seed, 41) {}
memory_disk::~memory_disk() = default;

result<memory_disk::file*> memory_disk::find(uint32_t chunk, uint64_t offset, size_t bytes, const void* address) {
  if (gone_) return fail(errc::io, "disk {} is gone", options_.name);
  const auto it = files_.find(chunk);
  if (it == files_.end()) return fail(errc::not_found, "disk {} has no chunk {}", options_.name, chunk);
  if (offset % sector_bytes || bytes % sector_bytes || reinterpret_cast<uintptr_t>(address) % sector_bytes)
    return fail(errc::invalid_argument, "disk {}: offset {}, size {} or address is no multiple of {}", options_.name,
                offset, bytes, sector_bytes);
  if (offset > it->second.bytes || bytes > it->second.bytes - offset)
    return fail(errc::invalid_argument, "disk {}: {} + {} is past the end of chunk {} ({})", options_.name, offset,
                bytes, chunk, it->second.bytes);
  return &it->second;
}

result<std::vector<uint32_t>> memory_disk::chunks() {
  std::shared_lock lock(mutex_);
  if (gone_) return fail(errc::io, "disk {} is gone", options_.name);
  std::vector<uint32_t> out;
  for (const auto& [number, f] : files_) out.push_back(number);
  return out;
}

result<void> memory_disk::create(uint32_t chunk, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (gone_) return fail(errc::io, "disk {} is gone", options_.name);
  const auto there = files_.find(chunk);
  const uint64_t had = there == files_.end() ? 0 : there->second.bytes;
  if (bytes == 0 || bytes % sector_bytes || (there != files_.end() && had >= bytes))
    return fail(errc::invalid_argument, "disk {}: chunk {} of {} bytes cannot be made", options_.name, chunk, bytes);
  uint64_t used = 0;  // by others
  for (const auto& [number, f] : files_) used += number == chunk ? 0 : f.bytes;
  if (full_ || bytes > options_.capacity_bytes || used > options_.capacity_bytes - bytes)
    return fail(errc::exhausted, "disk {} is full: no room for a chunk of {} bytes", options_.name, bytes);
  file& f = files_[chunk];
  f.bytes = bytes;
  f.live.resize(bytes / sector_bytes);
  return {};
}

result<uint64_t> memory_disk::size(uint32_t chunk) {
  std::shared_lock lock(mutex_);
  TROUPE_TRY(const file* f, find(chunk, 0, 0, nullptr));
  return f->bytes;
}

void memory_disk::store(file& f, uint64_t number, const std::byte* bytes) {
  auto made = std::make_shared<sector>();
  std::memcpy(made->data(), bytes, sector_bytes);
  auto& versions = f.before[number];
  versions.push_back(std::move(f.live[number]));
  // The synced version stays: it is the one that everything committed may lean on.
  if (versions.size() == versions_max) versions.erase(versions.begin() + 1);
  f.live[number] = std::move(made);
}

result<void> memory_disk::write(uint32_t chunk, uint64_t offset, std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t number = writes_++;
  TROUPE_TRY(file * f, find(chunk, offset, bytes.size(), bytes.data()));
  if (write_error_) return fail(*write_error_);
  uint64_t sectors = bytes.size() / sector_bytes;
  bool cut = false;
  if (const auto it = std::find_if(planned_.begin(), planned_.end(), [&](const planned& p) { return p.at == number; });
      it != planned_.end()) {
    cut = it->sectors.has_value();
    sectors = std::min(sectors, it->sectors.value_or(0));
    planned_.erase(it);
  }
  const memory_disk_faults& p = options_.faults;
  if (p.lost > 0 && draw_.uniform() < p.lost) sectors = 0;
  if (p.torn > 0 && draw_.uniform() < p.torn) sectors = draw_.below(sectors + 1);
  for (uint64_t i = 0; i < sectors; ++i) store(*f, offset / sector_bytes + i, bytes.data() + i * sector_bytes);
  if (sectors && p.rotten > 0 && draw_.uniform() < p.rotten) {
    const uint64_t at = offset / sector_bytes + draw_.below(sectors);
    auto rotten = std::make_shared<sector>(*f->live[at]);
    (*rotten)[draw_.below(sector_bytes)] ^= static_cast<std::byte>(1 << draw_.below(8));
    f->live[at] = std::move(rotten);
  }
  if (!cut) return {};
  lock.unlock();
  crash_point(options_.crash, "disk.torn");
  return fail(errc::io, "disk {}: a write to chunk {} was torn", options_.name, chunk);
}

result<void> memory_disk::read(uint32_t chunk, uint64_t offset, std::span<std::byte> out) {
  std::shared_lock lock(mutex_);
  TROUPE_TRY(const file* f, find(chunk, offset, out.size(), out.data()));
  for (uint64_t i = 0; i < out.size() / sector_bytes; ++i) {
    const sector_ptr& s = f->live[offset / sector_bytes + i];
    if (s)
      std::memcpy(out.data() + i * sector_bytes, s->data(), sector_bytes);
    else
      std::memset(out.data() + i * sector_bytes, 0, sector_bytes);
  }
  return {};
}

result<void> memory_disk::sync(uint32_t chunk) {
  std::unique_lock lock(mutex_);
  TROUPE_TRY(file * f, find(chunk, 0, 0, nullptr));
  f->before.clear();
  return {};
}

result<void> memory_disk::remove(uint32_t chunk) {
  std::unique_lock lock(mutex_);
  TROUPE_TRY([[maybe_unused]] file * f, find(chunk, 0, 0, nullptr));
  files_.erase(chunk);
  return {};
}

std::unique_ptr<memory_disk> memory_disk::copy() const {
  std::shared_lock lock(mutex_);
  memory_disk_options plain;
  plain.capacity_bytes = options_.capacity_bytes;
  plain.seed = options_.seed;
  plain.name = options_.name;
  auto out = std::make_unique<memory_disk>(plain);
  out->files_ = files_;  // sectors are never changed in place: the copies share them
  return out;
}

void memory_disk::power_loss(rng& draw) {
  std::unique_lock lock(mutex_);
  for (auto& [number, f] : files_) {
    for (auto& [at, versions] : f.before) {
      const uint64_t chosen = draw.below(versions.size() + 1);
      if (chosen < versions.size()) f.live[at] = versions[chosen];
    }
    f.before.clear();
  }
}

uint64_t memory_disk::unsynced() const {
  std::shared_lock lock(mutex_);
  uint64_t n = 0;
  for (const auto& [number, f] : files_) n += f.before.size();
  return n;
}

void memory_disk::set_gone(bool gone) {
  std::unique_lock lock(mutex_);
  gone_ = gone;
}

void memory_disk::set_full(bool full) {
  std::unique_lock lock(mutex_);
  full_ = full;
}

void memory_disk::fail_writes(std::optional<error> e) {
  std::unique_lock lock(mutex_);
  write_error_ = std::move(e);
}

void memory_disk::tear_next(uint64_t skip, uint64_t sectors) {
  std::unique_lock lock(mutex_);
  planned_.push_back({writes_ + skip, sectors});
}

void memory_disk::lose_next(uint64_t skip) {
  std::unique_lock lock(mutex_);
  planned_.push_back({writes_ + skip, std::nullopt});
}

bool memory_disk::flip(uint32_t chunk, uint64_t offset, uint8_t mask) {
  std::unique_lock lock(mutex_);
  const auto it = files_.find(chunk);
  if (it == files_.end() || offset >= it->second.bytes) return false;
  sector_ptr& s = it->second.live[offset / sector_bytes];
  auto rotten = s ? std::make_shared<sector>(*s) : std::make_shared<sector>();
  (*rotten)[offset % sector_bytes] ^= static_cast<std::byte>(mask);
  s = std::move(rotten);
  return true;
}

uint64_t memory_disk::writes() const {
  std::shared_lock lock(mutex_);
  return writes_;
}

}  // namespace troupe::kv
