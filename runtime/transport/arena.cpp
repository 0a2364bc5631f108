#include "runtime/transport/arena.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "runtime/base/rng.hpp"

namespace troupe::transport {

class arena_region final : public memory_region {
 public:
  explicit arena_region(std::shared_ptr<arena> owner) : arena_(std::move(owner)) {}

  ~arena_region() override {
    if (base_) header()->alive.store(0, std::memory_order_seq_cst);
    std::lock_guard lock(arena_->mutex_);
    arena_->regions_.erase(descriptor_.id);
    shared_.reset();
    if (private_) munmap(private_, mapped_);
  }

  std::span<std::byte> bytes() const override { return {base_ + region_header_bytes, descriptor_.length}; }
  const remote_region& descriptor() const override { return descriptor_; }

  // Under the arena's mutex.
  result<void> allocate(size_t bytes) {
    mapped_ = region_header_bytes + bytes;
    if (arena_->shares_) {
      TROUPE_TRY(shared_, memory::allocate(mapped_));
      base_ = shared_->bytes().data();
      descriptor_.key = shared_->key();
    } else {
      void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) return fail(errc::exhausted, "{} B of memory: errno {}", bytes, errno);
      private_ = p;
      base_ = static_cast<std::byte*>(p);
    }
    descriptor_.owner = arena_->identity_;
    descriptor_.id = arena_->next_id_++;
    descriptor_.generation = entropy_seed();
    descriptor_.base = reinterpret_cast<uint64_t>(base_);
    descriptor_.length = bytes;
    new (base_) region_header{region_header_magic, descriptor_.id, descriptor_.generation, 1};
    return {};
  }

 private:
  region_header* header() const { return reinterpret_cast<region_header*>(base_); }

  const std::shared_ptr<arena> arena_;
  std::unique_ptr<memory> shared_;
  void* private_ = nullptr;
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  remote_region descriptor_;
};

result<region_ptr> arena::allocate(size_t bytes) {
  if (bytes == 0 || bytes > (uint64_t{1} << 46))
    return fail(errc::invalid_argument, "a region of {} B: it must be 1 B to 64 TiB", bytes);
  auto region = std::make_shared<arena_region>(shared_from_this());
  std::unique_lock lock(mutex_);
  auto made = region->allocate(bytes);
  if (made) regions_[region->descriptor().id] = region;
  lock.unlock();  // a failed region is destroyed below, which locks again
  if (!made) return fail(made.error());
  return region;
}

region_ptr arena::find(uint64_t id, uint64_t generation) {
  region_ptr r;  // let go after the lock: it may be the last reference
  std::lock_guard lock(mutex_);
  const auto known = regions_.find(id);
  if (known == regions_.end()) return nullptr;
  r = known->second.lock();
  return r && r->descriptor().generation == generation ? r : nullptr;
}

result<std::unique_ptr<mapping>> arena::map(const remote_region& remote) {
  TROUPE_TRY(auto m, mapping::open(remote.key));
  const auto* h = reinterpret_cast<const region_header*>(m->data());
  if (m->size() != region_header_bytes + remote.length || h->magic != region_header_magic || h->id != remote.id ||
      h->generation != remote.generation || h->alive.load(std::memory_order_seq_cst) == 0)
    return fail(errc::stale, "region {} of the peer is gone", remote.id);
  return m;
}

}  // namespace troupe::transport
