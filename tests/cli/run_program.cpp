#include "tests/cli/run_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/base/clock.hpp"

namespace troupe::tests {

std::string troupe_path() { return TROUPE_PROGRAM; }

program_result troupe(const std::vector<std::string>& args, const std::string& input, int limit_s) {
  program_result r;
  int out[2], err[2], in[2];
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(in, O_CLOEXEC)) return r;
  std::vector<std::string> words{troupe_path()};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  close(in[0]);
  if (!input.empty() && write(in[1], input.data(), input.size()) < 0) r.err = "(stdin was not read)";
  close(in[1]);
  const nanoseconds deadline = steady_clock().now() + std::chrono::seconds(limit_s);
  bool killed = false;
  pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now()).count();
    if (left <= 0) {
      kill(pid, SIGKILL);
      killed = true;
      break;
    }
    poll(fds, 2, static_cast<int>(std::min<int64_t>(left, 1000)));
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || !fds[i].revents) continue;
      char buffer[4096];
      ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0)
        (i == 0 ? r.out : r.err).append(buffer, static_cast<size_t>(n));
      else
        fds[i].fd = -1;
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(out[0]);
  close(err[0]);
  r.code = killed ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return r;
}

temporary_folder::temporary_folder() {
  char name[] = "/tmp/troupe-test-XXXXXX";
  const char* made = mkdtemp(name);
  path = made ? made : "";
}

temporary_folder::~temporary_folder() {
  std::error_code ec;
  if (!path.empty()) std::filesystem::remove_all(path, ec);
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace troupe::tests
