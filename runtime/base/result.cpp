#include "runtime/base/result.hpp"

namespace troupe {

const char* to_string(errc code) {
  switch (code) {
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::not_found:
      return "not_found";
    case errc::unavailable:
      return "unavailable";
    case errc::peer_lost:
      return "peer_lost";
    case errc::timeout:
      return "timeout";
    case errc::cancelled:
      return "cancelled";
    case errc::exhausted:
      return "exhausted";
    case errc::corrupt:
      return "corrupt";
    case errc::io:
      return "io";
    case errc::unsupported:
      return "unsupported";
    case errc::stale:
      return "stale";
    case errc::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace troupe
