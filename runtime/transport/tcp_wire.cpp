#include "runtime/transport/tcp_wire.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/rng.hpp"
#include "runtime/transport/codec.hpp"
#include "runtime/transport/tcp_parts.hpp"

namespace troupe::transport {
namespace {

constexpr size_t max_sockets = 8;
constexpr uint64_t listener_key = 0, event_key = 1;

size_t length_of(const sockaddr* a) { return a->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }

// The addresses of a device, IPv4 first; of all of them but loopback if it has no name.
std::vector<std::string> addresses_of(const std::string& interface) {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* i = all; i && found.size() < max_sockets; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) continue;
      if (interface.empty() ? (i->ifa_flags & IFF_LOOPBACK) != 0 : interface != i->ifa_name) continue;
      // A link-local address needs the name of the device on the other side, which nobody here knows.
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
        continue;
      found.emplace_back(reinterpret_cast<const char*>(i->ifa_addr), length_of(i->ifa_addr));
    }
  freeifaddrs(all);
  return found;
}

}  // namespace

std::string tcp_address::encode() const {
  blob_writer out;
  out.number(wire).number(sockets.size());
  for (const auto& s : sockets) out.text(s);
  return out.finish();
}

result<tcp_address> tcp_address::decode(std::string_view bytes) {
  blob_reader in(bytes);
  tcp_address a;
  a.wire = in.number();
  const uint64_t n = in.number();
  bool good = n >= 1 && n <= max_sockets;
  for (uint64_t i = 0; good && i < n; ++i) {
    std::string s = in.text();
    good = s.size() >= sizeof(sockaddr_in) && s.size() <= sizeof(sockaddr_in6);
    if (!good) break;
    sockaddr_in6 any{};
    std::memcpy(&any, s.data(), s.size());
    good = (any.sin6_family == AF_INET || any.sin6_family == AF_INET6) &&
           s.size() == length_of(reinterpret_cast<sockaddr*>(&any));
    a.sockets.push_back(std::move(s));
  }
  if (!good || !in.complete())
    return fail(errc::corrupt, "an address of {} B is none of a TCP wire, or truncated", bytes.size());
  return a;
}

result<std::unique_ptr<wire>> open_tcp_wire(const tcp_wire_options& options) {
  auto made = std::make_unique<tcp_wire>(options);
  if (auto ok = made->open(); !ok) return fail(ok.error());
  return made;
}

result<void> tcp_wire::listen() {
  auto where = addresses_of(options_.interface);
  if (where.empty() && options_.interface.empty()) where = addresses_of("lo");
  if (where.empty())
    return fail(errc::unavailable, "network device '{}' is not there, is down or has no address", options_.interface);
  // One socket listens: on the address of the device, or on all if there are several.
  sockaddr_storage at{};
  std::memcpy(&at, where[0].data(), where[0].size());
  bool wide = false;
  for (const auto& w : where) {
    sa_family_t family;
    std::memcpy(&family, w.data(), sizeof family);
    wide |= family != at.ss_family;
  }
  if (!options_.interface.empty()) {
    where.resize(1);
    wide = false;
  } else if (wide) {
    at = {};
    reinterpret_cast<sockaddr_in6*>(&at)->sin6_family = AF_INET6;
  } else if (at.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&at)->sin_addr.s_addr = INADDR_ANY;
  } else {
    reinterpret_cast<sockaddr_in6*>(&at)->sin6_addr = in6addr_any;
  }
  listen_ = descriptor(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int off = 0;
  if (at.ss_family == AF_INET6) setsockopt(listen_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t length = static_cast<socklen_t>(length_of(address));
  if (!listen_ || bind(listen_.get(), address, length) != 0 || ::listen(listen_.get(), SOMAXCONN) != 0 ||
      getsockname(listen_.get(), address, &length) != 0)
    return fail(errc::unavailable, "listening on network device '{}': {}", options_.interface, std::strerror(errno));
  tcp_address mine;
  mine.wire = identity_;
  // The port is in the same place in both families.
  for (auto& w : where) {
    std::memcpy(w.data() + offsetof(sockaddr_in, sin_port), &reinterpret_cast<sockaddr_in*>(&at)->sin_port, 2);
    mine.sockets.push_back(w);
  }
  address_ = mine.encode();
  return {};
}

result<void> tcp_wire::open() {
  identity_ = entropy_seed();
  if (auto ok = listen(); !ok) return ok;
  epoll_ = descriptor(epoll_create1(EPOLL_CLOEXEC));
  event_ = descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_ = descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll_ || !event_ || !spare_) return fail(errc::io, "epoll or eventfd: {}", std::strerror(errno));
  for (const auto& [fd, key] : {std::pair{listen_.get(), listener_key}, std::pair{event_.get(), event_key}}) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = key;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) != 0) return fail(errc::io, "epoll: {}", std::strerror(errno));
  }
  return {};
}

result<std::unique_ptr<link>> tcp_wire::connect(std::string_view address) {
  TROUPE_TRY(auto to, tcp_address::decode(address));
  const uint64_t key = next_key_++;
  auto made = std::make_unique<tcp_link>(*this, key, std::move(to));
  links_[key] = made.get();
  made->dial();
  return made;
}

void tcp_wire::accept_all() {
  for (int i = 0; i < 64; ++i) {
    descriptor fd(accept4(listen_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && (errno == EMFILE || errno == ENFILE) && spare_) {
      // Taken and closed with the descriptor kept for this: left in the queue, it would keep the listener awake.
      spare_.reset();
      fd = descriptor(accept4(listen_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      fd.reset();
      spare_ = descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      continue;
    }
    if (!fd) return;
    if (incoming_.size() >= options_.max_incoming) continue;
    // A host that has gone without a word is found out after half a minute.
    const int on = 1, idle = 10, every = 10, times = 2;
    setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    epoll_event e{};
    e.events = EPOLLIN | EPOLLRDHUP;
    e.data.u64 = next_key_++;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e) != 0) continue;
    incoming_[e.data.u64] = std::make_unique<tcp_incoming>(std::move(fd));
  }
}

unsigned tcp_wire::progress() {
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  unsigned done = 0;
  for (int i = 0; i < n; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == event_key) continue;  // for sleep
    ++done;
    if (key == listener_key) {
      accept_all();
    } else if (const auto in = incoming_.find(key); in != incoming_.end()) {
      if (!in->second->receive(identity_, options_.max_payload, receiver_)) incoming_.erase(key);
    } else if (const auto out = links_.find(key); out != links_.end()) {
      out->second->handle(events[i].events);
    }
  }
  return done;
}

void tcp_wire::sleep(nanoseconds limit) {
  // Rounded up: epoll counts milliseconds and a wait of 0 would spin until the limit.
  const int64_t ms = std::clamp<int64_t>((limit.count() + 999'999) / 1'000'000, 0, 60'000);
  epoll_event event;
  epoll_wait(epoll_.get(), &event, 1, static_cast<int>(ms));
  uint64_t count;
  [[maybe_unused]] const auto n = read(event_.get(), &count, sizeof count);
}

void tcp_wire::signal() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event_.get(), &one, sizeof one);
}

}  // namespace troupe::transport
