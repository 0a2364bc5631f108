// Memory that direct I/O accepts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "kv/extent/footer.hpp"

namespace troupe::kv {

/// Bytes at an address that is a multiple of 4 KiB, not initialised. Movable.
class aligned_buffer {
 public:
  aligned_buffer() = default;
  /// Room for `bytes`, rounded up to 4 KiB.
  explicit aligned_buffer(size_t bytes)
      : size_((bytes + run_bytes - 1) / run_bytes * run_bytes),
        data_(static_cast<std::byte*>(::operator new (size_, std::align_val_t{run_bytes}))) {}
  /// Somebody else's memory (4 KiB aligned), e.g. registered with a transport; `keep` (not null) holds it.
  aligned_buffer(std::span<std::byte> memory, std::shared_ptr<const void> keep)
      : size_(memory.size()), data_(memory.data(), release{std::move(keep)}) {}

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct release {
    std::shared_ptr<const void> keep;  // null: the buffer's own
    void operator()(std::byte* p) const {
      if (!keep) ::operator delete (p, std::align_val_t{run_bytes});
    }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte, release> data_;
};

}  // namespace troupe::kv
