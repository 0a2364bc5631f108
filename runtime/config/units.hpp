// Values as people write them in configuration files: sizes and durations carry a unit, addresses are HOST:PORT.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::config {

/// "64MiB" -> 67108864. Units B, KiB, MiB, GiB, TiB (1024) and KB, MB, GB, TB (1000); a number without a unit, a
/// fraction or an overflow of 64 bits is invalid_argument.
result<uint64_t> parse_bytes(std::string_view text);

/// "200ms" -> 200 ms. Units ns, us, ms, s, m, h; a number without a unit is invalid_argument.
result<std::chrono::nanoseconds> parse_duration(std::string_view text);

/// A whole number in decimal digits, nothing else.
result<uint64_t> parse_count(std::string_view text);

/// The shortest text that parses back to the value.
std::string format_bytes(uint64_t bytes);
std::string format_duration(std::chrono::nanoseconds d);

/// Where a process listens or is found.
struct address {
  std::string host;   // an IPv4 or IPv6 address, or "localhost"; without brackets
  uint16_t port = 0;  // 0: the system chooses a free one
  bool operator==(const address&) const = default;
  /// "127.0.0.1:8000", "[::1]:8000".
  std::string text() const;
  /// True if only this machine reaches it (127.0.0.0/8, ::1, localhost).
  bool loopback() const;
};

/// "HOST:PORT", "[IPv6]:PORT". Host names other than localhost are refused: what a name means changes under a running
/// cluster.
result<address> parse_address(std::string_view text);

/// The entry of `names` nearest to `word` by edit distance, or "" when none is near enough to be a typing slip.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

}  // namespace troupe::config
