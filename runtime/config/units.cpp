#include "runtime/config/units.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace troupe::config {
namespace {

struct unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array<unit, 9> sizes{{{"TiB", 1ull << 40},
                                     {"GiB", 1ull << 30},
                                     {"MiB", 1ull << 20},
                                     {"KiB", 1ull << 10},
                                     {"TB", 1000000000000ull},
                                     {"GB", 1000000000ull},
                                     {"MB", 1000000ull},
                                     {"KB", 1000ull},
                                     {"B", 1}}};
constexpr std::array<unit, 6> times{{{"h", 3600000000000ull},
                                     {"m", 60000000000ull},
                                     {"s", 1000000000ull},
                                     {"ms", 1000000ull},
                                     {"us", 1000ull},
                                     {"ns", 1}}};

template <size_t N>
result<uint64_t> parse_with_unit(std::string_view text, const std::array<unit, N>& units, const char* what,
                                 const char* example) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  std::string known;
  for (const unit& u : units) known += (known.empty() ? "" : ", ") + std::string(u.name);
  if (digits == 0)
    return fail(errc::invalid_argument, "'{}' is not a {}: write a whole number and a unit, e.g. {}", text, what,
                example);
  uint64_t value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + digits, value);
  if (ec != std::errc()) return fail(errc::invalid_argument, "'{}' is too large", text);
  std::string_view name = text.substr(digits);
  while (name.starts_with(' ')) name.remove_prefix(1);
  if (name.empty())
    return fail(errc::invalid_argument, "'{}' has no unit; a {} needs one of {}, e.g. {}", text, what, known, example);
  for (const unit& u : units) {
    if (u.name != name) continue;
    if (value > INT64_MAX / u.factor) return fail(errc::invalid_argument, "'{}' is too large", text);
    return value * u.factor;
  }
  return fail(errc::invalid_argument, "'{}' has the unknown unit '{}'; a {} needs one of {}", text, name, what, known);
}

template <size_t N>
std::string format_with_unit(uint64_t value, const std::array<unit, N>& units) {
  std::string shortest;
  for (const unit& u : units) {
    if (value % u.factor != 0 || (value == 0 && u.factor != 1)) continue;
    std::string s = std::to_string(value / u.factor) + std::string(u.name);
    if (shortest.empty() || s.size() < shortest.size()) shortest = s;
  }
  return shortest;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace

result<uint64_t> parse_bytes(std::string_view text) { return parse_with_unit(text, sizes, "size", "64MiB"); }

result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  TROUPE_TRY(uint64_t ns, parse_with_unit(text, times, "duration", "200ms"));
  return std::chrono::nanoseconds(static_cast<int64_t>(ns));
}

result<uint64_t> parse_count(std::string_view text) {
  uint64_t value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() > 1 && text[0] == '-' && text.find_first_not_of("0123456789", 1) == text.npos)
    return fail(errc::invalid_argument, "{} is negative", text);
  if (text.empty() || ec == std::errc::invalid_argument || end != text.data() + text.size()) {
    return fail(errc::invalid_argument, "'{}' is not a whole number", text);
  }
  if (ec != std::errc()) return fail(errc::invalid_argument, "'{}' is too large", text);
  return value;
}

std::string format_bytes(uint64_t bytes) { return format_with_unit(bytes, sizes); }

std::string format_duration(std::chrono::nanoseconds d) {
  return d.count() == 0 ? "0s" : format_with_unit(static_cast<uint64_t>(d.count()), times);
}

std::string address::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

bool address::loopback() const { return host == "localhost" || host == "::1" || host.starts_with("127."); }

result<address> parse_address(std::string_view text) {
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return fail(errc::invalid_argument, "'{}' is not an address: write HOST:PORT, e.g. 127.0.0.1:8000", text);
  }
  std::string host(text.substr(0, colon));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::array<unsigned char, 16> bytes{};
  bool known = host == "localhost" || inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
               inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
  if (!known) return fail(errc::invalid_argument, "'{}': host '{}' is neither an IP address nor localhost", text, host);
  auto port = parse_count(text.substr(colon + 1));
  if (!port || *port > 65535)
    return fail(errc::invalid_argument, "'{}': the port must be a number from 0 to 65535", text);
  return address{host, static_cast<uint16_t>(*port)};
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t limit = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& n : names) {
    size_t d = edit_distance(word, n);
    if (d < limit) limit = d, best = n;
  }
  return best;
}

}  // namespace troupe::config
