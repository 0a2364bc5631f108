#include "runtime/recipe/recipe.hpp"

#include <list>
#include <mutex>
#include <unordered_map>

namespace troupe::recipe {

namespace {

/// Encodings of texts, bounded in bytes, the least recently used go first.
class encoding_cache {
 public:
  explicit encoding_cache(size_t limit) : limit_(limit) {}

  bool find(const std::string& key, std::vector<token_id>& ids) {
    std::lock_guard lock(mutex_);
    auto it = entries_.find(key);
    if (it == entries_.end()) return false;
    order_.splice(order_.begin(), order_, it->second);
    ids.insert(ids.end(), it->second->ids.begin(), it->second->ids.end());
    return true;
  }

  void put(std::string key, const std::vector<token_id>& ids) {
    size_t size = cost(key, ids);
    if (size > limit_) return;
    std::lock_guard lock(mutex_);
    if (entries_.contains(key)) return;
    while (bytes_ + size > limit_) {
      bytes_ -= cost(order_.back().key, order_.back().ids);
      entries_.erase(order_.back().key);
      order_.pop_back();
    }
    order_.push_front({std::move(key), ids});
    entries_.emplace(order_.front().key, order_.begin());
    bytes_ += size;
  }

  size_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct entry {
    std::string key;
    std::vector<token_id> ids;
  };
  static size_t cost(const std::string& key, const std::vector<token_id>& ids) {
    return key.size() + ids.size() * sizeof(token_id) + 160;  // and roughly what list and map add
  }
  const size_t limit_;
  mutable std::mutex mutex_;
  std::list<entry> order_;  // most recent first
  std::unordered_map<std::string_view, std::list<entry>::iterator> entries_;
  size_t bytes_ = 0;
};

}  // namespace

struct recipe::data {
  tokenizer tokens;
  recipe_options options;
  token_id chat_ids[chat_token_count] = {};
  std::string missing;  // spelling of a chat token that the tokenizer lacks
  mutable encoding_cache cache;

  data(tokenizer t, const recipe_options& o) : tokens(std::move(t)), options(o), cache(o.cache_bytes) {
    for (int i = 0; i < chat_token_count; ++i) {
      const char* s = spelling(static_cast<chat_token>(i));
      if (auto id = tokens.added(s))
        chat_ids[i] = *id;
      else if (missing.empty())
        missing = s;
    }
  }

  result<void> text(std::string_view t, added_tokens added, std::string_view scope, std::vector<token_id>& ids) const {
    bool cached = options.cache_bytes > 0 && t.size() >= options.cache_min_text;
    std::string key;
    if (cached) {  // the scope's length goes in front, so that no pair of scope and text equals another
      key = fmt::format("{}:{}{}", scope.size(), scope, added == added_tokens::plain ? 'p' : 'r');
      key += t;
      if (cache.find(key, ids)) return {};
    }
    auto fresh = tokens.encode(t, added);
    if (!fresh) return fail(fresh.error());
    ids.insert(ids.end(), fresh->begin(), fresh->end());
    if (cached) cache.put(std::move(key), *fresh);
    return {};
  }
};

recipe::recipe(std::unique_ptr<data> d) : data_(std::move(d)) {}
recipe::~recipe() = default;

result<std::unique_ptr<recipe>> recipe::load(const std::string& folder, const recipe_options& options) {
  TROUPE_TRY(tokenizer t, tokenizer::load(folder + "/tokenizer.json"));
  return make(std::move(t), options);
}

result<std::unique_ptr<recipe>> recipe::make(tokenizer t, const recipe_options& options) {
  return std::unique_ptr<recipe>(new recipe(std::make_unique<data>(std::move(t), options)));
}

const tokenizer& recipe::tokens() const { return data_->tokens; }

result<std::vector<token_id>> recipe::chat(const std::vector<message>& messages, const chat_options& options,
                                           std::string_view scope) const {
  if (!data_->missing.empty()) {
    return fail(errc::unsupported, "this model's tokenizer has no {} token, so it cannot chat; use /v1/completions",
                data_->missing);
  }
  TROUPE_TRY(std::vector<segment> segments, render(messages, options));
  std::vector<token_id> ids;
  for (const segment& s : segments) {
    if (s.is_token) {
      ids.push_back(data_->chat_ids[static_cast<int>(s.token)]);
    } else if (auto r = data_->text(s.text, added_tokens::plain, scope, ids); !r) {
      return fail(r.error());
    }
  }
  return ids;
}

result<std::vector<token_id>> recipe::prompt(std::string_view text, std::string_view scope) const {
  std::vector<token_id> ids;
  auto bos = data_->tokens.added(spelling(chat_token::bos));
  if (bos && !text.starts_with(spelling(chat_token::bos))) ids.push_back(*bos);
  if (auto r = data_->text(text, added_tokens::recognised, scope, ids); !r) return fail(r.error());
  return ids;
}

size_t recipe::cached_bytes() const { return data_->cache.bytes(); }

}  // namespace troupe::recipe
