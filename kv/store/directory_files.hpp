// Inside of the store in a directory: its small files.
#pragma once

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

}  // namespace troupe::kv::detail
