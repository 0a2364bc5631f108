// How a process is reached: what an address blob holds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe::transport {

/// The address of a transport or an expert-parallel endpoint.
struct endpoint_address {
  uint64_t identity = 0;  // random per transport or endpoint
  uint64_t host = 0;      // equal on processes that can share memory
  std::string messages;   // of its wire
  bool shares = false;    // its memory can be mapped by processes of its host
  std::string encode() const;
  /// corrupt for bytes that `encode` did not make.
  static result<endpoint_address> decode(std::string_view bytes);
};

/// Hash of what two processes must have in common to share memory by /proc: boot and pid namespace.
uint64_t host_identity();

}  // namespace troupe::transport
