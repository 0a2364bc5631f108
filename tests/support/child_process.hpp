// Child processes for tests and benches: a helper program that is talked to by lines. Children die with the parent.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::testing_support {

/// Nanoseconds that the threads of a process have waited for a core, the longest of them (decided detail 35).
inline int64_t run_queue_wait(pid_t pid) {
  int64_t most = 0;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::error_code none;
  for (const auto& t : std::filesystem::directory_iterator(tasks, none)) {
    if (FILE* f = fopen((t.path() / "schedstat").c_str(), "r")) {
      long run = 0, wait = 0;
      if (fscanf(f, "%ld %ld", &run, &wait) == 2) most = std::max<int64_t>(most, wait);
      fclose(f);
    }
  }
  return most;
}

/// Keeps every thread of a process on some cores.
inline void set_affinity(pid_t pid, const cpu_set_t& cores) {
  std::error_code none;
  for (const auto& t : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", none))
    sched_setaffinity(std::stoi(t.path().filename().string()), sizeof cores, &cores);
}

/// One running helper: its stdin and stdout are pipes to here, stderr is shared. Killed and reaped by the destructor.
class child_process {
 public:
  explicit child_process(const std::vector<std::string>& arguments) {
    int to[2], from[2];
    TROUPE_CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0, "pipe: errno {}", errno);
    std::vector<char*> argv;
    for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    TROUPE_CHECK(pid_ >= 0, "fork: errno {}", errno);
    if (pid_ == 0) {
      // Only async-signal-safe calls between fork and exec: the parent may have threads.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(126);
      dup2(to[0], 0);
      dup2(from[1], 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  child_process(child_process&& o) noexcept
      : pid_(std::exchange(o.pid_, -1)),
        in_(std::exchange(o.in_, -1)),
        out_(std::exchange(o.out_, -1)),
        buffer_(std::move(o.buffer_)) {}
  child_process& operator=(child_process&&) = delete;
  ~child_process() {
    if (in_ >= 0) close(in_);
    if (out_ >= 0) close(out_);
    kill();
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  /// SIGSTOP; returns when it stands still.
  void stop() const {
    signal(SIGSTOP);
    const nanoseconds until = steady_clock().now() + std::chrono::seconds(10);
    while (state() != 'T') TROUPE_CHECK(steady_clock().now() < until, "process {} does not stop", pid_);
  }
  /// SIGKILL, then reaps it.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Exit status after it has closed its output; -1 if it was killed by a signal.
  int join() {
    while (!line(std::chrono::seconds(20)).empty()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void say(const std::string& text) const {
    const std::string all = text + "\n";
    for (size_t done = 0; done < all.size();) {
      const ssize_t n = write(in_, all.data() + done, all.size() - done);
      if (n <= 0) return;  // it has died: the answer will not come
      done += static_cast<size_t>(n);
    }
  }
  /// Next line of its output; empty when none came within `limit` or it has ended.
  std::string line(nanoseconds limit = std::chrono::seconds(30)) {
    const nanoseconds until = steady_clock().now() + limit;
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string l = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return l;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock().now()).count();
      pollfd p{out_, POLLIN, 0};
      if (left < 0 || poll(&p, 1, static_cast<int>(left) + 1) <= 0) return {};
      char part[65536];
      const ssize_t n = read(out_, part, sizeof part);
      if (n <= 0) return {};
      buffer_.append(part, static_cast<size_t>(n));
    }
  }
  std::string ask(const std::string& text, nanoseconds limit = std::chrono::seconds(30)) {
    say(text);
    return line(limit);
  }

  /// User and system time so far, in seconds.
  double cpu_seconds() const {
    unsigned long user = 0, system = 0;
    sscanf(stat().c_str(), " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  /// 'R', 'S', 'T' (stopped) ... as in proc(5).
  char state() const {
    char c = '?';
    sscanf(stat().c_str(), " %c", &c);
    return c;
  }

 private:
  /// Its /proc stat line from the state on.
  std::string stat() const {
    char text[1024] = "";
    if (FILE* f = fopen(("/proc/" + std::to_string(pid_) + "/stat").c_str(), "r")) {
      text[fread(text, 1, sizeof text - 1, f)] = 0;
      fclose(f);
    }
    const std::string all = text;
    const auto after = all.rfind(')');
    return after == std::string::npos ? "" : all.substr(after + 1);
  }
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string buffer_;
};

}  // namespace troupe::testing_support
