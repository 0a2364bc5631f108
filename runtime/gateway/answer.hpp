// The text of an answer as its tokens come: characters are whole, stop strings are held back, log-probabilities go with
// the text that they belong to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/gateway/api_response.hpp"
#include "runtime/recipe/stop_matcher.hpp"
#include "runtime/recipe/tokenizer.hpp"
#include "runtime/recipe/utf8.hpp"

namespace troupe::gateway {

/// Not thread safe. What it gives out in total depends on the tokens only, not on how they were grouped.
class answer {
 public:
  /// Stop strings count only after `min_tokens` tokens. `records` says whether log-probabilities are wanted.
  answer(const recipe::tokenizer& tokens, std::vector<std::string> stops, uint32_t min_tokens, bool records);

  /// The next token. False when a stop string is complete: this token and later ones no longer matter.
  bool add(token_record token);
  /// No more tokens: gives out what was held back.
  void finish();

  /// Text that became certain since the last call, valid UTF-8.
  std::string take_text();
  /// Records of the tokens whose text began within the text given out so far; after `finish` the rest too, without
  /// those of a stop string.
  std::vector<token_record> take_records();

  bool stopped() const { return stop_.stopped(); }
  /// Tokens added, the one that completed a stop string included.
  uint32_t tokens() const { return count_; }

 private:
  const recipe::tokenizer& tokens_;
  recipe::utf8_stream utf8_;
  recipe::stop_matcher stop_;
  const uint32_t min_tokens_;
  const bool want_records_;
  uint32_t count_ = 0;
  uint32_t decoded_ = 0, given_ = 0;  // characters decoded, and given out
  bool finished_ = false;
  std::string out_, scratch_;
  std::vector<token_record> records_;
};

}  // namespace troupe::gateway
