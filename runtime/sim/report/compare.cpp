#include "runtime/sim/report/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace troupe::sim {
namespace {

void compare_members(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, const std::string& path,
                     nlohmann::ordered_json& numbers, nlohmann::ordered_json& texts) {
  for (const auto& [key, va] : a.items()) {
    const auto at = b.find(key);
    if (at == b.end()) continue;
    const std::string full = path.empty() ? key : path + "." + key;
    if (va.is_object() && at->is_object()) {
      compare_members(va, *at, full, numbers, texts);
    } else if (va.is_number() && at->is_number()) {
      const double x = va.get<double>(), y = at->get<double>();
      auto& row = numbers[full];
      row["a"] = va, row["b"] = *at;
      row["change"] =
          x == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(std::round((y / x - 1) * 1e6) / 1e6);
    } else if (va.is_string() && at->is_string() && va != *at) {
      texts[full] = {{"a", va}, {"b", *at}};
    }
  }
}

}  // namespace

result<nlohmann::ordered_json> compare_summaries(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b) {
  const auto version = [](const nlohmann::ordered_json& j) {
    return j.is_object() && j.contains("troupe_summary") ? j["troupe_summary"].dump() : "none";
  };
  if (version(a) != "1" || version(b) != "1")
    return fail(errc::invalid_argument,
                "summaries of `troupe sim` (member troupe_summary: 1) expected; the first has {}, the second {}",
                version(a), version(b));
  nlohmann::ordered_json numbers = nlohmann::ordered_json::object(), texts = nlohmann::ordered_json::object();
  compare_members(a, b, "", numbers, texts);
  numbers.erase("troupe_summary");
  nlohmann::ordered_json out;
  out["numbers"] = std::move(numbers), out["texts"] = std::move(texts);
  return out;
}

std::string comparison_text(const nlohmann::ordered_json& c, double least) {
  std::string out;
  for (const auto& [path, row] : c.at("numbers").items()) {
    const double a = row.at("a").get<double>(), b = row.at("b").get<double>();
    if (a == b || std::abs(b - a) < least * std::abs(a)) continue;
    out += fmt::format("{:40} {:>16.6g} {:>16.6g}{}\n", path, a, b,
                       a == 0 ? std::string() : fmt::format(" {:+.1f} %", 100 * (b / a - 1)));
  }
  for (const auto& [path, row] : c.at("texts").items())
    out += fmt::format("{}\n  a: {}\n  b: {}\n", path, row.at("a").get<std::string>(), row.at("b").get<std::string>());
  return out;
}

}  // namespace troupe::sim
