#include "runtime/sim/workload/azure.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <optional>
#include <string_view>

namespace troupe::sim {
namespace {

// `count` digits at `at` as a number; moves `at` behind them.
bool digits(std::string_view s, size_t& at, size_t count, int64_t& out) {
  if (at + count > s.size()) return false;
  out = 0;
  for (size_t i = 0; i < count; ++i, ++at) {
    if (s[at] < '0' || s[at] > '9') return false;
    out = out * 10 + (s[at] - '0');
  }
  return true;
}

bool letter(std::string_view s, size_t& at, std::string_view any_of) {
  if (at >= s.size() || any_of.find(s[at]) == std::string_view::npos) return false;
  ++at;
  return true;
}

// Nanoseconds since 1970.
std::optional<int64_t> azure_time(std::string_view s) {
  size_t at = 0;
  int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, fraction = 0;
  if (!digits(s, at, 4, year) || !letter(s, at, "-") || !digits(s, at, 2, month) || !letter(s, at, "-") ||
      !digits(s, at, 2, day) || !letter(s, at, " T") || !digits(s, at, 2, hour) || !letter(s, at, ":") ||
      !digits(s, at, 2, minute) || !letter(s, at, ":") || !digits(s, at, 2, second))
    return std::nullopt;
  if (at < s.size() && s[at] == '.') {
    ++at;
    int64_t unit = 100'000'000;
    size_t count = 0;
    for (; at < s.size() && s[at] >= '0' && s[at] <= '9'; ++at, ++count, unit /= 10) fraction += (s[at] - '0') * unit;
    if (count == 0 || count > 9) return std::nullopt;
  }
  const auto rest = s.substr(at);
  if (!rest.empty() && rest != "+00:00" && rest != "Z") return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || year < 1970 || year > 2200 || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1'000'000'000 + fraction;
}

bool azure_tokens(std::string_view s, uint32_t& out) {
  const auto r = std::from_chars(s.data(), s.data() + s.size(), out);
  return r.ec == std::errc{} && r.ptr == s.data() + s.size();
}

}  // namespace

result<std::vector<azure_request>> read_azure(std::istream& in, const std::string& name) {
  constexpr std::string_view header = "TIMESTAMP,ContextTokens,GeneratedTokens";
  std::vector<azure_request> out;
  std::string line;
  int64_t first = 0;
  bool headed = false;
  for (size_t n = 1; std::getline(in, line); ++n) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    if (!headed) {
      if (line != header) return fail(errc::invalid_argument, "{}:{}: the header '{}' expected", name, n, header);
      headed = true;
      continue;
    }
    const auto bad = [&](std::string_view what) { return fail(errc::invalid_argument, "{}:{}: {}", name, n, what); };
    std::array<std::string_view, 3> cells;
    std::string_view rest = line;
    for (size_t i = 0; i < 3; ++i) {
      const size_t comma = rest.find(',');
      if ((comma == std::string_view::npos) != (i == 2)) return bad("three cells expected");
      cells[i] = rest.substr(0, comma);
      if (i < 2) rest.remove_prefix(comma + 1);
    }
    const auto time = azure_time(cells[0]);
    azure_request r;
    if (!time) return bad("TIMESTAMP: a time like 2023-11-16 18:17:03.9799600 expected");
    if (!azure_tokens(cells[1], r.input_tokens) || r.input_tokens == 0)
      return bad("ContextTokens: a whole number, at least 1, expected");
    if (!azure_tokens(cells[2], r.output_tokens)) return bad("GeneratedTokens: a whole number expected");
    if (r.output_tokens == 0) r.output_tokens = 1;
    if (out.empty()) first = *time;
    r.at_ns = *time - first;
    if (r.at_ns < (out.empty() ? 0 : out.back().at_ns)) return bad("TIMESTAMP: before that of the line above");
    out.push_back(r);
  }
  if (in.bad()) return fail(errc::io, "{}: cannot be read to its end", name);
  if (out.empty()) return fail(errc::invalid_argument, "{}: holds no request", name);
  return out;
}

result<std::vector<azure_request>> read_azure_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return fail(errc::io, "{}: cannot be read", path);
  return read_azure(in, path);
}

}  // namespace troupe::sim
