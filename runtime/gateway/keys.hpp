// API keys: who asks. The client can choose neither its tenant, nor its cache salt, nor its traffic class, nor a
// priority above that of its key.
//
// The file is YAML
//     keys:
//       - {key: sk-abc, tenant: acme, traffic: agent, priority: 7}
//       - {key: sk-def, tenant: zeta, traffic: chatbot, salt: 7f3a}
// or JSON lines with the same fields. `traffic` is chatbot and `priority` 5 if absent. `salt` is derived from the
// tenant if absent; all keys of a tenant share one salt, so a file that gives two is refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/gateway/generator.hpp"

namespace troupe::gateway {

/// Who a key belongs to.
struct client {
  std::string tenant;
  std::string salt;
  traffic_class traffic = traffic_class::chatbot;
  uint8_t priority = usual_priority;
  bool operator==(const client&) const = default;
};

/// The salt of a tenant that has none in the file: hex SHA-256 of a fixed word and the tenant, each with its length in
/// front.
std::string derived_salt(std::string_view tenant);

/// The client of a server without keys.
client local_client();

/// Immutable once loaded; any thread. Holds SHA-256 digests, not the keys.
class key_ring {
 public:
  static constexpr size_t max_keys = 10000;

  /// Reads the file; errors name file, line and entry and never show a key.
  static result<key_ring> load(const std::string& path);
  /// The same from text; `name` stands for the file in errors.
  static result<key_ring> parse(const std::string& text, const std::string& name);

  /// The client of `key`, nullptr if unknown. Takes the same time for any key: every digest is compared, each in
  /// constant time.
  const client* find(std::string_view key) const;
  size_t size() const { return entries_.size(); }

 private:
  struct entry {
    std::array<uint8_t, 32> digest;
    client who;
  };
  std::vector<entry> entries_;
};

}  // namespace troupe::gateway
