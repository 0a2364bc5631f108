// The house rules that can be read off the source text. Each rule is a pure function of (path, text), so that the tests
// can feed it made-up snippets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::style {

/// A broken rule: where, and what to do about it.
struct finding {
  std::string path;  // from the repo root
  int line = 0;      // from 1
  std::string text;
  bool operator==(const finding&) const = default;
};

/// Every rule that applies to `path` (from the repo root, forward slashes), on the file's `text`.
std::vector<finding> check(std::string_view path, std::string_view text);

/// `text` with comments and the contents of literals blanked out, line by line. Keeps line and column numbers.
std::string code_only(std::string_view text);

/// The room a path belongs to ("runtime/base", "kernels", "tests", ...), or "" for none.
std::string room_of(std::string_view path);

/// True if a file of room `from` may include one of room `to`.
bool may_include(std::string_view from, std::string_view to);

}  // namespace troupe::style
