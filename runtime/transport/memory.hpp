// Memory that processes of one host share: a nameless file of its owner, which others open through the owner's
// /proc/PID/fd. Nothing has a name that could stay behind, and no limit of /dev/shm applies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::transport {

/// In front of every memory, one page before its bytes: number of a process and number of a descriptor may both have
/// been given to something else by the time a peer opens them, and the mark tells. The file is sealed, so memory that
/// has the right mark never shrinks under those who have it mapped.
struct memory_mark {
  uint64_t magic = 0x32'4b'52'4d'50'52'54'00;
  uint64_t secret = 0;  // random per memory
  uint64_t length = 0;  // of the bytes
};
inline constexpr size_t memory_mark_bytes = 4096;

/// Memory that peers can map by its key; zeroed, page aligned, and no page of it is taken before it is touched.
class memory {
 public:
  /// exhausted with what the system said.
  static result<std::unique_ptr<memory>> allocate(size_t bytes);
  ~memory();
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  std::span<std::byte> bytes() const { return {base_ + memory_mark_bytes, size_}; }
  /// What a peer of the same user and process namespace needs to map it.
  const std::string& key() const { return key_; }

 private:
  memory() = default;
  int fd_ = -1;
  std::byte* base_ = nullptr;  // of the mark
  size_t size_ = 0;
  std::string key_;
};

/// A peer's memory, mapped here. It may outlive the peer: the bytes stay as they are.
class mapping {
 public:
  /// stale if the peer or its memory is gone or something else is there now, unavailable if the system refuses, corrupt
  /// for a key that no memory gave.
  static result<std::unique_ptr<mapping>> open(const std::string& key);
  ~mapping();
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  std::byte* data() const { return base_ + memory_mark_bytes; }
  size_t size() const { return size_; }

 private:
  mapping() = default;
  std::byte* base_ = nullptr;  // of the mark
  size_t size_ = 0;
};

}  // namespace troupe::transport
