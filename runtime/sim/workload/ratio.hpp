// A factor as a whole number of millionths: scaled times and lengths are integers and the same in every build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe::sim {

/// millionths / 1,000,000.
struct ratio {
  uint64_t millionths = 1'000'000;
  bool operator==(const ratio&) const = default;
  /// value * ratio, rounded to nearest; saturates at 2^63 - 1.
  uint64_t times(uint64_t value) const;
  /// value / ratio, rounded to nearest; saturates likewise. The ratio is not 0.
  uint64_t divide(uint64_t value) const;
};

/// "1.25" or "3": up to six decimals, above 0, at most 1,000,000. Else invalid_argument.
result<ratio> parse_ratio(std::string_view text);

/// The shortest text that parses back, e.g. "1.25".
std::string format_ratio(ratio r);

}  // namespace troupe::sim
