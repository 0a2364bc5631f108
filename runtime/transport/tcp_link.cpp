// Connections of the wire over TCP: the sending and the receiving kind.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.hpp"
#include "runtime/transport/tcp_parts.hpp"

namespace troupe::transport {
namespace {

constexpr size_t batch = 16;                 // frames in one call of the system
constexpr size_t chunk = 64u << 10;          // bytes received at once, but for the rest of a frame
constexpr size_t kept_capacity = 2u << 20;   // of a receive buffer that a larger frame has left
constexpr size_t receive_budget = 2u << 20;  // bytes of one connection before the others have their turn

}  // namespace

void descriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

// ---- Receiving.

void tcp_incoming::make_room(size_t bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (capacity_ - begin_ >= bytes && (capacity_ <= kept_capacity || bytes > kept_capacity)) return;
  const size_t held = end_ - begin_;
  if (capacity_ < bytes || (capacity_ > kept_capacity && bytes <= kept_capacity)) {
    const size_t capacity = std::max(bytes, chunk);
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (held > 0) std::memcpy(larger.get(), buffer_.get() + begin_, held);
    buffer_ = std::move(larger);
    capacity_ = capacity;
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, held);
  }
  begin_ = 0;
  end_ = held;
}

bool tcp_incoming::receive(uint64_t wire, uint64_t max_payload, const wire::receiver& to) {
  for (size_t received = 0; received < receive_budget;) {
    // Of a large frame its rest and the beginning of the next, so that little has to be moved to the front.
    const size_t held = end_ - begin_;
    const size_t ahead = sizeof(tcp_lead) + max_frame_header;
    make_room(std::max(wanted_ + ahead, held + 1));
    size_t room = capacity_ - end_;
    if (wanted_ > chunk) room = std::min(room, wanted_ - held + ahead);
    const ssize_t n = recv(fd(), buffer_.get() + end_, room, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    end_ += static_cast<size_t>(n);
    received += static_cast<size_t>(n);
    if (!take(wire, max_payload, to)) return false;
    if (static_cast<size_t>(n) < room) return true;  // there is no more for now
  }
  return true;
}

bool tcp_incoming::take(uint64_t wire, uint64_t max_payload, const wire::receiver& to) {
  if (!greeted_) {
    tcp_greeting wanted, got;
    wanted.wire = wire;
    if (end_ - begin_ < sizeof got) return true;
    std::memcpy(&got, buffer_.get() + begin_, sizeof got);
    if (got.magic != wanted.magic || got.wire != wanted.wire) return false;
    greeted_ = true;
    begin_ += sizeof got;
  }
  for (;;) {
    const size_t held = end_ - begin_;
    tcp_lead lead;
    wanted_ = sizeof lead;
    if (held < sizeof lead) return true;
    std::memcpy(&lead, buffer_.get() + begin_, sizeof lead);
    if (lead.header > max_frame_header || lead.payload > max_payload) return false;
    wanted_ = sizeof lead + lead.header + lead.payload;
    if (held < wanted_) return true;
    const std::byte* const header = buffer_.get() + begin_ + sizeof lead;
    begin_ += wanted_;
    if (to) to({header, lead.header}, {header + lead.header, lead.payload});
  }
}

// ---- Sending.

tcp_link::tcp_link(tcp_wire& owner, uint64_t key, tcp_address to) : wire_(owner), key_(key), to_(std::move(to)) {
  tcp_greeting hello;
  hello.wire = to_.wire;
  parcel& p = queue_.emplace_back();
  std::memcpy(p.head.data(), &hello, sizeof hello);
  p.head_bytes = sizeof hello;
  p.counts = false;
}

tcp_link::~tcp_link() { wire_.links_.erase(key_); }

void tcp_link::lose() {
  lost_ = true;
  connected_ = false;
  fd_.reset();  // epoll forgets it
  queue_.clear();
  done_ = 0;
}

void tcp_link::dial() {
  while (dialled_ < to_.sockets.size()) {
    const std::string& where = to_.sockets[dialled_++];
    sockaddr_storage address{};
    std::memcpy(&address, where.data(), std::min(where.size(), sizeof address));
    fd_ = descriptor(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event e{};
    e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    e.data.u64 = key_;
    if (fd_ &&
        (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(where.size())) == 0 ||
         errno == EINPROGRESS) &&
        epoll_ctl(wire_.epoll_.get(), EPOLL_CTL_ADD, fd_.get(), &e) == 0) {
      watched_ = true;
      return;
    }
    fd_.reset();
  }
  lose();
}

void tcp_link::watch(bool writable) {
  if (writable == watched_ || !fd_) return;
  epoll_event e{};
  e.events = writable ? EPOLLIN | EPOLLOUT | EPOLLRDHUP : EPOLLIN | EPOLLRDHUP;
  e.data.u64 = key_;
  if (epoll_ctl(wire_.epoll_.get(), EPOLL_CTL_MOD, fd_.get(), &e) != 0) return lose();
  watched_ = writable;
}

void tcp_link::handle(uint32_t events) {
  if (lost_) return;
  if (!connected_) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    int error = 0;
    socklen_t length = sizeof error;
    sockaddr_storage own{}, peer{};
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    const bool met = error == 0 && getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
                     getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0;
    // A port that nobody listens on may be given to this very socket, which then is connected to itself.
    if (!met || (own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0)) return dial();
    connected_ = true;
  }
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) {
    std::byte ignored[256];  // peers say nothing here; what is waited for is the end
    const ssize_t n = recv(fd_.get(), ignored, sizeof ignored, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return lose();
  }
  if (events & EPOLLOUT) flush();
}

uint64_t tcp_link::post(std::span<const std::byte> header, std::span<const std::byte> payload,
                        std::shared_ptr<const void> keep) {
  TROUPE_CHECK(header.size() <= max_frame_header && payload.size() <= max_frame_payload,
               "a frame of {} + {} B is too long", header.size(), payload.size());
  ++posted_;
  if (lost_) return posted_;
  parcel& p = queue_.emplace_back();
  const tcp_lead lead{static_cast<uint32_t>(header.size()), static_cast<uint32_t>(payload.size())};
  std::memcpy(p.head.data(), &lead, sizeof lead);
  if (!header.empty()) std::memcpy(p.head.data() + sizeof lead, header.data(), header.size());
  p.head_bytes = sizeof lead + header.size();
  p.payload = payload;
  p.keep = std::move(keep);
  // While the system takes no more, what it has not taken waits for its event.
  if (connected_ && !watched_) flush();
  return posted_;
}

void tcp_link::flush() {
  while (!queue_.empty()) {
    std::array<iovec, 2 * batch> parts;
    size_t used = 0, skip = done_, total = 0;
    for (size_t i = 0; i < std::min(batch, queue_.size()); ++i) {
      parcel& p = queue_[i];
      for (const auto bytes : {std::span<const std::byte>(p.head.data(), p.head_bytes), p.payload}) {
        const size_t over = std::min(skip, bytes.size());
        skip -= over;
        if (bytes.size() == over) continue;
        parts[used++] = {const_cast<std::byte*>(bytes.data()) + over, bytes.size() - over};
        total += bytes.size() - over;
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? watch(true) : lose();
    done_ += static_cast<size_t>(n);
    while (!queue_.empty() && done_ >= queue_.front().bytes()) {
      done_ -= queue_.front().bytes();
      sent_ += queue_.front().counts;
      queue_.pop_front();
    }
    if (static_cast<size_t>(n) < total) return watch(true);
  }
  watch(false);
}

}  // namespace troupe::transport
