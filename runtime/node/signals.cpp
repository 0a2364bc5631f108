#include "runtime/node/signals.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::node {

signal_reader::signal_reader(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : signals) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  TROUPE_CHECK(fd_ >= 0, "signalfd: {}", std::strerror(errno));
}

signal_reader::~signal_reader() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int signal_reader::wait(nanoseconds limit) {
  const nanoseconds deadline = steady_clock().now() + limit;
  for (;;) {
    signalfd_siginfo info{};
    if (read(fd_, &info, sizeof info) == sizeof info) return static_cast<int>(info.ssi_signo);
    auto left = deadline - steady_clock().now();
    if (left <= nanoseconds(0)) return 0;
    pollfd p{fd_, POLLIN, 0};
    poll(&p, 1, static_cast<int>(std::min<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 60000)));
  }
}

void arm_hard_stop(nanoseconds limit) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGALRM}) {
    std::signal(s, SIG_DFL);
    sigaddset(&set, s);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  alarm(static_cast<unsigned>(std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(limit).count())));
}

}  // namespace troupe::node
