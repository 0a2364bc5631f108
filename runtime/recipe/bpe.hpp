// Byte-pair merging of one piece.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/recipe/tokenizer.hpp"

namespace troupe::recipe {

/// Lets a map of strings be asked with a view.
struct view_hash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

/// Vocabulary and merges by id. Filled at load, then immutable.
struct bpe_model {
  struct merge {
    uint32_t rank;
    token_id joined;
  };
  std::array<token_id, 256> byte_token{};                                       // the token of each single byte
  std::unordered_map<uint64_t, merge> merges;                                   // key: pair_key(left, right)
  std::unordered_map<std::string, token_id, view_hash, std::equal_to<>> whole;  // raw bytes -> token, for ignore_merges
  bool ignore_merges = false;  // a piece that is a token as a whole is that token

  static uint64_t pair_key(token_id left, token_id right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  /// Appends the ids of `piece`. The merge with the lowest rank goes first, of equals the leftmost; n log n in the
  /// piece's length.
  void encode(std::string_view piece, std::vector<token_id>& ids) const;
};

}  // namespace troupe::recipe
