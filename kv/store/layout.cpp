// The layout file of a directory store.
#include "kv/store/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kv/device/shard_store.hpp"

namespace troupe::kv {
namespace {

constexpr int plain_version = 1, members_version = 2;

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

std::vector<store_member> store_layout::members() const {
  if (!changed.empty()) return changed;
  std::vector<store_member> all;
  for (uint32_t t = 1; t <= targets; ++t) all.push_back({target_id{t}, false});
  return all;
}

bool store_layout::has(target_id id) const {
  const auto all = members();
  return std::any_of(all.begin(), all.end(), [&](const store_member& m) { return m.id == id; });
}

uint32_t store_layout::active() const {
  const auto all = members();
  return static_cast<uint32_t>(std::count_if(all.begin(), all.end(), [](const auto& m) { return !m.draining; }));
}

std::string print_layout(const store_layout& l) {
  nlohmann::ordered_json j;
  j["format"] = "troupe-kv";
  j["version"] = l.changed.empty() ? plain_version : members_version;
  j["data"] = l.data;
  j["parity"] = l.parity;
  j["targets"] = l.targets;
  j["chunk_bytes"] = l.chunk_bytes;
  j["capacity_bytes"] = l.capacity_bytes;
  j["scheme"] = {{"name", l.scheme.name},
                 {"version", l.scheme.version},
                 {"block_tokens", l.scheme.block_tokens},
                 {"fingerprint", hex(l.scheme.fingerprint)}};
  if (!l.changed.empty()) {
    nlohmann::ordered_json members = nlohmann::ordered_json::array();
    for (const auto& m : l.changed) {
      nlohmann::ordered_json one{{"id", m.id.value}};
      if (m.draining) one["draining"] = true;
      members.push_back(std::move(one));
    }
    j["members"] = std::move(members);
    j["next_target"] = l.next_target;
    j["epoch"] = l.epoch.value;
  }
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
  if (j["version"] != plain_version && j["version"] != members_version)
    return fail(errc::unsupported, "{}: layout version {}, this program knows {} and {}", file, j["version"].dump(),
                plain_version, members_version);
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
  TROUPE_TRY(uint64_t targets, number(j, "targets", data + parity, max_targets));
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
  if (j["version"] == plain_version) return l;
  if (!j.contains("members") || !j["members"].is_array()) return bad("members are missing");
  uint64_t before = 0;
  for (const auto& m : j["members"]) {
    if (!m.is_object()) return bad("a member is no object");
    TROUPE_TRY(uint64_t id, number(m, "id", before + 1, max_target_id));  // ascending, none twice
    before = id;
    const auto draining = m.find("draining");
    if (draining != m.end() && !draining->is_boolean()) return bad(fmt::format("draining of member {}", id));
    l.changed.push_back({target_id{static_cast<uint32_t>(id)}, draining != m.end() && draining->get<bool>()});
  }
  if (l.changed.size() != l.targets) return bad("targets is not the number of members");
  if (l.active() < l.data + l.parity) return bad("too few members that are not draining");
  TROUPE_TRY(uint64_t next, number(j, "next_target", before + 1, max_target_id + 1));
  TROUPE_TRY(uint64_t epoch, number(j, "epoch", 1, UINT64_MAX / 2));
  l.next_target = static_cast<uint32_t>(next);
  l.epoch = storage_epoch{epoch};
  return l;
}

}  // namespace troupe::kv
