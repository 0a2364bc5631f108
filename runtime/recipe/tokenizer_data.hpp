// What a loaded tokenizer holds. Private to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/recipe/bpe.hpp"
#include "runtime/recipe/normalizer.hpp"
#include "runtime/recipe/pretokenizer.hpp"
#include "runtime/recipe/tokenizer.hpp"

namespace troupe::recipe {

/// Added tokens of one kind, found leftmost and longest.
class added_set {
 public:
  void add(std::string spelling, token_id id);
  bool empty() const { return ids_.empty(); }
  /// The first added token in `text` at or after `from`: {offset, length, id}.
  struct hit {
    size_t at = 0, length = 0;
    token_id id = 0;
  };
  std::optional<hit> find(std::string_view text, size_t from) const;

 private:
  std::unordered_map<std::string, token_id, view_hash, std::equal_to<>> ids_;
  std::vector<size_t> lengths_[256];  // by first byte, descending
};

/// Everything that a tokenizer file holds, compiled. Constant after loading.
struct tokenizer::data {
  struct token {
    std::string bytes;
    bool known = false, special = false;
  };
  bpe_model bpe;
  std::optional<pretokenizer> pre;
  normalizer normal;
  std::vector<token> tokens;  // by id
  std::unordered_map<std::string, token_id, view_hash, std::equal_to<>> added;
  added_set raw, normalised;  // matched before, and after normalisation
};

/// Bytes of a token's spelling in the byte-level alphabet (each byte is one printable character); nullopt when a
/// character is not of that alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view spelling);

/// Spelling of one byte in the byte-level alphabet.
std::string byte_spelling(uint8_t byte);

}  // namespace troupe::recipe
