// Compressed token ids from a tokenizer's vocabulary.
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "kernels/model/engram_hash.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;

// The reversible byte alphabet of byte-level BPE: printable Latin-1 bytes stand for themselves, the other bytes, in
// order, for the code points from 256 on.
std::unordered_map<char32_t, uint8_t> byte_alphabet() {
  std::unordered_map<char32_t, uint8_t> map;
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    map[plain ? static_cast<char32_t>(b) : next++] = static_cast<uint8_t>(b);
  }
  return map;
}

// The bytes that a vocabulary entry stands for; a character outside the alphabet stands for its own UTF-8.
std::string token_bytes(const std::string& token, const std::unordered_map<char32_t, uint8_t>& alphabet) {
  const icu::UnicodeString text = icu::UnicodeString::fromUTF8(token);
  std::string out;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const char32_t c = static_cast<char32_t>(text.char32At(i));
    if (auto it = alphabet.find(c); it != alphabet.end()) {
      out.push_back(static_cast<char>(it->second));
    } else {
      icu::UnicodeString(static_cast<UChar32>(c)).toUTF8String(out);
    }
  }
  return out;
}

bool is_blank(UChar32 c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string normalise(const icu::UnicodeString& decoded, const icu::Normalizer2& nfkc, const icu::Normalizer2& nfd,
                      UErrorCode& status) {
  const icu::UnicodeString text = nfd.normalize(nfkc.normalize(decoded, status), status);
  icu::UnicodeString out;
  bool blank = false;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 c = text.char32At(i);
    if (u_charType(c) == U_NON_SPACING_MARK) continue;
    if (is_blank(c)) {
      if (!blank) out.append(static_cast<UChar32>(' '));
      blank = true;
      continue;
    }
    blank = false;
    out.append(u_tolower(c));
  }
  if (out == icu::UnicodeString(static_cast<UChar32>(' '))) out = icu::UnicodeString(static_cast<UChar32>(0xe000));
  int32_t begin = 0, end = out.length();
  while (begin < end && u_isUWhiteSpace(out.char32At(begin))) begin = out.moveIndex32(begin, 1);
  while (end > begin && u_isUWhiteSpace(out.char32At(out.moveIndex32(end, -1)))) end = out.moveIndex32(end, -1);
  std::string utf8;
  out.tempSubStringBetween(begin, end).toUTF8String(utf8);
  return utf8;
}

}  // namespace

result<std::vector<int32_t>> compress_vocabulary(const std::string& tokenizer_json, uint32_t vocabulary,
                                                 const std::string& source) {
  json root = json::parse(tokenizer_json, nullptr, false);
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object() || !root["model"].contains("vocab") ||
      !root["model"]["vocab"].is_object())
    return fail(errc::corrupt, "{}: no model.vocab object", source);
  std::vector<std::string> raw(vocabulary), text(vocabulary);
  const auto alphabet = byte_alphabet();
  for (auto& [token, id] : root["model"]["vocab"].items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocabulary)
      return fail(errc::corrupt, "{}: model.vocab: id {} is outside the vocabulary of {}", source, id.dump(),
                  vocabulary);
    raw[id.get<uint64_t>()] = token;
    text[id.get<uint64_t>()] = token_bytes(token, alphabet);
  }
  if (root.contains("added_tokens") && root["added_tokens"].is_array()) {
    for (const json& t : root["added_tokens"]) {
      if (!t.is_object() || !t.contains("id") || !t["id"].is_number_unsigned() || !t.contains("content") ||
          !t["content"].is_string())
        return fail(errc::corrupt, "{}: added_tokens: an entry lacks id or content", source);
      const uint64_t id = t["id"];
      if (id >= vocabulary) continue;
      raw[id] = text[id] = t["content"].get<std::string>();
    }
  }
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(status);
  if (U_FAILURE(status)) return fail(errc::internal, "ICU normalisation data: {}", u_errorName(status));
  std::vector<int32_t> map(vocabulary);
  std::unordered_map<std::string, int32_t> seen;
  for (uint32_t id = 0; id < vocabulary; ++id) {
    const icu::UnicodeString decoded = icu::UnicodeString::fromUTF8(text[id]);
    // A leading NUL keeps raw keys apart from texts.
    std::string key = decoded.indexOf(static_cast<UChar32>(0xfffd)) >= 0 ? std::string(1, '\0') + raw[id]
                                                                         : normalise(decoded, *nfkc, *nfd, status);
    if (U_FAILURE(status)) return fail(errc::corrupt, "{}: token {}: {}", source, id, u_errorName(status));
    map[id] = seen.emplace(std::move(key), static_cast<int32_t>(seen.size())).first->second;
  }
  return map;
}

}  // namespace troupe::kernels
