// The wire over plain TCP sockets: non-blocking, one epoll, no thread of its own.
//
// A peer that dies, stops or lies at any moment costs its connections and nothing else: events name connections by
// numbers that are never reused, a connection that breaks the format is closed, and every buffer is bounded.
#pragma once

#include "runtime/transport/wire.hpp"

namespace troupe::transport {

/// Bounds of a wire over TCP.
struct tcp_wire_options {
  std::string interface = "lo";      // network device; empty = all but loopback, or loopback if there is no other
  uint64_t max_payload = 17u << 20;  // bytes of a frame's payload; a peer that announces more is disconnected
  size_t max_incoming = 4096;        // connections that peers have made; further ones are closed at once
};

/// Listens. unavailable when there is no such device, or it has no address.
result<std::unique_ptr<wire>> open_tcp_wire(const tcp_wire_options& options);

}  // namespace troupe::transport
