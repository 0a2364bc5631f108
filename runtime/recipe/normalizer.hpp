// The normalizer of a tokenizer.json: Unicode normalisation forms before anything else.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::recipe {

/// Immutable once made; `apply` may be called from any thread.
class normalizer {
 public:
  /// From the `normalizer` section (null = nothing to do). Kinds other than NFC, NFD, NFKC, NFKD and Sequence are
  /// `unsupported`. `where` prefixes errors.
  static result<normalizer> make(const nlohmann::json& section, const std::string& where);

  bool empty() const { return forms_.empty(); }
  /// `text` (valid UTF-8) after all forms in order.
  result<std::string> apply(std::string_view text) const;

 private:
  enum class form : uint8_t { nfc, nfd, nfkc, nfkd };
  result<void> add(const nlohmann::json& section, const std::string& where);
  std::vector<form> forms_;
};

}  // namespace troupe::recipe
