#include "kv/store/directory_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace troupe::kv::detail {
namespace {

std::string system_error() { return std::strerror(errno); }

}  // namespace

std::string folder_of(const std::string& dir, target_id target) {
  return fmt::format("{}/target-{:04}", dir, target.value);
}

result<void> write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail(errc::io, "{}: {}", temporary, system_error());
  size_t at = 0;
  bool good = true;
  while (good && at < text.size()) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    good = n > 0;
    at += good ? static_cast<size_t>(n) : 0;
  }
  good = good && ::fsync(fd) == 0;
  const std::string why = good ? "" : system_error();
  ::close(fd);
  if (!good) return fail(errc::io, "{}: {}", path, why);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail(errc::io, "{}: {}", path, system_error());
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int dir = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = dir >= 0 && ::fsync(dir) == 0;
  const std::string trouble = synced ? "" : system_error();
  if (dir >= 0) ::close(dir);
  return synced ? result<void>{} : fail(errc::io, "{}: {}", parent, trouble);
}

result<std::string> read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return fail(errc::io, "{}: {}", path, system_error());
  return text.str();
}

result<directory_lock> directory_lock::take(const std::string& dir, bool shared) {
  const std::string path = dir + "/lock";
  directory_lock l;
  l.fd_ = ::open(path.c_str(), (shared ? O_RDONLY : O_RDWR) | O_CREAT | O_CLOEXEC, 0644);
  if (l.fd_ < 0 && shared) {
    const bool full = errno == ENOSPC || errno == EDQUOT, refused = errno == EROFS || errno == EACCES || errno == EPERM;
    l.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (l.fd_ < 0 && (full || refused)) return l;
  }
  if (l.fd_ < 0) return fail(errc::io, "{}: {}", path, system_error());
  if (::flock(l.fd_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    return fail(errc::unavailable, "{}: another process has the store open; one at a time may{}", dir,
                shared ? ", or several that only read" : "");
  return l;
}

directory_lock& directory_lock::operator=(directory_lock&& o) noexcept {
  std::swap(fd_, o.fd_);
  return *this;
}

directory_lock::~directory_lock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace troupe::kv::detail
