// The layout file of a directory store.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kv/store/directory.hpp"

namespace troupe::kv {
namespace {

constexpr int layout_version = 1;

std::string hex(std::span<const uint8_t> bytes) {
  std::string s;
  for (uint8_t b : bytes) s += fmt::format("{:02x}", b);
  return s;
}

bool unhex(const std::string& s, std::span<uint8_t> out) {
  if (s.size() != 2 * out.size()) return false;
  for (size_t i = 0; i < out.size(); ++i) {
    unsigned v = 0;
    for (char c : {s[2 * i], s[2 * i + 1]}) {
      const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (d < 0) return false;
      v = v * 16 + static_cast<unsigned>(d);
    }
    out[i] = static_cast<uint8_t>(v);
  }
  return true;
}

}  // namespace

std::string print_layout(const store_layout& l) {
  nlohmann::ordered_json j;
  j["format"] = "troupe-kv";
  j["version"] = layout_version;
  j["data"] = l.data;
  j["parity"] = l.parity;
  j["targets"] = l.targets;
  j["chunk_bytes"] = l.chunk_bytes;
  j["capacity_bytes"] = l.capacity_bytes;
  j["scheme"] = {{"name", l.scheme.name},
                 {"version", l.scheme.version},
                 {"block_tokens", l.scheme.block_tokens},
                 {"fingerprint", hex(l.scheme.fingerprint)}};
  return j.dump(2) + "\n";
}

result<store_layout> parse_layout(const std::string& text, const std::string& file) {
  const auto j = nlohmann::json::parse(text, nullptr, false);
  const auto bad = [&](const std::string& what) {
    return fail(errc::corrupt,
                "{}: {}; it was written by another program or is damaged. Restore it, or move the "
                "directory away and start a new store",
                file, what);
  };
  if (!j.is_object()) return bad("not JSON");
  if (!j.contains("format") || j["format"] != "troupe-kv") return bad("no layout of a store");
  if (!j.contains("version") || !j["version"].is_number_integer()) return bad("no version");
  if (j["version"] != layout_version)
    return fail(errc::unsupported, "{}: layout version {}, this program knows {}", file, j["version"].dump(),
                layout_version);
  const auto number = [&](const nlohmann::json& from, const char* name, uint64_t low,
                          uint64_t high) -> result<uint64_t> {
    auto it = from.find(name);
    if (it == from.end() || !it->is_number_unsigned()) return bad(fmt::format("{} is missing", name));
    const auto v = it->get<uint64_t>();
    if (v < low || v > high) return bad(fmt::format("{} is {}, it must be {} to {}", name, v, low, high));
    return v;
  };
  store_layout l;
  TROUPE_TRY(uint64_t data, number(j, "data", 1, max_data_shards));
  TROUPE_TRY(uint64_t parity, number(j, "parity", 0, max_parity_shards));
  TROUPE_TRY(uint64_t targets, number(j, "targets", data + parity, 255));
  TROUPE_TRY(l.chunk_bytes, number(j, "chunk_bytes", min_chunk_bytes, max_chunk_bytes));
  TROUPE_TRY(l.capacity_bytes, number(j, "capacity_bytes", 1 << 20, uint64_t{1} << 60));
  l.data = static_cast<uint32_t>(data);
  l.parity = static_cast<uint32_t>(parity);
  l.targets = static_cast<uint32_t>(targets);
  if (!j.contains("scheme") || !j["scheme"].is_object()) return bad("scheme is missing");
  const auto& s = j["scheme"];
  if (!s.contains("name") || !s["name"].is_string() || !s.contains("fingerprint") || !s["fingerprint"].is_string())
    return bad("scheme is incomplete");
  l.scheme.name = s["name"].get<std::string>();
  TROUPE_TRY(uint64_t version, number(s, "version", 1, UINT32_MAX));
  TROUPE_TRY(uint64_t tokens, number(s, "block_tokens", 1, 65'536));
  l.scheme.version = static_cast<uint32_t>(version);
  l.scheme.block_tokens = static_cast<uint32_t>(tokens);
  if (!unhex(s["fingerprint"].get<std::string>(), l.scheme.fingerprint)) return bad("fingerprint is not 64 hex digits");
  return l;
}

}  // namespace troupe::kv
