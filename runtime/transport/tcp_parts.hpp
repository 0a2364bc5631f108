// The parts of the wire over TCP: what its connections say to each other, and the two kinds of connection.
#pragma once

#include <sys/socket.h>

#include <array>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/transport/tcp_wire.hpp"

namespace troupe::transport {

/// First bytes of a connection, from the one that connects. `wire` is the identity that the address promised: a port
/// that another process has by now refuses.
struct tcp_greeting {
  uint64_t magic = 0x31'45'52'49'57'50'52'54;  // "TRPWIRE1", version in the last digit
  uint64_t wire = 0;
};

/// Before every frame: lengths in bytes. The header and the payload follow.
struct tcp_lead {
  uint32_t header = 0;
  uint32_t payload = 0;
};

/// Where a wire listens, as its address says.
struct tcp_address {
  uint64_t wire = 0;                 // its identity, random
  std::vector<std::string> sockets;  // socket addresses of the system, at most 8, most likely first
  std::string encode() const;
  /// corrupt for bytes that `encode` did not make.
  static result<tcp_address> decode(std::string_view bytes);
};

/// An own descriptor.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class tcp_wire;

/// A connection that a peer has made: its bytes, cut into frames.
class tcp_incoming {
 public:
  explicit tcp_incoming(descriptor fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  /// Receives what is there, a bounded amount, and calls `to` for every whole frame. False: the connection has ended,
  /// or what it says is none of ours.
  bool receive(uint64_t wire, uint64_t max_payload, const wire::receiver& to);

 private:
  bool take(uint64_t wire, uint64_t max_payload, const wire::receiver& to);
  void make_room(size_t bytes);

  descriptor fd_;
  bool greeted_ = false;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = 0, begin_ = 0, end_ = 0;  // of the bytes that are there
  size_t wanted_ = sizeof(tcp_greeting);       // bytes from begin_ to the end of what comes next
};

/// See wire.hpp.
class tcp_link final : public link {
 public:
  tcp_link(tcp_wire& owner, uint64_t key, tcp_address to);
  ~tcp_link() override;
  uint64_t post(std::span<const std::byte> header, std::span<const std::byte> payload,
                std::shared_ptr<const void> keep) override;
  uint64_t sent() const override { return sent_; }
  bool lost() const override { return lost_; }
  /// Begins to connect to the next of the peer's sockets; lost when there is none left.
  void dial();
  /// What epoll says of its socket.
  void handle(uint32_t events);

 private:
  struct parcel {
    std::array<std::byte, sizeof(tcp_lead) + max_frame_header> head;
    size_t head_bytes = 0;
    std::span<const std::byte> payload;
    std::shared_ptr<const void> keep;
    bool counts = true;  // the greeting does not
    size_t bytes() const { return head_bytes + payload.size(); }
  };
  void lose();
  void flush();
  void watch(bool writable);

  tcp_wire& wire_;
  const uint64_t key_;
  const tcp_address to_;
  descriptor fd_;
  size_t dialled_ = 0;
  bool connected_ = false, lost_ = false, watched_ = false;
  uint64_t posted_ = 0, sent_ = 0;
  std::deque<parcel> queue_;
  size_t done_ = 0;  // bytes of the first of the queue that the system has
};

/// See tcp_wire.hpp.
class tcp_wire final : public wire {
 public:
  explicit tcp_wire(const tcp_wire_options& options) : options_(options) {}
  result<void> open();

  const std::string& address() const override { return address_; }
  void on_frame(receiver to) override { receiver_ = std::move(to); }
  result<std::unique_ptr<link>> connect(std::string_view address) override;
  unsigned progress() override;
  void sleep(nanoseconds limit) override;
  void signal() override;

 private:
  friend class tcp_link;
  result<void> listen();
  void accept_all();

  const tcp_wire_options options_;
  uint64_t identity_ = 0;
  std::string address_;
  descriptor epoll_, event_, listen_, spare_;
  receiver receiver_;
  uint64_t next_key_ = 2;  // 0: the listener, 1: the event
  std::unordered_map<uint64_t, std::unique_ptr<tcp_incoming>> incoming_;
  std::unordered_map<uint64_t, tcp_link*> links_;
};

}  // namespace troupe::transport
