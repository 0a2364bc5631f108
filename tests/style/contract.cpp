#include "tests/style/contract.hpp"

#include <regex>

namespace troupe::style {
namespace {

bool blank(const std::string& s) { return s.find_first_not_of(" \t") == std::string::npos; }

bool comment_line(const std::string& s) {
  size_t i = s.find_first_not_of(" \t");
  return i != std::string::npos && s.compare(i, 2, "//") == 0;
}

enum class kind { other, type, function };

// Kind of a whole declaration (its text up to the first `{` or `;` outside parentheses).
kind kind_of(const std::string& text, char end) {
  static const std::regex type(R"(^\s*(template\s*<.*>\s*)?(class|struct|union|enum)\b)");
  static const std::regex skip(
      R"(^\s*(using|namespace|static_assert|extern|friend|typedef|template\s+(class|struct)|template\s*<\s*>|[A-Z][A-Z0-9_]*\s*\())");
  static const std::regex function(R"([\w>&*\]]\s+[&*]*(\w+::)*(operator\s*\S+|\w+)\s*\()");
  static const std::regex boilerplate(R"(\binspect\s*\(|= *default|\bdeduction)");
  if (std::regex_search(text, skip)) return kind::other;
  if (std::regex_search(text, type)) return end == ';' ? kind::other : kind::type;
  if (std::regex_search(text, boilerplate)) return kind::other;
  size_t paren = text.find('(');
  size_t assign = text.find('=');
  if (paren != std::string::npos && (assign == std::string::npos || paren < assign || text.find("operator") < assign) &&
      std::regex_search(text, function)) {
    return kind::function;
  }
  return kind::other;
}

bool documented_here(const std::vector<std::string>& raw, size_t first) {
  return raw[first].find("//") != std::string::npos || (first > 0 && comment_line(raw[first - 1]));
}

}  // namespace

std::vector<std::pair<size_t, std::string>> undocumented(const std::vector<std::string>& raw,
                                                         const std::vector<std::string>& code) {
  std::vector<std::pair<size_t, std::string>> out;
  std::vector<bool> open;  // true: a namespace whose members are public
  std::string text;        // of the declaration being read
  size_t first = 0;
  int parens = 0;
  bool preprocessor = false;
  bool covered = false;  // the paragraph began with a comment
  auto public_scope = [&] {
    for (bool o : open)
      if (!o) return false;
    return true;
  };
  static const std::regex space(R"(^\s*(inline\s+)?namespace\b(\s+([\w:]+))?)");
  auto finish = [&](char end) {
    kind k = kind_of(text, end);
    bool ok = k == kind::other || documented_here(raw, first) ||
              (covered && (k == kind::function || text.starts_with("template")));
    if (!ok) {
      std::string shown = raw[first].substr(raw[first].find_first_not_of(" \t"));
      out.emplace_back(first, "`" + shown.substr(0, 60) + "`");
    }
    if (k != kind::other) covered = covered || documented_here(raw, first);
    text.clear();
    parens = 0;
  };
  for (size_t i = 0; i < code.size(); ++i) {
    const std::string& line = code[i];
    if (blank(raw[i])) covered = false;
    size_t hash = line.find_first_not_of(" \t");
    bool directive = preprocessor || (hash != std::string::npos && line[hash] == '#');
    preprocessor = directive && !line.empty() && line.back() == '\\';
    if (directive) continue;
    for (char ch : line) {
      if (ch == '{' && parens == 0) {
        if (public_scope()) {
          std::smatch m;
          if (std::regex_search(text, m, space)) {
            open.push_back(m[3].matched && m[3].str().find("detail") == std::string::npos);
            text.clear();
            continue;
          }
          finish('{');
        }
        open.push_back(false);
      } else if (ch == '}' && parens == 0) {
        if (!open.empty()) open.pop_back();
        text.clear();
      } else if (public_scope()) {
        if (ch == ';' && parens == 0) {
          if (!blank(text)) finish(';');
          text.clear();
          continue;
        }
        if (ch == '(') ++parens;
        if (ch == ')' && parens > 0) --parens;
        if (text.empty() && (ch == ' ' || ch == '\t')) continue;
        if (text.empty()) first = i;
        text += ch;
      }
    }
    if (!text.empty()) text += ' ';
  }
  return out;
}

}  // namespace troupe::style
