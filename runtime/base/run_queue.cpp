#include "runtime/base/run_queue.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

namespace troupe {

run_queue_meter::run_queue_meter() : fd_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

run_queue_meter::~run_queue_meter() {
  if (fd_ >= 0) close(fd_);
}

int64_t run_queue_meter::waited() const {
  char text[96];
  const ssize_t n = fd_ < 0 ? -1 : pread(fd_, text, sizeof text, 0);
  if (n <= 0) return 0;
  const char* end = text + n;
  const auto* space = static_cast<const char*>(std::memchr(text, ' ', static_cast<size_t>(n)));
  int64_t waited = 0;
  if (space != nullptr) std::from_chars(space + 1, end, waited);
  return waited;
}

}  // namespace troupe
