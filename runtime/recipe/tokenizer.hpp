// Text <-> token ids by a Hugging Face `tokenizer.json` of the byte-level BPE family.
//
// What is read: `model` (BPE: vocab, merges in both list forms, ignore_merges), `pre_tokenizer` (Split, ByteLevel,
// Digits and Sequences of them), `normalizer` (NFC, NFD, NFKC, NFKD and Sequences of them), `added_tokens`, `decoder`
// (ByteLevel). Anything else that would change the ids is refused when the file is loaded, by name. `post_processor` is
// not applied: the recipe places the special tokens itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::recipe {

using token_id = int32_t;

/// Whether spellings of added tokens inside a text mean those tokens. `plain` is for text of users inside a rendered
/// conversation: a user cannot forge a turn by writing <｜Assistant｜>.
enum class added_tokens : uint8_t { plain, recognised };

/// Immutable once loaded; every function may be called from any thread.
class tokenizer {
 public:
  /// Reads `path`. Errors name the file and the entry: not JSON, a missing or unsupported section, a merge whose parts
  /// or result are not in the vocabulary, one id for two tokens, a byte without a token, a pattern that does not
  /// compile.
  static result<tokenizer> load(const std::string& path);
  /// The same from text in memory; `name` stands for the file in errors.
  static result<tokenizer> parse(std::string_view json, std::string_view name);

  tokenizer(tokenizer&&) noexcept;
  tokenizer& operator=(tokenizer&&) noexcept;
  ~tokenizer();

  /// Token ids of `text` (UTF-8; invalid bytes count as U+FFFD). `exhausted` when a pattern of the pre-tokenizer passes
  /// its match limit on this text.
  result<std::vector<token_id>> encode(std::string_view text, added_tokens added = added_tokens::recognised) const;

  /// Text of `ids`; unknown ids give nothing, special tokens only when `with_special`. Bytes that are not UTF-8 become
  /// U+FFFD.
  std::string decode(const std::vector<token_id>& ids, bool with_special = false) const;

  /// Raw bytes of one token (may be part of a character); empty for an unknown id. Valid as long as the tokenizer.
  std::string_view bytes(token_id id) const;
  /// True for an added token with the special flag: it has no text of its own in an answer.
  bool special(token_id id) const;
  /// Id of an added token by its exact spelling.
  std::optional<token_id> added(std::string_view spelling) const;
  /// One more than the largest id.
  uint32_t size() const;

  struct data;  // what was loaded; private to the room

 private:
  explicit tokenizer(std::unique_ptr<data> d);
  std::unique_ptr<data> data_;
};

}  // namespace troupe::recipe
