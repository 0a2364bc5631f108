// Inside of the store in a directory: its small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kv/types.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv::detail {

/// DIR/target-0001.
std::string folder_of(const std::string& dir, target_id target);

/// The file appears whole or not at all, also after power loss.
result<void> write_whole(const std::string& path, const std::string& text);
result<std::string> read_whole(const std::string& path);

/// Keeps others out of a store while it lives.
class directory_lock {
 public:
  /// `shared`: with others that only read; then a lock file that is not there is made where that is possible, and no
  /// lock is held where it is not (a read-only file system has no writer). Errors: unavailable (somebody has it), io.
  static result<directory_lock> take(const std::string& dir, bool shared);
  directory_lock() = default;
  directory_lock(directory_lock&& o) noexcept : fd_(o.fd_) { o.fd_ = -1; }
  directory_lock& operator=(directory_lock&& o) noexcept;
  ~directory_lock();

 private:
  int fd_ = -1;
};

/// How far a store had come, kept in the index and beside the chunk files of every target. An index whose generation is
/// behind that of a target of the same store is an older copy: it does not know what was written since. The index is
/// told first, so after a crash it is never behind by itself.
struct generation_mark {
  std::string store;  // random, names the store
  uint64_t generation = 0;
};

/// Text of a mark and back; nothing for anything else.
std::string print(const generation_mark& m);
std::optional<generation_mark> parse_generation(const std::string& text);
/// The mark in a target's folder; nothing where there is none that holds.
std::optional<generation_mark> read_generation(const std::string& folder);
/// Best effort and without a sync: an older mark, or none, only detects less.
void write_generation(const std::string& folder, const generation_mark& m);

}  // namespace troupe::kv::detail
