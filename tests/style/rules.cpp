#include "tests/style/rules.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tests/style/contract.hpp"

namespace troupe::style {
namespace {

constexpr int max_lines = 500;

// Which rooms a room may include besides itself. A room that is missing here (tests, examples) may include every room.
const std::map<std::string, std::set<std::string>, std::less<>>& allowed() {
  static const std::set<std::string> base{"runtime/base"};
  static const std::set<std::string> kernels{"runtime/base", "runtime/transport", "policies"};
  static const std::set<std::string> kv{"runtime/base", "runtime/transport", "policies", "kernels"};
  static const std::set<std::string> actors{"runtime/base", "runtime/transport", "policies", "kernels", "kv"};
  static const auto plus = [](std::set<std::string> s, std::initializer_list<const char*> more) {
    for (const char* m : more) s.insert(m);
    return s;
  };
  static const std::set<std::string> upper = plus(actors, {"actors"});
  static const std::map<std::string, std::set<std::string>, std::less<>> table{
      {"runtime/base", {}},
      {"runtime/transport", base},
      {"policies", base},
      {"kernels", kernels},
      {"kv", kv},
      {"runtime/recipe", plus(base, {"kernels", "policies"})},
      {"actors", actors},
      {"runtime/config", upper},
      {"runtime/observe", upper},
      {"runtime/gateway", plus(upper, {"runtime/config", "runtime/observe", "runtime/recipe"})},
      // The roles of a process (runtime/node/roles.hpp, store_options.hpp) are started in a simulation too.
      {"runtime/sim", plus(upper, {"runtime/config", "runtime/observe", "runtime/recipe", "runtime/node"})},
      {"runtime/node", plus(upper, {"runtime/config", "runtime/observe", "runtime/recipe", "runtime/gateway"})},
      {"runtime/cli", plus(upper, {"runtime/config", "runtime/observe", "runtime/recipe", "runtime/gateway",
                                   "runtime/node", "runtime/sim"})},
  };
  return table;
}

bool starts_with_any(std::string_view s, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto p) { return s.starts_with(p); });
}

bool ends_with_any(std::string_view s, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](auto p) { return s.ends_with(p); });
}

bool is_cpp(std::string_view path) { return ends_with_any(path, {".hpp", ".cpp", ".cu", ".cuh", ".h", ".cc"}); }

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

struct context {
  std::string path, room;
  std::vector<std::string> raw, code;
  std::vector<finding>& out;
  void report(size_t line, std::string text) const {
    out.push_back({path, static_cast<int>(line) + 1, std::move(text)});
  }
};

void check_includes(const context& c) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  auto rule = allowed().find(c.room);
  if (rule == allowed().end()) return;
  for (size_t i = 0; i < c.raw.size(); ++i) {
    std::smatch m;
    if (!std::regex_search(c.raw[i], m, include)) continue;
    std::string name = m[2];
    bool caf_free = !starts_with_any(c.room, {"actors", "runtime/node", "runtime/cli", "runtime/sim"});
    if (caf_free && name.starts_with("caf/")) {
      c.report(
          i,
          c.room + " has no CAF: keep actors behind an interface of this room, implemented in actors or runtime/node");
    }
    std::string to = room_of(name);
    if (m[1] == "\"" && to.empty()) {
      c.report(i, "include \"" + name + "\" is not a path from the repo root; write the whole path");
    } else if (!to.empty() && to != c.room && !rule->second.contains(to)) {
      c.report(i, c.room + " may not include " + to +
                      " (dependencies point downward only): move the declaration down, or hand the "
                      "thing in through an interface of " +
                      c.room);
    }
  }
}

void check_time(const context& c) {
  if (c.room == "runtime/base") return;
  static const std::regex clock(
      R"(\b(steady_clock|system_clock|high_resolution_clock)\s*::\s*now\b|\b(gettimeofday|clock_gettime|timespec_get)\s*\(|\b(std::)?time\s*\(\s*(nullptr|NULL|0)\s*\)|random_device)");
  static const std::regex os_sleep(
      R"(this_thread\s*::\s*sleep|\b(usleep|nanosleep|clock_nanosleep)\s*\(|(^|[;{}=(,!&|])\s*sleep\s*\(|[^\w]::sleep\s*\()");
  static const std::regex any_sleep(R"(\bsleep_(for|until)\s*\()");
  bool may_back_off = starts_with_any(c.path, {"runtime/node/", "runtime/cli/", "runtime/transport/"});
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (std::regex_search(c.code[i], clock)) {
      c.report(i, "reads the machine's clock or entropy: take a clock_source or an rng as a parameter (runtime/base)");
    }
    if (std::regex_search(c.code[i], os_sleep) || (!may_back_off && std::regex_search(c.code[i], any_sleep))) {
      c.report(i, c.room == "tests" ? "a test may not sleep: wait for the condition itself, with a deadline"
                                    : "sleeps: use the actor clock, or a condition variable with a deadline");
    }
  }
}

void check_script_sleep(const context& c) {
  static const std::regex sleeps(R"((^|[;&|]|\bdo\b|\bthen\b)\s*sleep\s+[0-9.$"]|\btime\.sleep\s*\()");
  for (size_t i = 0; i < c.raw.size(); ++i) {
    if (std::regex_search(c.raw[i], sleeps))
      c.report(i, "a test may not sleep: poll the condition itself, with a deadline");
  }
}

void check_spawn(const context& c) {
  if (c.path == "actors/protocol/caf.hpp") return;
  static const std::regex bare(
      R"((->|\.)\s*(template\s+)?spawn\s*(<[^;()]*>)?\s*\(|\bspawn_(functor|in_group|in_groups|impl)\s*\(|\bcaf::spawn\b)");
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (std::regex_search(c.code[i], bare)) {
      c.report(i,
               "bare spawn: use the helper in actors/protocol/caf.hpp, so that a child belongs to its parent's node");
    }
  }
}

// Written in pieces, so that this file does not break its own rules.
const std::vector<std::string>& private_roots() {
  static const std::vector<std::string> roots{std::string("/wo") + "rk/", std::string("/ho") + "me/",
                                              std::string("/ro") + "ot/", std::string("/Us") + "ers/"};
  return roots;
}

void check_text(const context& c) {
  static const std::regex open_end(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X)\\b");
  static const std::regex url(R"(https?://\S*)");
  for (size_t i = 0; i < c.raw.size(); ++i) {
    const std::string& line = c.raw[i];
    if (std::regex_search(line, open_end))
      c.report(i, "open end: do it, or state the limit in docs and leave the marker out");
    std::string rest = std::regex_replace(line, url, "");
    for (const std::string& root : private_roots()) {
      if (rest.find(root) != std::string::npos)
        c.report(i, "path of one machine (" + root + "...): use a path from the repo root or a parameter");
    }
  }
}

}  // namespace

std::string room_of(std::string_view path) {
  static const std::set<std::string, std::less<>> single{"actors", "kernels", "kv", "policies", "tests", "examples"};
  size_t slash = path.find('/');
  if (slash == std::string_view::npos) return "";
  std::string top(path.substr(0, slash));
  if (single.contains(top)) return top;
  if (top != "runtime") return "";
  size_t second = path.find('/', slash + 1);
  return second == std::string_view::npos ? "" : std::string(path.substr(0, second));
}

bool may_include(std::string_view from, std::string_view to) {
  auto rule = allowed().find(from);
  return from == to || rule == allowed().end() || rule->second.contains(std::string(to));
}

std::string code_only(std::string_view text) {
  std::string out(text);
  enum { code, line_comment, block_comment, string, character, raw } state = code;
  std::string raw_end;
  auto blank = [&](size_t i) {
    if (out[i] != '\n') out[i] = ' ';
  };
  for (size_t i = 0; i < text.size(); ++i) {
    char ch = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    switch (state) {
      case code:
        if (ch == '/' && next == '/')
          state = line_comment, blank(i);
        else if (ch == '/' && next == '*')
          state = block_comment, blank(i);
        else if (ch == '"' && i > 0 && text[i - 1] == 'R') {
          size_t open = text.find('(', i);
          if (open == std::string_view::npos) break;
          raw_end = ")" + std::string(text.substr(i + 1, open - i - 1)) + "\"";
          state = raw;
        } else if (ch == '"')
          state = string;
        else if (ch == '\'' && !(i > 0 && isalnum(static_cast<unsigned char>(text[i - 1]))))
          state = character;
        break;
      case line_comment:
        if (ch == '\n')
          state = code;
        else
          blank(i);
        break;
      case block_comment:
        blank(i);
        if (ch == '*' && next == '/') blank(i + 1), ++i, state = code;
        break;
      case string:
      case character:
        if (ch == '\\')
          blank(i), blank(std::min(i + 1, text.size() - 1)), ++i;
        else if (ch == (state == string ? '"' : '\'') || ch == '\n')
          state = code;
        else
          blank(i);
        break;
      case raw:
        if (text.substr(i).starts_with(raw_end))
          i += raw_end.size() - 1, state = code;
        else
          blank(i);
        break;
    }
  }
  return out;
}

std::vector<finding> check(std::string_view path, std::string_view text) {
  std::vector<finding> out;
  bool cpp = is_cpp(path);
  bool script = ends_with_any(path, {".sh", ".py"});
  context c{std::string(path), room_of(path), split_lines(text), {}, out};
  check_text(c);
  if ((cpp || script || ends_with_any(path, {".cmake", "CMakeLists.txt"})) && c.raw.size() > max_lines) {
    c.report(c.raw.size() - 1, std::to_string(c.raw.size()) + " lines, limit " + std::to_string(max_lines) +
                                   ": a file holds one thing, split it");
  }
  if (script && c.room == "tests") check_script_sleep(c);
  if (!cpp || c.room.empty()) return out;
  c.code = split_lines(code_only(text));
  check_includes(c);
  check_time(c);
  check_spawn(c);
  // Vector wrappers are the exception: dozens of one-line functions whose names are their contract.
  bool wrappers = path.find("/simd/") != std::string_view::npos;
  if (path.ends_with(".hpp") && c.room != "tests" && c.room != "examples" && !wrappers) {
    for (auto& [line, what] : undocumented(c.raw, c.code)) {
      c.report(line,
               what + " has no contract comment right above it: say what it means, units, errors and thread rules");
    }
  }
  return out;
}

}  // namespace troupe::style
