#include "runtime/sim/workload/ratio.hpp"

#include <algorithm>

namespace troupe::sim {
namespace {

constexpr uint64_t one_million = 1'000'000;

uint64_t saturated(unsigned __int128 v) {
  return static_cast<uint64_t>(std::min<unsigned __int128>(v, static_cast<uint64_t>(INT64_MAX)));
}

}  // namespace

uint64_t ratio::times(uint64_t value) const {
  return saturated((static_cast<unsigned __int128>(value) * millionths + one_million / 2) / one_million);
}

uint64_t ratio::divide(uint64_t value) const {
  return saturated((static_cast<unsigned __int128>(value) * one_million + millionths / 2) / millionths);
}

result<ratio> parse_ratio(std::string_view text) {
  uint64_t whole = 0, part = 0, unit = one_million;
  size_t digits = 0;
  bool point = false, good = true;
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
    } else if (c >= '0' && c <= '9' && !point) {
      whole = whole * 10 + static_cast<uint64_t>(c - '0'), ++digits;
      good = good && whole <= one_million;
      if (!good) break;
    } else if (c >= '0' && c <= '9' && unit > 1) {
      unit /= 10, part += static_cast<uint64_t>(c - '0') * unit, ++digits;
    } else {
      good = false;
      break;
    }
  }
  const uint64_t v = whole * one_million + part;
  if (!good || digits == 0 || v == 0 || v > one_million * one_million)
    return fail(
        errc::invalid_argument,
        "'{}' is no factor: a number above 0 and up to 1000000 with at most six decimals is expected, e.g. 1.25", text);
  return ratio{v};
}

std::string format_ratio(ratio r) {
  std::string out = std::to_string(r.millionths / one_million);
  uint64_t part = r.millionths % one_million;
  if (part == 0) return out;
  std::string decimals = std::to_string(one_million + part).substr(1);
  decimals.erase(decimals.find_last_not_of('0') + 1);
  return out + "." + decimals;
}

}  // namespace troupe::sim
