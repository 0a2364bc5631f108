#include "kernels/cpu/context.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

void scratch::deleter::operator()(std::byte* p) const { std::free(p); }

void* scratch::grow(size_t bytes) {
  if (bytes > bytes_) {
    data_.reset();
    bytes_ = (std::max(bytes, bytes_ + bytes_ / 2) + 63) / 64 * 64;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes_)));
    TROUPE_CHECK(data_ != nullptr, "no memory for {} bytes of scratch", bytes_);
  }
  return data_.get();
}

context::context(uint32_t threads, isa which) : pool(threads), kernels(kernels_of(which)), per_thread(pool.size()) {}

uint32_t task_size(const context& c, uint32_t count, uint32_t unit) {
  const uint32_t units = (count + unit - 1) / unit, tasks = c.pool.size() == 1 ? 1 : c.pool.size() * 6;
  return std::max(1u, (units + tasks - 1) / tasks) * unit;
}

}  // namespace troupe::kernels::cpu
