#include "tests/scenarios/live_cluster.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

namespace troupe::tests {
namespace {

// Waits for a descriptor that becomes readable (a pidfd: when the process ends).
bool readable(int fd, nanoseconds limit) {
  const nanoseconds deadline = steady_clock().now() + limit;
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now()).count();
    if (left <= 0) return false;
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(std::min<int64_t>(left, 60000))) > 0) return true;
  }
}

}  // namespace

bool gone(pid_t pid, nanoseconds limit) {
  int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;
  bool ended = readable(fd, limit);
  close(fd);
  return ended;
}

std::set<std::string> shared_memory_names() {
  std::set<std::string> out;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator("/dev/shm", ec)) out.insert(e.path().filename().string());
  return out;
}

live_cluster::live_cluster(const std::vector<std::string>& overrides, bool wait, int processes) {
  std::string dir = run_dir(), errors = folder_.path + "/stderr";
  std::vector<std::string> words{troupe_path(), "up",
                                 "-c",          std::string(TROUPE_SOURCE_DIR) + "/configs/local.yaml",
                                 "--run-dir",   dir,
                                 "--set",       "front.listen=127.0.0.1:0",
                                 "--set",       "model.path=" TROUPE_TEST_DATA "/tiny-v41"};
  for (const auto& o : overrides) words.insert(words.end(), {"--set", o});
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    int err = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out[1], 1);
    dup2(err, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  // The table has a line per process, the head, and ends before the program goes on; its last line names the last node.
  const nanoseconds deadline = steady_clock().now() + std::chrono::seconds(120);
  while (!wait && !std::filesystem::exists(dir) && steady_clock().now() < deadline) sched_yield();
  while (wait && std::count(table.begin(), table.end(), '\n') < 1 + processes &&
         readable(out[0], deadline - steady_clock().now())) {
    char buffer[4096];
    ssize_t n = read(out[0], buffer, sizeof buffer);
    if (n <= 0) break;
    table.append(buffer, static_cast<size_t>(n));
  }
  if (wait) close(out[0]);  // else what it may still print goes nowhere
  if (auto f = node::read_cluster_file(dir)) facts = *f, ready = true;
}

live_cluster::~live_cluster() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // its children get SIGTERM by the kernel
    waitpid(pid_, nullptr, 0);
  }
  for (const auto& p : facts.processes) {
    if (!gone(p.pid, std::chrono::seconds(20))) kill(p.pid, SIGKILL);
  }
}

pid_t live_cluster::pid_of(const std::string& name) const {
  for (const auto& p : facts.processes) {
    if (p.name == name) return p.pid;
  }
  return -1;
}

int live_cluster::stop(int signal, nanoseconds limit) {
  kill(pid_, signal);
  return wait(limit);
}

int live_cluster::wait(nanoseconds limit) {
  if (!gone(pid_, limit)) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> live_cluster::left_over(nanoseconds limit) const {
  const nanoseconds deadline = steady_clock().now() + limit;
  std::vector<std::string> out;
  for (const auto& p : facts.processes) {
    if (!gone(p.pid, std::max(nanoseconds(1), deadline - steady_clock().now()))) out.push_back(p.name);
  }
  return out;
}

}  // namespace troupe::tests
