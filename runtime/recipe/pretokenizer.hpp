// The pre-tokenizer of a tokenizer.json: cuts a text into the pieces that BPE works on.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::recipe {

/// Immutable once made; `split` may be called from any thread.
class pretokenizer {
 public:
  /// From the `pre_tokenizer` section. `where` prefixes errors. It must end in a ByteLevel: only byte-level BPE is
  /// supported.
  static result<pretokenizer> make(const nlohmann::json& section, const std::string& where);

  pretokenizer(pretokenizer&&) noexcept;
  pretokenizer& operator=(pretokenizer&&) noexcept;
  ~pretokenizer();

  /// Cuts `text` (valid UTF-8) into pieces, appended in order as views into it. Patterns run with a match limit;
  /// reaching it is `exhausted`.
  result<void> split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct step;
  explicit pretokenizer(std::vector<step> steps);
  std::vector<step> steps_;
};

}  // namespace troupe::recipe
