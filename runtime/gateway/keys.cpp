#include "runtime/gateway/keys.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/check.hpp"

namespace troupe::gateway {

namespace {

std::array<uint8_t, 32> sha256(std::string_view bytes) {
  std::array<uint8_t, 32> digest{};
  unsigned length = 0;
  int ok = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  TROUPE_CHECK(ok == 1 && length == digest.size(), "OpenSSL gave no SHA-256");
  return digest;
}

/// One entry before it is checked; `line` counts from 1.
struct raw_entry {
  int line = 0;
  std::map<std::string, std::string> fields;
};

result<std::vector<raw_entry>> read_json_lines(const std::string& text, const std::string& name) {
  std::vector<raw_entry> out;
  std::istringstream in(text);
  std::string line;
  for (int n = 1; std::getline(in, line); ++n) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto doc = nlohmann::json::parse(line, nullptr, false);
    if (!doc.is_object()) return fail(errc::invalid_argument, "{}:{}: a JSON object is expected", name, n);
    raw_entry e{n, {}};
    for (const auto& [key, value] : doc.items()) {
      if (!value.is_string() && !(key == "priority" && value.is_number_unsigned()))
        return fail(errc::invalid_argument, "{}:{}: {} must be a string", name, n, key);
      e.fields[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    out.push_back(std::move(e));
  }
  return out;
}

result<std::vector<raw_entry>> read_yaml(const std::string& text, const std::string& name) {
  std::vector<raw_entry> out;
  try {
    YAML::Node root = YAML::Load(text);
    if (!root.IsMap() || !root["keys"] || !root["keys"].IsSequence() || root.size() != 1) {
      return fail(errc::invalid_argument, "{}: one list named `keys` is expected", name);
    }
    for (const YAML::Node& node : root["keys"]) {
      raw_entry e{node.Mark().line + 1, {}};
      if (!node.IsMap())
        return fail(errc::invalid_argument, "{}:{}: an entry with key and tenant is expected", name, e.line);
      for (const auto& field : node) {
        if (!field.second.IsScalar()) {
          return fail(errc::invalid_argument, "{}:{}: {} must be a string", name, e.line, field.first.Scalar());
        }
        e.fields[field.first.Scalar()] = field.second.Scalar();
      }
      out.push_back(std::move(e));
    }
  } catch (const YAML::Exception& e) {
    return fail(errc::invalid_argument, "{}:{}: not valid YAML: {}", name, e.mark.line + 1, e.msg);
  }
  return out;
}

}  // namespace

std::string derived_salt(std::string_view tenant) {
  constexpr std::string_view word = "troupe tenant salt 1";
  std::string input;
  for (std::string_view part : {word, tenant}) input += fmt::format("{}:{}", part.size(), part);
  std::string hex;
  for (uint8_t b : sha256(input)) hex += fmt::format("{:02x}", b);
  return hex;
}

client local_client() { return {"local", derived_salt("local")}; }

result<key_ring> key_ring::parse(const std::string& text, const std::string& name) {
  size_t first = text.find_first_not_of(" \t\r\n");
  bool lines = first != std::string::npos && text[first] == '{';
  TROUPE_TRY(std::vector<raw_entry> raw, lines ? read_json_lines(text, name) : read_yaml(text, name));
  if (raw.empty()) return fail(errc::invalid_argument, "{}: it holds no key; nobody could use the server", name);
  if (raw.size() > max_keys) return fail(errc::invalid_argument, "{}: more than {} keys", name, max_keys);
  key_ring ring;
  std::map<std::string, std::string> salts;
  for (raw_entry& e : raw) {
    for (const auto& [field, value] : e.fields) {
      if (field != "key" && field != "tenant" && field != "salt" && field != "traffic" && field != "priority") {
        return fail(errc::invalid_argument, "{}:{}: unknown field {} (key, tenant, salt, traffic, priority)", name,
                    e.line, field);
      }
    }
    const std::string& key = e.fields["key"];
    if (key.size() < 8) return fail(errc::invalid_argument, "{}:{}: key must have 8 characters or more", name, e.line);
    client who;
    who.tenant = e.fields["tenant"];
    if (who.tenant.empty() || who.tenant.size() > 128) {
      return fail(errc::invalid_argument, "{}:{}: tenant must have 1 to 128 characters", name, e.line);
    }
    const std::string& traffic = e.fields["traffic"];
    if (traffic == "agent")
      who.traffic = traffic_class::agent;
    else if (!traffic.empty() && traffic != "chatbot") {
      return fail(errc::invalid_argument, "{}:{}: traffic must be agent or chatbot, not {}", name, e.line, traffic);
    }
    if (const std::string& priority = e.fields["priority"]; !priority.empty()) {
      if (priority.size() != 1 || priority[0] < '0' || priority[0] > '9')
        return fail(errc::invalid_argument, "{}:{}: priority must be 0 to 9, not {}", name, e.line, priority);
      who.priority = static_cast<uint8_t>(priority[0] - '0');
    }
    who.salt = e.fields.contains("salt") ? e.fields["salt"] : derived_salt(who.tenant);
    auto [known, fresh] = salts.emplace(who.tenant, who.salt);
    if (!fresh && known->second != who.salt) {
      return fail(errc::invalid_argument, "{}:{}: tenant {} has another salt further up", name, e.line, who.tenant);
    }
    if (ring.find(key) != nullptr)
      return fail(errc::invalid_argument, "{}:{}: the key stands further up already", name, e.line);
    ring.entries_.push_back({sha256(key), std::move(who)});
  }
  return ring;
}

result<key_ring> key_ring::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(errc::io, "{}: the key file cannot be opened", path);
  std::ostringstream text;
  text << in.rdbuf();
  return parse(text.str(), path);
}

const client* key_ring::find(std::string_view key) const {
  auto digest = sha256(key);
  const client* found = nullptr;
  for (const entry& e : entries_) {
    if (CRYPTO_memcmp(e.digest.data(), digest.data(), digest.size()) == 0) found = &e.who;
  }
  return found;
}

}  // namespace troupe::gateway
