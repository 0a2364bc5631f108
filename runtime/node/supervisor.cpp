#include "runtime/node/supervisor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <set>

#include "runtime/base/check.hpp"

namespace troupe::node {
namespace {

constexpr size_t max_report_line = 64 * 1024;  // a longer line is cut: reports are short

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, s);
  return set;
}

// Runs in the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const char* program, const char* otherwise, char* const* argv, int log_fd, int report_fd,
                         int wanted_report_fd, pid_t parent, const sigset_t* mask) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(125);  // the supervisor died before the line above
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(report_fd, wanted_report_fd);
  fcntl(wanted_report_fd, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, mask, nullptr);
  execvp(program, argv);
  if (*otherwise) execv(otherwise, argv);
  const char text[] = "the program could not be started\n";
  ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
  (void)ignored;
  _exit(126);
}

}  // namespace

std::string describe_exit(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("wait status {}", status);
}

supervisor::supervisor(std::string program, std::string folder, std::string otherwise)
    : program_(std::move(program)), folder_(std::move(folder)), otherwise_(std::move(otherwise)) {
  sigset_t set = watched_signals();
  sigprocmask(SIG_BLOCK, &set, &old_mask_);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  TROUPE_CHECK(signals_ >= 0, "signalfd: {}", std::strerror(errno));
}

supervisor::~supervisor() {
  for (const auto& [name, pid] : running_) kill(pid, SIGKILL);
  for (const auto& [name, pid] : running_) waitpid(pid, nullptr, 0);
  for (const auto& [name, end] : reports_) close(end.fd);
  close(signals_);
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

result<pid_t> supervisor::start(const child_spec& spec) {
  TROUPE_CHECK(!running_.contains(spec.name), "child {} runs already", spec.name);
  int log = open(log_path(spec.name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return fail(errc::io, "{}: {}", log_path(spec.name), std::strerror(errno));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    close(log);
    return fail(errc::io, "pipe: {}", std::strerror(errno));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  constexpr int report_fd = 3;
  std::vector<std::string> words{program_};
  words.insert(words.end(), spec.args.begin(), spec.args.end());
  words.push_back("--report-fd");
  words.push_back(std::to_string(report_fd));
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  // Keep the child's end of the pipe and the log away from fd 3, which dup2 is about to replace.
  int high_report = fcntl(ends[1], F_DUPFD_CLOEXEC, 10), high_log = fcntl(log, F_DUPFD_CLOEXEC, 10);
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid == 0)
    become(program_.c_str(), otherwise_.c_str(), argv.data(), high_log, high_report, report_fd, parent, &old_mask_);
  int error = errno;
  for (int fd : {log, ends[1], high_report, high_log}) close(fd);
  if (pid < 0) {
    close(ends[0]);
    return fail(errc::io, "fork: {}", std::strerror(error));
  }
  running_[spec.name] = pid;
  reports_[spec.name] = {ends[0], {}};
  return pid;
}

void supervisor::read_report(const std::string& name) {
  auto it = reports_.find(name);
  if (it == reports_.end()) return;
  char buffer[4096];
  for (;;) {
    ssize_t n = read(it->second.fd, buffer, sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      close(it->second.fd);
      reports_.erase(it);
      return;
    }
    std::string& partial = it->second.partial;
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] == '\n')
        queue_.push_back({supervisor_event::kind::report, name, std::exchange(partial, {})});
      else if (partial.size() < max_report_line)
        partial += buffer[i];
    }
  }
}

void supervisor::reap(std::vector<supervisor_event>& events) {
  for (auto it = running_.begin(); it != running_.end();) {
    int status = 0;
    if (waitpid(it->second, &status, WNOHANG) == it->second) {
      read_report(it->first);
      if (auto r = reports_.find(it->first); r != reports_.end()) close(r->second.fd), reports_.erase(r);
      events.push_back({supervisor_event::kind::exited, it->first, describe_exit(status)});
      it = running_.erase(it);
    } else {
      ++it;
    }
  }
}

supervisor_event supervisor::wait(nanoseconds limit) {
  const nanoseconds deadline = steady_clock().now() + limit;
  for (;;) {
    if (!queue_.empty()) {
      supervisor_event e = std::move(queue_.front());
      queue_.erase(queue_.begin());
      return e;
    }
    reap(queue_);
    if (!queue_.empty()) continue;
    std::vector<pollfd> fds{{signals_, POLLIN, 0}};
    std::vector<std::string> names{""};
    for (const auto& [name, end] : reports_) fds.push_back({end.fd, POLLIN, 0}), names.push_back(name);
    auto left = deadline - steady_clock().now();
    if (left < nanoseconds(0)) return {};
    int ms = static_cast<int>(std::min<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 60000));
    int n = poll(fds.data(), fds.size(), ms);
    if (n < 0 && errno != EINTR) TROUPE_CHECK(false, "poll: {}", std::strerror(errno));
    if (n <= 0) continue;
    signalfd_siginfo info{};
    while ((fds[0].revents & POLLIN) && read(signals_, &info, sizeof info) == sizeof info) {
      if (static_cast<int>(info.ssi_signo) != SIGCHLD) {
        queue_.push_back({supervisor_event::kind::signalled, "", strsignal(static_cast<int>(info.ssi_signo))});
      }
    }
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents) read_report(names[i]);
    }
  }
}

std::vector<std::string> supervisor::stop(const std::vector<std::vector<std::string>>& stages, nanoseconds grace,
                                          int signal, const report_sink& on_report) {
  std::set<std::string> bad;
  bool hurry = false;
  auto run_stage = [&](const std::set<std::string>& names) {
    for (const auto& n : names) kill(running_.at(n), signal);
    nanoseconds deadline = steady_clock().now() + grace;
    auto left = [&] {
      return std::any_of(names.begin(), names.end(), [&](const auto& n) { return running_.contains(n); });
    };
    while (left() && !hurry && steady_clock().now() < deadline) {
      supervisor_event e = wait(std::min<nanoseconds>(deadline - steady_clock().now(), std::chrono::seconds(1)));
      if (e.what == supervisor_event::kind::signalled) hurry = true;
      if (e.what == supervisor_event::kind::report && on_report) on_report(e.name, e.text);
      if (e.what == supervisor_event::kind::exited && e.text != "exit code 0") bad.insert(e.name);
    }
    for (const auto& n : names) {
      if (!running_.contains(n)) continue;
      kill(running_.at(n), SIGKILL);
      waitpid(running_.at(n), nullptr, 0);
      running_.erase(n);
      bad.insert(n);
    }
  };
  for (const auto& stage : stages) {
    std::set<std::string> names;
    for (const auto& n : stage) {
      if (running_.contains(n)) names.insert(n);
    }
    run_stage(names);
  }
  std::set<std::string> rest;
  for (const auto& [name, pid] : running_) rest.insert(name);
  run_stage(rest);
  return {bad.begin(), bad.end()};
}

std::string supervisor::log_tail(const std::string& name, size_t lines) const {
  std::ifstream in(log_path(name));
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back(std::move(line));
    if (last.size() > lines) last.pop_front();
  }
  std::string out;
  for (const auto& l : last) out += "  " + l + "\n";
  return out;
}

}  // namespace troupe::node
