// Finds public declarations without a contract comment.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace troupe::style {

/// Declarations at namespace scope of a header (class, struct, enum, function) that have no comment right above or on
/// their first line: (line from 0, what). `raw` is the file, `code` the same lines without comments. Left out: forward
/// declarations, aliases, macros, `inspect` functions, namespaces `detail` and unnamed. One comment may cover a
/// paragraph of functions or of template specialisations (lines without a blank line between).
std::vector<std::pair<size_t, std::string>> undocumented(const std::vector<std::string>& raw,
                                                         const std::vector<std::string>& code);

}  // namespace troupe::style
