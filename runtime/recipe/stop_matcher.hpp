// Stop strings in a text that arrives in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::recipe {

/// Finds the first stop string to be completed and holds back text that may still become one, so nothing of a stop
/// string is ever given out. Of two that end at the same byte the longer one counts. The result does not depend on how
/// the text was cut. Holds at most the longest stop string.
class stop_matcher {
 public:
  stop_matcher() = default;
  /// Empty strings are ignored.
  explicit stop_matcher(std::vector<std::string> stops);

  /// Appends to `out` the text that can no longer be part of a stop string. True once a stop string was completed: the
  /// text before it has been given out, and everything after it is dropped.
  bool push(std::string_view text, std::string& out);
  /// The text ended: gives out what was held back.
  void finish(std::string& out);

  bool stopped() const { return stopped_ != nullptr; }
  /// The stop string that was found, nullptr before.
  const std::string* found() const { return stopped_; }
  size_t waiting() const { return held_.size(); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  const std::string* stopped_ = nullptr;
};

}  // namespace troupe::recipe
