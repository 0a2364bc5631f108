// A disk as a parameter: numbered chunk files of fixed size, read and written in multiples of 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::kv {

/// One storage device. Calls block; all are safe from any thread. Offsets, sizes and buffer addresses are multiples of
/// 4 KiB (invalid_argument otherwise). A write is durable against the death of the process when it has returned, and
/// against power loss only after a `sync` that began later; until then any subset of its 4 KiB sectors may be on the
/// medium. Two writes to the same bytes at a time are the caller's bug.
class disk {
 public:
  virtual ~disk() = default;

  /// Numbers of the chunk files that exist, ascending.
  virtual result<std::vector<uint32_t>> chunks() = 0;
  /// Makes a chunk file of `bytes`, its room reserved, reading as zeros; durable when the call returns, whole or not at
  /// all after a crash in between. A file that is there and shorter (cut by somebody) grows by zeros and keeps the
  /// rest. Errors: exhausted (disk full; nothing is changed), invalid_argument (exists in this size or larger, bytes
  /// 0), io.
  virtual result<void> create(uint32_t chunk, uint64_t bytes) = 0;
  /// Size of a chunk file. Errors: not_found, io.
  virtual result<uint64_t> size(uint32_t chunk) = 0;
  /// Errors: not_found, invalid_argument (past the end), io, exhausted (disk full in spite of the reservation).
  virtual result<void> write(uint32_t chunk, uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Fills `out` whole. Errors: not_found, invalid_argument (past the end), io.
  virtual result<void> read(uint32_t chunk, uint64_t offset, std::span<std::byte> out) = 0;
  /// Makes the writes to `chunk` that have returned durable against power loss. Errors: not_found, io.
  virtual result<void> sync(uint32_t chunk) = 0;
  /// Deletes a chunk file. Errors: not_found, io.
  virtual result<void> remove(uint32_t chunk) = 0;
  /// For messages: where this disk is, and how it does I/O ("/data/kv0 (direct I/O)").
  virtual std::string name() const = 0;
};

/// Chunk files `chunk-00000000` in a directory, which is made if missing; direct I/O where the file system allows it
/// (then nothing of it passes through the page cache), buffered otherwise (some tmpfs and overlay file systems;
/// `name()` says which). A file `lock` keeps a second process (and a second object of this one) out. `read_only`:
/// nothing is made or written, every call that would is io; others that only read may have it open too. Errors:
/// unavailable (the directory is in use), io (no directory, no permission; with the path and the reason).
result<std::unique_ptr<disk>> open_file_disk(const std::string& directory, bool read_only = false);

}  // namespace troupe::kv
