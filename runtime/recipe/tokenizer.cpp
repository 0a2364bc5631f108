#include "runtime/recipe/tokenizer.hpp"

#include <algorithm>

#include "runtime/recipe/tokenizer_data.hpp"
#include "runtime/recipe/utf8.hpp"

namespace troupe::recipe {

void added_set::add(std::string spelling, token_id id) {
  auto& lengths = lengths_[static_cast<uint8_t>(spelling[0])];
  auto at = std::lower_bound(lengths.begin(), lengths.end(), spelling.size(), std::greater<>());
  if (at == lengths.end() || *at != spelling.size()) lengths.insert(at, spelling.size());
  ids_.emplace(std::move(spelling), id);
}

std::optional<added_set::hit> added_set::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (size_t length : lengths_[static_cast<uint8_t>(text[at])]) {
      if (length > text.size() - at) continue;
      if (auto it = ids_.find(text.substr(at, length)); it != ids_.end()) return hit{at, length, it->second};
    }
  }
  return std::nullopt;
}

tokenizer::tokenizer(std::unique_ptr<data> d) : data_(std::move(d)) {}
tokenizer::tokenizer(tokenizer&&) noexcept = default;
tokenizer& tokenizer::operator=(tokenizer&&) noexcept = default;
tokenizer::~tokenizer() = default;

namespace {

/// Calls `text_part` for every stretch without an added token and appends the ids of the tokens between.
template <class Part>
result<void> around(const added_set& set, std::string_view text, std::vector<token_id>& ids, Part text_part) {
  size_t from = 0;
  while (from < text.size()) {
    auto hit = set.empty() ? std::nullopt : set.find(text, from);
    size_t end = hit ? hit->at : text.size();
    if (end > from) {
      if (auto r = text_part(text.substr(from, end - from)); !r) return r;
    }
    if (!hit) break;
    ids.push_back(hit->id);
    from = hit->at + hit->length;
  }
  return {};
}

}  // namespace

result<std::vector<token_id>> tokenizer::encode(std::string_view text, added_tokens added) const {
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = to_utf8(text);
    text = repaired;
  }
  const data& d = *data_;
  std::vector<token_id> ids;
  std::vector<std::string_view> pieces;
  auto plain = [&](std::string_view part) -> result<void> {
    pieces.clear();
    if (auto r = d.pre->split(part, pieces); !r) return r;
    for (std::string_view p : pieces) d.bpe.encode(p, ids);
    return {};
  };
  static const added_set none;
  bool recognised = added == added_tokens::recognised;
  auto normalised = [&](std::string_view part) -> result<void> {
    const added_set& set = recognised ? d.normalised : none;
    if (d.normal.empty()) return around(set, part, ids, plain);
    auto n = d.normal.apply(part);
    if (!n) return fail(n.error());
    return around(set, *n, ids, plain);
  };
  if (auto r = around(recognised ? d.raw : none, text, ids, normalised); !r) return fail(r.error());
  return ids;
}

std::string tokenizer::decode(const std::vector<token_id>& ids, bool with_special) const {
  std::string raw;
  for (token_id id : ids) {
    if (with_special || !special(id)) raw += bytes(id);
  }
  return to_utf8(raw);
}

std::string_view tokenizer::bytes(token_id id) const {
  if (id < 0 || static_cast<size_t>(id) >= data_->tokens.size()) return {};
  return data_->tokens[static_cast<size_t>(id)].bytes;
}

bool tokenizer::special(token_id id) const {
  return id >= 0 && static_cast<size_t>(id) < data_->tokens.size() && data_->tokens[static_cast<size_t>(id)].special;
}

std::optional<token_id> tokenizer::added(std::string_view spelling) const {
  auto it = data_->added.find(spelling);
  if (it == data_->added.end()) return std::nullopt;
  return it->second;
}

uint32_t tokenizer::size() const { return static_cast<uint32_t>(data_->tokens.size()); }

}  // namespace troupe::recipe
