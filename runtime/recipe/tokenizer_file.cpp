// Reads tokenizer.json. Every refusal names the file and the entry.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/recipe/tokenizer_data.hpp"

namespace troupe::recipe {

namespace {

using nlohmann::json;

// Larger ids would make the table by id absurd; the largest known vocabularies have 260 k entries.
constexpr int64_t max_id = 4'000'000;
constexpr std::streamoff max_file = 512 << 20;

/// The byte-level alphabet (GPT-2): printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards.
struct byte_alphabet {
  uint32_t character[256];
  std::unordered_map<uint32_t, uint8_t> byte;
  byte_alphabet() {
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = itself ? b : next++;
      byte.emplace(character[b], static_cast<uint8_t>(b));
    }
  }
};

const byte_alphabet& alphabet() {
  static const byte_alphabet a;
  return a;
}

}  // namespace

std::string byte_spelling(uint8_t byte) {
  uint32_t c = alphabet().character[byte];
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

std::optional<std::string> from_byte_alphabet(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    auto b = static_cast<uint8_t>(s[i]);
    uint32_t c = b;
    if (b >= 0x80) {
      if (b < 0xC2 || b > 0xDF || i + 1 == s.size()) return std::nullopt;  // the alphabet ends at U+0143
      c = (b & 0x1Fu) << 6 | (static_cast<uint8_t>(s[++i]) & 0x3Fu);
    }
    auto it = alphabet().byte.find(c);
    if (it == alphabet().byte.end()) return std::nullopt;
    out += static_cast<char>(it->second);
  }
  return out;
}

namespace {

class reader {
 public:
  reader(const json& root, std::string name, tokenizer::data& out) : root_(root), name_(std::move(name)), out_(out) {}

  result<void> run();

 private:
  template <class... Args>
  tl::unexpected<error> bad(fmt::format_string<Args...> f, Args&&... args) const {
    return fail(errc::invalid_argument, "{}: {}", name_, fmt::format(f, std::forward<Args>(args)...));
  }
  static const json& at(const json& object, const char* key) {
    static const json null;
    auto it = object.find(key);
    return it == object.end() ? null : *it;
  }
  static bool is_true(const json& object, const char* key) { return at(object, key) == json(true); }

  result<void> options(const json& model);
  result<void> vocabulary(const json& vocab);
  result<void> merges(const json& list);
  result<void> added(const json& list);
  result<void> decoder();
  tokenizer::data::token* place(int64_t id);

  const json& root_;
  std::string name_;
  tokenizer::data& out_;
  std::unordered_map<std::string_view, token_id> ids_;  // spellings of model.vocab
};

tokenizer::data::token* reader::place(int64_t id) {
  if (id < 0 || id > max_id) return nullptr;
  if (static_cast<size_t>(id) >= out_.tokens.size()) out_.tokens.resize(static_cast<size_t>(id) + 1);
  return &out_.tokens[static_cast<size_t>(id)];
}

result<void> reader::options(const json& model) {
  const json& type = at(model, "type");
  if (!type.is_null() && type != json("BPE")) return bad("model.type: {} is not supported (BPE is)", type.dump());
  if (is_true(model, "byte_fallback"))
    return bad("model.byte_fallback: true is not supported; this is a byte-level tokenizer without fallback");
  if (!at(model, "dropout").is_null()) return bad("model.dropout: it would make the encoding random; set it to null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& v = at(model, key);
    if (!v.is_null() && v != json("")) return bad("model.{}: {} is not supported", key, v.dump());
  }
  out_.bpe.ignore_merges = is_true(model, "ignore_merges");
  return {};
}

result<void> reader::vocabulary(const json& vocab) {
  if (!vocab.is_object()) return bad("model.vocab: an object of token and id is expected");
  ids_.reserve(vocab.size());
  for (auto it = vocab.begin(); it != vocab.end(); ++it) {
    const std::string& spelling = it.key();
    if (!it->is_number_integer()) return bad("model.vocab[{}]: the id is not an integer", json(spelling).dump());
    auto id = it->get<int64_t>();
    auto* t = place(id);
    if (t == nullptr) return bad("model.vocab[{}]: id {} is out of range (0 to {})", json(spelling).dump(), id, max_id);
    if (t->known) return bad("model.vocab[{}]: id {} is given to two tokens", json(spelling).dump(), id);
    auto raw = from_byte_alphabet(spelling);
    t->known = true;
    t->bytes = raw ? *raw : spelling;
    ids_.emplace(spelling, static_cast<token_id>(id));
    if (raw) out_.bpe.whole.emplace(std::move(*raw), static_cast<token_id>(id));
  }
  for (int b = 0; b < 256; ++b) {
    std::string s = byte_spelling(static_cast<uint8_t>(b));
    auto it = ids_.find(s);
    if (it == ids_.end())
      return bad("model.vocab: byte 0x{:02X} ({}) has no token; byte-level BPE needs all 256", b, json(s).dump());
    out_.bpe.byte_token[b] = it->second;
  }
  return {};
}

result<void> reader::merges(const json& list) {
  if (!list.is_array()) return bad("model.merges: a list is expected");
  out_.bpe.merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const json& m = list[i];
    std::string left, right;
    if (m.is_string()) {  // "left right"
      const auto& s = m.get_ref<const std::string&>();
      size_t space = s.find(' ');
      if (space == std::string::npos || s.find(' ', space + 1) != std::string::npos) {
        return bad("model.merges[{}]: {} is not two tokens with one space between", i, m.dump());
      }
      left = s.substr(0, space);
      right = s.substr(space + 1);
    } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {  // ["left", "right"]
      left = m[0];
      right = m[1];
    } else {
      return bad("model.merges[{}]: {} is neither \"left right\" nor a list of two strings", i, m.dump());
    }
    token_id ids[3];
    std::string joined = left + right;
    const std::string* parts[3] = {&left, &right, &joined};
    for (int k = 0; k < 3; ++k) {
      auto it = ids_.find(*parts[k]);
      if (it == ids_.end()) {
        return bad("model.merges[{}]: {} {} is not in model.vocab", i, k < 2 ? "token" : "the merged token",
                   json(*parts[k]).dump());
      }
      ids[k] = it->second;
    }
    out_.bpe.merges.insert_or_assign(bpe_model::pair_key(ids[0], ids[1]),
                                     bpe_model::merge{static_cast<uint32_t>(i), ids[2]});
  }
  return {};
}

result<void> reader::added(const json& list) {
  if (list.is_null()) return {};
  if (!list.is_array()) return bad("added_tokens: a list is expected");
  for (size_t i = 0; i < list.size(); ++i) {
    const json& a = list[i];
    if (!a.is_object() || !at(a, "content").is_string() || !at(a, "id").is_number_integer() ||
        at(a, "content") == json("")) {
      return bad("added_tokens[{}]: an object with `id` and a non-empty `content` is expected", i);
    }
    const auto& content = a["content"].get_ref<const std::string&>();
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (is_true(a, key)) return bad("added_tokens[{}] ({}): {} is not supported", i, content, key);
    }
    auto id = a["id"].get<int64_t>();
    auto* t = place(id);
    if (t == nullptr) return bad("added_tokens[{}] ({}): id {} is out of range (0 to {})", i, content, id, max_id);
    auto in_vocab = ids_.find(content);
    bool same = in_vocab != ids_.end() && in_vocab->second == id;
    if (t->known && !same) return bad("added_tokens[{}] ({}): id {} is given to two tokens", i, content, id);
    if (!out_.added.emplace(content, static_cast<token_id>(id)).second)
      return bad("added_tokens[{}] ({}): the token is listed twice", i, content);
    t->known = true;
    t->bytes = content;
    t->special = is_true(a, "special");
    bool normalised = is_true(a, "normalized");
    std::string match = content;
    if (normalised && !out_.normal.empty()) {
      auto n = out_.normal.apply(content);
      if (!n) return bad("added_tokens[{}] ({}): {}", i, content, n.error().message);
      match = *n;
    }
    if (!match.empty()) (normalised ? out_.normalised : out_.raw).add(match, static_cast<token_id>(id));
  }
  return {};
}

result<void> reader::decoder() {
  const json& d = at(root_, "decoder");
  if (d.is_null()) return {};
  const json* one = &d;
  if (d.is_object() && at(d, "type") == json("Sequence") && at(d, "decoders").is_array() && d["decoders"].size() == 1)
    one = &d["decoders"][0];
  if (!one->is_object() || at(*one, "type") != json("ByteLevel"))
    return bad("decoder: {} is not supported (ByteLevel is)", d.dump().substr(0, 80));
  return {};
}

result<void> reader::run() {
  if (!root_.is_object()) return bad("an object is expected");
  const json& model = at(root_, "model");
  if (!model.is_object()) return bad("model: the section is missing");
  if (auto r = options(model); !r) return r;
  auto normal = normalizer::make(at(root_, "normalizer"), name_ + ": normalizer");
  if (!normal) return fail(normal.error());
  out_.normal = std::move(*normal);
  if (at(root_, "pre_tokenizer").is_null())
    return bad("pre_tokenizer: the section is missing; byte-level BPE needs one with ByteLevel");
  auto pre = pretokenizer::make(root_["pre_tokenizer"], name_ + ": pre_tokenizer");
  if (!pre) return fail(pre.error());
  out_.pre.emplace(std::move(*pre));
  if (auto r = vocabulary(at(model, "vocab")); !r) return r;
  if (auto r = merges(at(model, "merges")); !r) return r;
  if (auto r = added(at(root_, "added_tokens")); !r) return r;
  return decoder();
}

}  // namespace

result<tokenizer> tokenizer::parse(std::string_view text, std::string_view name) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& e) {
    return fail(errc::invalid_argument, "{}: not valid JSON: {}", name, e.what());
  }
  auto d = std::make_unique<data>();
  if (auto r = reader(root, std::string(name), *d).run(); !r) return fail(r.error());
  return tokenizer(std::move(d));
}

result<tokenizer> tokenizer::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return fail(errc::io, "{}: cannot be opened; a model folder needs its tokenizer.json", path);
  if (in.tellg() > max_file)
    return fail(errc::invalid_argument, "{}: larger than {} MiB, that is no tokenizer", path, max_file >> 20);
  in.seekg(0);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return fail(errc::io, "{}: reading failed", path);
  return parse(text.str(), path);
}

}  // namespace troupe::recipe
