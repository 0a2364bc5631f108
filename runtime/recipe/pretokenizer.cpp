#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/recipe/pretokenizer.hpp"

#include <pcre2.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::recipe {

namespace {

using nlohmann::json;

// A match that needs more backtracking than this is refused; the patterns of real tokenizers stay far below it.
constexpr uint32_t match_limit = 20'000'000;
constexpr size_t jit_stack_bytes = 4u << 20;

struct code_free {
  void operator()(pcre2_code* c) const { pcre2_code_free(c); }
};
using code_ptr = std::unique_ptr<pcre2_code, code_free>;

/// What a match needs besides the pattern; one per thread, so that encoding allocates nothing per piece.
struct match_state {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, jit_stack_bytes, nullptr);
  match_state() {
    TROUPE_CHECK(data != nullptr && context != nullptr && stack != nullptr, "PCRE2 could not allocate its match state");
    pcre2_set_match_limit(context, match_limit);
    pcre2_set_depth_limit(context, match_limit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~match_state() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  match_state(const match_state&) = delete;
};

match_state& state_of_thread() {
  thread_local match_state state;
  return state;
}

// Unicode's White_Space as the tokenizers library has it; PCRE2's \s also takes U+180E.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    char next = pattern[++i];
    if (next == 's') {
      out += "\\p{White_Space}";
    } else if (next == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += '\\';
      out += next;
    }
  }
  return out;
}

result<code_ptr> compile(std::string_view pattern, bool literal, const std::string& where) {
  std::string text = literal ? std::string(pattern) : with_unicode_space(pattern);
  int error_number = 0;
  size_t offset = 0;
  uint32_t flags = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
  code_ptr code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), flags, &error_number, &offset, nullptr));
  if (!code) {
    char reason[256];
    pcre2_get_error_message(error_number, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
    return fail(errc::invalid_argument, "{}: the pattern does not compile: {} at offset {}", where, reason, offset);
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT (an odd machine) the interpreter runs
  return code;
}

enum class behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

constexpr const char* gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct part {
  std::string_view text;
  bool match;
};

}  // namespace

struct pretokenizer::step {
  code_ptr code;
  behaviour how = behaviour::isolated;
  bool invert = false;
};

pretokenizer::pretokenizer(std::vector<step> steps) : steps_(std::move(steps)) {}
pretokenizer::pretokenizer(pretokenizer&&) noexcept = default;
pretokenizer& pretokenizer::operator=(pretokenizer&&) noexcept = default;
pretokenizer::~pretokenizer() = default;

namespace {

/// Pieces of `text` by matches of `code`, in order and without gaps.
result<void> find(const pcre2_code* code, std::string_view text, std::vector<part>& parts) {
  match_state& m = state_of_thread();
  size_t done = 0, at = 0;
  while (at < text.size()) {
    int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, m.data,
                         m.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return fail(errc::exhausted,
                  "a pattern of the pre-tokenizer gave up on this text (PCRE2 code {}); split the text", rc);
    }
    const PCRE2_SIZE* o = pcre2_get_ovector_pointer(m.data);
    if (o[1] == o[0]) {  // an empty match: go on one character further
      at = o[1] + 1;
      while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
      continue;
    }
    if (o[0] > done) parts.push_back({text.substr(done, o[0] - done), false});
    parts.push_back({text.substr(o[0], o[1] - o[0]), true});
    done = at = o[1];
  }
  if (done < text.size()) parts.push_back({text.substr(done), false});
  return {};
}

std::string_view join(std::string_view a, std::string_view b) { return {a.data(), a.size() + b.size()}; }

void apply(const std::vector<part>& parts, behaviour how, bool invert, std::vector<std::string_view>& out) {
  size_t first = out.size();
  bool previous = false;
  switch (how) {
    case behaviour::isolated:
      for (const part& p : parts) out.push_back(p.text);
      return;
    case behaviour::removed:
      for (const part& p : parts) {
        if (p.match == invert) out.push_back(p.text);
      }
      return;
    case behaviour::contiguous:
      for (const part& p : parts) {
        if (out.size() > first && p.match == previous)
          out.back() = join(out.back(), p.text);
        else
          out.push_back(p.text);
        previous = p.match;
      }
      return;
    case behaviour::merged_with_previous:
      for (const part& p : parts) {
        bool match = p.match != invert;
        if (match && !previous && out.size() > first)
          out.back() = join(out.back(), p.text);
        else
          out.push_back(p.text);
        previous = match;
      }
      return;
    case behaviour::merged_with_next:
      for (const part& p : parts) {
        bool match = p.match != invert;
        if (previous && !match)
          out.back() = join(out.back(), p.text);
        else
          out.push_back(p.text);
        previous = match;
      }
      return;
  }
}

}  // namespace

result<void> pretokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  std::vector<std::string_view> now{text}, next;
  std::vector<part> parts;
  for (const step& s : steps_) {
    next.clear();
    for (std::string_view piece : now) {
      parts.clear();
      TROUPE_TRY([[maybe_unused]] auto ok, (find(s.code.get(), piece, parts).map([] { return true; })));
      apply(parts, s.how, s.invert, next);
    }
    now.swap(next);
  }
  pieces.insert(pieces.end(), now.begin(), now.end());
  return {};
}

namespace {

struct builder {
  bool byte_level = false;

  template <class Steps>
  result<void> add(const json& section, const std::string& where, Steps& steps) {
    if (!section.is_object() || !section.contains("type") || !section["type"].is_string()) {
      return fail(errc::invalid_argument, "{}: an object with a string `type` is expected", where);
    }
    std::string type = section["type"];
    if (byte_level) return fail(errc::unsupported, "{}: {} after ByteLevel is not supported", where, type);
    if (type == "Sequence") {
      auto list = section.find("pretokenizers");
      if (list == section.end() || !list->is_array())
        return fail(errc::invalid_argument, "{}.pretokenizers: a list is expected", where);
      for (size_t i = 0; i < list->size(); ++i) {
        if (auto r = add((*list)[i], fmt::format("{}.pretokenizers[{}]", where, i), steps); !r) return r;
      }
      return {};
    }
    if (type == "ByteLevel") {
      byte_level = true;
      if (flag(section, "add_prefix_space", true))
        return fail(errc::unsupported, "{}: ByteLevel with add_prefix_space is not supported", where);
      if (!flag(section, "use_regex", true)) return {};
      return push(gpt2_pattern, false, behaviour::isolated, false, where, steps);
    }
    if (type == "Digits") {
      return push(flag(section, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", false, behaviour::isolated,
                  false, where, steps);
    }
    if (type == "Split") return add_split(section, where, steps);
    return fail(errc::unsupported, "{}: pre-tokenizer {} is not supported (Split, Digits, ByteLevel and Sequence are)",
                where, type);
  }

  static bool flag(const json& section, const char* key, bool otherwise) {
    auto it = section.find(key);
    return it != section.end() && it->is_boolean() ? it->template get<bool>() : otherwise;
  }

  template <class Steps>
  static result<void> push(std::string_view pattern, bool literal, behaviour how, bool invert, const std::string& where,
                           Steps& steps) {
    auto code = compile(pattern, literal, where);
    if (!code) return fail(code.error());
    steps.emplace_back();
    steps.back().code = std::move(*code);
    steps.back().how = how;
    steps.back().invert = invert;
    return {};
  }

  template <class Steps>
  static result<void> add_split(const json& section, const std::string& where, Steps& steps) {
    auto pattern = section.find("pattern");
    if (pattern == section.end() || !pattern->is_object() || pattern->size() != 1 || !pattern->begin()->is_string() ||
        (pattern->begin().key() != "Regex" && pattern->begin().key() != "String")) {
      return fail(errc::invalid_argument, "{}.pattern: an object with `Regex` or `String` is expected", where);
    }
    static const std::pair<const char*, behaviour> names[] = {{"Removed", behaviour::removed},
                                                              {"Isolated", behaviour::isolated},
                                                              {"MergedWithPrevious", behaviour::merged_with_previous},
                                                              {"MergedWithNext", behaviour::merged_with_next},
                                                              {"Contiguous", behaviour::contiguous}};
    auto it = section.find("behavior");
    std::string name = it != section.end() && it->is_string() ? it->template get<std::string>() : "";
    for (const auto& [n, how] : names) {
      if (name != n) continue;
      return push(pattern->begin()->template get_ref<const std::string&>(), pattern->begin().key() == "String", how,
                  flag(section, "invert", false), where + ".pattern", steps);
    }
    return fail(errc::unsupported,
                "{}.behavior: \"{}\" is not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                where, name);
  }
};

}  // namespace

result<pretokenizer> pretokenizer::make(const json& section, const std::string& where) {
  std::vector<step> steps;
  builder b;
  if (auto r = b.add(section, where, steps); !r) return fail(r.error());
  if (!b.byte_level) return fail(errc::unsupported, "{}: it has no ByteLevel; only byte-level BPE is supported", where);
  return pretokenizer(std::move(steps));
}

}  // namespace troupe::recipe
