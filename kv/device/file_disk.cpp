#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <list>
#include <mutex>
#include <unordered_map>

#include "kv/device/aligned_buffer.hpp"
#include "kv/device/disk.hpp"

namespace troupe::kv {
namespace {

constexpr size_t max_open = 128;  // descriptors of one disk; the least recently used chunk is closed
constexpr std::string_view prefix = "chunk-";

class descriptor {
 public:
  explicit descriptor(int fd) : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

std::string reason() {
  char text[128];
  return ::strerror_r(errno, text, sizeof text);
}

tl::unexpected<error> os_error(const std::string& path, const char* what) {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  return fail(full              ? errc::exhausted
              : errno == ENOENT ? errc::not_found
                                : errc::io,
              "{}: {}: {}{}", path, what, reason(),
              full ? " (free space on this disk, or give the store less of it)" : "");
}

class file_disk final : public disk {
 public:
  file_disk(std::string directory, int directory_fd, int lock_fd, bool direct, bool read_only)
      : directory_(std::move(directory)),
        directory_fd_(directory_fd),
        lock_fd_(lock_fd),
        direct_(direct),
        read_only_(read_only) {}

  result<std::vector<uint32_t>> chunks() override {
    std::error_code e;
    std::vector<uint32_t> out;
    for (std::filesystem::directory_iterator it(directory_, e), end; !e && it != end; it.increment(e)) {
      const std::string name = it->path().filename();
      uint32_t number = 0;
      const char* from = name.data() + prefix.size();
      const char* to = name.data() + name.size();
      if (!name.starts_with(prefix) || name.size() != prefix.size() + 8) continue;
      if (const auto r = std::from_chars(from, to, number, 16); r.ec == std::errc{} && r.ptr == to)
        out.push_back(number);
    }
    if (e) return fail(errc::io, "{}: cannot list it: {}", directory_, e.message());
    std::sort(out.begin(), out.end());
    return out;
  }

  result<void> create(uint32_t chunk, uint64_t bytes) override {
    const std::string path = path_of(chunk), making = path + ".new";
    if (bytes == 0 || bytes % run_bytes)
      return fail(errc::invalid_argument, "{}: a chunk of {} bytes is no multiple of {}", path, bytes, run_bytes);
    if (read_only_) return refuse_write();
    if (::access(path.c_str(), F_OK) == 0) return lengthen(chunk, bytes);
    const auto refuse = [&](const char* what) {
      auto e = os_error(making, what);
      ::unlink(making.c_str());
      return e;
    };
    {
      const descriptor f(::open(making.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      if (!f) return os_error(making, "cannot make it");
      if (!reserve(f, bytes)) return refuse("cannot reserve its room");
      if (::fsync(f.get()) != 0) return refuse("cannot sync it");
    }
    if (::rename(making.c_str(), path.c_str()) != 0) return refuse("cannot give it its name");
    if (::fsync(directory_fd_.get()) != 0) return os_error(directory_, "cannot sync the directory");
    return {};
  }

  result<uint64_t> size(uint32_t chunk) override {
    TROUPE_TRY(const auto f, opened(chunk));
    return size_of(chunk, *f);
  }

  result<void> write(uint32_t chunk, uint64_t offset, std::span<const std::byte> bytes) override {
    if (read_only_) return refuse_write();
    TROUPE_TRY(const auto f, opened(chunk));
    if (auto r = aligned(chunk, offset, bytes.size(), bytes.data()); !r) return r;
    TROUPE_TRY(const uint64_t end, size_of(chunk, *f));
    if (offset > end || bytes.size() > end - offset) return past_end(chunk, offset, bytes.size());
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::pwrite(f->get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return os_error(path_of(chunk), "cannot write");
      done += static_cast<size_t>(n);
    }
    return {};
  }

  result<void> read(uint32_t chunk, uint64_t offset, std::span<std::byte> out) override {
    TROUPE_TRY(const auto f, opened(chunk));
    if (auto r = aligned(chunk, offset, out.size(), out.data()); !r) return r;
    if (const auto there = size_of(chunk, *f); !there) return fail(there.error());
    for (size_t done = 0; done < out.size();) {
      const ssize_t n = ::pread(f->get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error(path_of(chunk), "cannot read");
      if (n == 0) return past_end(chunk, offset, out.size());
      done += static_cast<size_t>(n);
    }
    return {};
  }

  result<void> sync(uint32_t chunk) override {
    if (read_only_) return {};
    TROUPE_TRY(const auto f, opened(chunk));
    if (::fdatasync(f->get()) != 0) return os_error(path_of(chunk), "cannot sync");
    return {};
  }

  result<void> remove(uint32_t chunk) override {
    if (read_only_) return refuse_write();
    {
      std::lock_guard lock(mutex_);
      if (const auto it = open_.find(chunk); it != open_.end()) {
        recent_.erase(it->second);
        open_.erase(it);
      }
    }
    if (::unlink(path_of(chunk).c_str()) != 0) return os_error(path_of(chunk), "cannot delete it");
    if (::fsync(directory_fd_.get()) != 0) return os_error(directory_, "cannot sync the directory");
    return {};
  }

  std::string name() const override {
    if (lock_fd_.get() < 0) return directory_;  // nobody has used it yet
    return directory_ + (direct_ ? " (direct I/O)" : " (buffered I/O)");
  }

 private:
  using open_file = std::shared_ptr<const descriptor>;
  using entry = std::pair<uint32_t, open_file>;

  std::string path_of(uint32_t chunk) const { return fmt::format("{}/{}{:08x}", directory_, prefix, chunk); }

  result<open_file> opened(uint32_t chunk) {
    std::lock_guard lock(mutex_);
    if (const auto it = open_.find(chunk); it != open_.end()) {
      recent_.splice(recent_.begin(), recent_, it->second);
      return it->second->second;
    }
    const std::string path = path_of(chunk);
    const int how = read_only_ ? O_RDONLY : O_RDWR;
    auto f = std::make_shared<const descriptor>(::open(path.c_str(), how | O_CLOEXEC | (direct_ ? O_DIRECT : 0)));
    if (!*f) return os_error(path, "cannot open it");
    if (recent_.size() == max_open) {
      open_.erase(recent_.back().first);
      recent_.pop_back();
    }
    recent_.emplace_front(chunk, f);
    open_[chunk] = recent_.begin();
    return open_file(f);
  }

  // A file that was deleted, or whose disk was taken away by force, takes writes as long as it is open, for nobody.
  result<uint64_t> size_of(uint32_t chunk, const descriptor& f) const {
    struct stat s {};
    if (::fstat(f.get(), &s) != 0) return os_error(path_of(chunk), "cannot stat it");
    if (s.st_nlink == 0) return fail(errc::io, "{}: was deleted while it was in use", path_of(chunk));
    return static_cast<uint64_t>(s.st_size) / run_bytes * run_bytes;
  }

  tl::unexpected<error> refuse_write() const { return fail(errc::io, "{}: was opened for reading only", directory_); }

  static bool reserve(const descriptor& f, uint64_t bytes) {
    int r = 0;
    do r = ::fallocate(f.get(), 0, 0, static_cast<off_t>(bytes));
    while (r != 0 && errno == EINTR);
    // Where room cannot be reserved, a full disk shows at the write.
    if (r != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) r = ::ftruncate(f.get(), static_cast<off_t>(bytes));
    return r == 0;
  }

  // Gives a file that was cut its size back.
  result<void> lengthen(uint32_t chunk, uint64_t bytes) {
    const std::string path = path_of(chunk);
    TROUPE_TRY(const auto f, opened(chunk));
    struct stat s {};
    if (::fstat(f->get(), &s) != 0) return os_error(path, "cannot stat it");
    if (static_cast<uint64_t>(s.st_size) >= bytes) return fail(errc::invalid_argument, "{}: exists already", path);
    if (!reserve(*f, bytes)) {
      auto e = os_error(path, "cannot reserve its room");
      (void)!::ftruncate(f->get(), s.st_size);  // room that was reserved in part
      return e;
    }
    if (::fsync(f->get()) != 0) return os_error(path, "cannot sync it");
    return {};
  }

  result<void> aligned(uint32_t chunk, uint64_t offset, size_t bytes, const void* address) const {
    if (offset % run_bytes == 0 && bytes % run_bytes == 0 && reinterpret_cast<uintptr_t>(address) % run_bytes == 0)
      return {};
    return fail(errc::invalid_argument, "{}: offset {}, size {} or address is no multiple of {}", path_of(chunk),
                offset, bytes, run_bytes);
  }

  tl::unexpected<error> past_end(uint32_t chunk, uint64_t offset, size_t bytes) const {
    return fail(errc::invalid_argument, "{}: {} + {} is past its end", path_of(chunk), offset, bytes);
  }

  const std::string directory_;
  const descriptor directory_fd_, lock_fd_;
  const bool direct_, read_only_;
  std::mutex mutex_;
  std::list<entry> recent_;  // protected by mutex_; most recently used first
  std::unordered_map<uint32_t, std::list<entry>::iterator> open_;
};

// Some file systems take O_DIRECT at open and refuse it at the first read, so both are tried, on the lock file.
bool direct_works(const std::string& path, bool read_only) {
  const descriptor f(::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_DIRECT));
  if (!f) return false;
  const aligned_buffer page(run_bytes);
  std::memset(page.data(), 0, run_bytes);
  if (read_only) return ::pread(f.get(), page.data(), run_bytes, 0) >= 0;
  return ::pwrite(f.get(), page.data(), run_bytes, 0) == run_bytes &&
         ::pread(f.get(), page.data(), run_bytes, 0) == run_bytes;
}

}  // namespace

result<std::unique_ptr<disk>> open_file_disk(const std::string& directory, bool read_only) {
  std::error_code e;
  if (!read_only) std::filesystem::create_directories(directory, e);
  if (e) return fail(errc::io, "{}: cannot make the directory: {}", directory, e.message());
  const int dir = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return os_error(directory, "cannot open the directory");
  const std::string lock_path = directory + "/lock";
  const int lock = read_only ? ::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC)
                             : ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  // From here on the disk closes both.
  auto refuse = [&](tl::unexpected<error> why) {
    ::close(dir);
    if (lock >= 0) ::close(lock);
    return why;
  };
  // A directory that only reads and has no lock file: nobody has written here.
  const bool locks = lock >= 0 || !read_only || errno != ENOENT;
  if (lock < 0 && locks) return refuse(os_error(lock_path, "cannot open it"));
  if (locks && ::flock(lock, (read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return refuse(os_error(lock_path, "cannot lock it"));
    return refuse(fail(errc::unavailable,
                       "{}: another process uses this directory (it holds {}); stop it, or give another "
                       "directory",
                       directory, lock_path));
  }
  const bool direct = direct_works(lock_path, read_only);
  if (read_only) return std::unique_ptr<disk>(new file_disk(directory, dir, lock, direct, true));
  // Files that a crash left half made.
  for (std::filesystem::directory_iterator it(directory, e), end; !e && it != end; it.increment(e)) {
    const std::string name = it->path().filename();
    if (name.starts_with(prefix) && name.ends_with(".new")) ::unlink(it->path().c_str());
  }
  return std::unique_ptr<disk>(new file_disk(directory, dir, lock, direct, false));
}

}  // namespace troupe::kv
