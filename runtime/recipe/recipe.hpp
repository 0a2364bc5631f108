// The one renderer of this house: a tokenizer, the chat encoding of its model, and a bounded cache of encodings. The
// gateway, `chat`, `generate` and the tests all turn requests into token ids here, so that they cannot disagree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/recipe/chat.hpp"
#include "runtime/recipe/tokenizer.hpp"

namespace troupe::recipe {

/// Bounds of a recipe.
struct recipe_options {
  size_t cache_bytes = 32u << 20;  // texts and ids of cached segments; the least recently used go first; 0 = no cache
  size_t cache_min_text = 256;     // shorter segments are encoded anew each time
};

/// Every function may be called from any thread.
class recipe {
 public:
  /// Loads `folder`/tokenizer.json. A tokenizer without the chat encoding's tokens loads too; then `chat` fails.
  static result<std::unique_ptr<recipe>> load(const std::string& folder, const recipe_options& options = {});
  /// Takes a tokenizer that is loaded already.
  static result<std::unique_ptr<recipe>> make(tokenizer t, const recipe_options& options = {});
  ~recipe();

  /// The tokenizer; valid as long as the recipe.
  const tokenizer& tokens() const;

  /// Token ids of a conversation, ready for the answer (chat.hpp has the rules). `scope` separates the cached encodings
  /// of tenants (pass the tenant's salt): a cached long text answers faster, which must not tell one tenant what
  /// another sent.
  result<std::vector<token_id>> chat(const std::vector<message>& messages, const chat_options& options,
                                     std::string_view scope) const;

  /// Token ids of a text prompt: begin-of-sentence in front unless the text begins with it, spellings of added tokens
  /// mean those tokens, segments between them are encoded independently.
  result<std::vector<token_id>> prompt(std::string_view text, std::string_view scope) const;

  /// Bytes held by the cache now; never above the bound.
  size_t cached_bytes() const;

 private:
  struct data;
  explicit recipe(std::unique_ptr<data> d);
  std::unique_ptr<data> data_;
};

}  // namespace troupe::recipe
