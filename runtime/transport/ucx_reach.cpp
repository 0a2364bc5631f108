#include "runtime/transport/ucx_reach.hpp"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/clock.hpp"
#include "runtime/transport/codec.hpp"

namespace troupe::transport::ucx {
namespace {

constexpr size_t max_listeners = 8;
constexpr int tries = 3;
constexpr nanoseconds between = std::chrono::milliseconds(50), limit = std::chrono::milliseconds(200);

enum class answer { yes, no, wait };

// The open descriptors of this process.
std::vector<int> descriptors() {
  std::vector<int> open;
  DIR* all = opendir("/proc/self/fd");
  if (!all) return open;
  while (const dirent* entry = readdir(all))
    if (entry->d_name[0] != '.') open.push_back(std::atoi(entry->d_name));
  closedir(all);
  return open;
}

// The internet address of one end of a socket; empty for anything else.
std::string name_of(int fd, decltype(&getsockname) end) {
  sockaddr_storage where{};
  socklen_t length = sizeof where;
  if (end(fd, reinterpret_cast<sockaddr*>(&where), &length) != 0) return {};
  if (where.ss_family != AF_INET && where.ss_family != AF_INET6) return {};
  return {reinterpret_cast<const char*>(&where), length};
}

answer begin_handshake(int fd, const std::string& where) {
  sockaddr_storage to{};
  std::memcpy(&to, where.data(), std::min(where.size(), sizeof to));
  // Closed by a reset: nothing of it stays in either kernel, and the peer's UCX drops it before it is a connection.
  const linger reset{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), static_cast<socklen_t>(where.size())) == 0)
    return answer::yes;
  if (errno == EINPROGRESS) return answer::wait;
  return errno == ECONNREFUSED ? answer::yes : answer::no;
}

answer end_handshake(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 || error == ECONNREFUSED || error == ECONNRESET ? answer::yes : answer::no;
}

}  // namespace

std::string node_address::encode() const {
  blob_writer out;
  out.number(listeners.size());
  for (const auto& l : listeners) out.text(l);
  return out.text(worker).finish();
}

result<node_address> node_address::decode(std::string_view bytes) {
  blob_reader in(bytes);
  node_address a;
  const uint64_t n = in.number();
  for (uint64_t i = 0; i < n && i < max_listeners; ++i) a.listeners.push_back(in.text());
  a.worker = in.text();
  if (n > max_listeners || !in.complete() || a.worker.empty())
    return fail(errc::corrupt, "a worker address of {} B is truncated or of another version", bytes.size());
  return a;
}

std::map<int, std::string> listeners() {
  std::map<int, std::string> found;
  for (const int fd : descriptors()) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens) continue;
    const std::string where = name_of(fd, &getsockname);
    if (!where.empty() && found.size() < max_listeners) found[fd] = where;
  }
  return found;
}

std::map<int, std::string> connected_to(const std::vector<std::string>& where) {
  std::map<int, std::string> found;
  for (const int fd : descriptors()) {
    const std::string peer = name_of(fd, &getpeername);
    if (!peer.empty() && std::find(where.begin(), where.end(), peer) != where.end())
      found[fd] = name_of(fd, &getsockname);
  }
  return found;
}

bool reachable(const node_address& peer) {
  if (peer.listeners.empty()) return true;
  const nanoseconds start = steady_clock().now();
  std::vector<pollfd> open;
  bool found = false;
  for (int begun = 0; !found;) {
    const nanoseconds now = steady_clock().now() - start;
    if (begun < tries && now >= begun * between) {
      ++begun;
      for (const auto& where : peer.listeners) {
        if (where.size() < sizeof(sockaddr_in)) continue;
        sa_family_t family;
        std::memcpy(&family, where.data(), sizeof family);
        const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        const answer a = begin_handshake(fd, where);
        found |= a == answer::yes;
        if (a == answer::wait)
          open.push_back({fd, POLLOUT, 0});
        else
          close(fd);
      }
      continue;
    }
    if (now >= limit || (open.empty() && begun == tries)) break;
    const nanoseconds until = begun < tries ? begun * between : limit;
    poll(open.data(), open.size(), static_cast<int>((until - now).count() / 1'000'000) + 1);
    for (auto& p : open) {
      if (p.revents == 0) continue;
      found |= end_handshake(p.fd) == answer::yes;
      close(std::exchange(p.fd, -1));
    }
    std::erase_if(open, [](const pollfd& p) { return p.fd < 0; });
  }
  for (const auto& p : open) close(p.fd);
  return found;
}

}  // namespace troupe::transport::ucx
