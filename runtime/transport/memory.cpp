#include "runtime/transport/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/rng.hpp"
#include "runtime/transport/codec.hpp"

namespace troupe::transport {
namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct closing {
  int fd;
  ~closing() {
    if (fd >= 0) close(fd);
  }
};

std::byte* map_file(int fd, size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

result<std::unique_ptr<memory>> memory::allocate(size_t bytes) {
  std::unique_ptr<memory> m(new memory);
  m->size_ = bytes;
  m->fd_ = memfd_create("troupe_shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (m->fd_ < 0 || ftruncate(m->fd_, static_cast<off_t>(memory_mark_bytes + bytes)) != 0 ||
      fcntl(m->fd_, F_ADD_SEALS, seals) != 0 || !(m->base_ = map_file(m->fd_, memory_mark_bytes + bytes)))
    return fail(errc::exhausted, "{} B of shared memory: {}", bytes, std::strerror(errno));
  memory_mark mark;
  mark.secret = entropy_seed();
  mark.length = bytes;
  std::memcpy(m->base_, &mark, sizeof mark);
  m->key_ = blob_writer()
                .number(mark.magic)
                .number(mark.secret)
                .number(mark.length)
                .number(static_cast<uint64_t>(getpid()))
                .number(static_cast<uint64_t>(m->fd_))
                .finish();
  return m;
}

memory::~memory() {
  if (base_) munmap(base_, memory_mark_bytes + size_);
  if (fd_ >= 0) close(fd_);
}

result<std::unique_ptr<mapping>> mapping::open(const std::string& key) {
  blob_reader in(key);
  memory_mark wanted;
  const uint64_t magic = in.number();
  wanted.secret = in.number();
  wanted.length = in.number();
  const uint64_t pid = in.number(), fd = in.number();
  if (!in.complete() || magic != wanted.magic || wanted.length > (uint64_t{1} << 47))
    return fail(errc::corrupt, "a memory key of {} B is truncated or of another version", key.size());
  const auto gone = [&] { return fail(errc::stale, "the peer's memory of {} B is gone", wanted.length); };
  // Looked at before it is opened: the number may belong to a device by now, which opening would touch.
  const closing found{::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_PATH | O_CLOEXEC)};
  if (found.fd < 0) {
    if (errno == ENOENT || errno == ESRCH) return gone();
    return fail(errc::unavailable, "memory of process {}: {}", pid, std::strerror(errno));
  }
  const size_t whole = memory_mark_bytes + wanted.length;
  struct stat st {};
  if (fstat(found.fd, &st) != 0 || !S_ISREG(st.st_mode) || static_cast<uint64_t>(st.st_size) != whole) return gone();
  const closing file{::open(fmt::format("/proc/self/fd/{}", found.fd).c_str(), O_RDWR | O_CLOEXEC)};
  if (file.fd < 0 || (fcntl(file.fd, F_GET_SEALS) & seals) != seals) return gone();
  std::unique_ptr<mapping> m(new mapping);
  m->size_ = wanted.length;
  m->base_ = map_file(file.fd, whole);
  if (!m->base_) return fail(errc::unavailable, "mapping {} B of process {}: {}", whole, pid, std::strerror(errno));
  if (std::memcmp(m->base_, &wanted, sizeof wanted) != 0) return gone();
  return m;
}

mapping::~mapping() {
  if (base_) munmap(base_, memory_mark_bytes + size_);
}

}  // namespace troupe::transport
