// UTF-8 that arrives in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::recipe {

/// Turns a stream of bytes into valid UTF-8. Never emits half a character: bytes of an open one wait. Each maximal
/// ill-formed part becomes one U+FFFD (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"), so the
/// output does not depend on how the bytes were cut.
class utf8_stream {
 public:
  /// Appends to `out` every character that `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  /// Ends the stream: an open character becomes U+FFFD.
  void finish(std::string& out);
  /// Bytes that wait (0 to 3).
  size_t waiting() const { return have_; }

 private:
  void byte(uint8_t b, std::string& out);

  char open_[4] = {};
  uint8_t have_ = 0, need_ = 0;       // bytes of the open character: seen, total
  uint8_t low_ = 0x80, high_ = 0xBF;  // bounds of the next byte
};

/// `bytes` as valid UTF-8, by the same rule.
std::string to_utf8(std::string_view bytes);
/// True when `text` is well formed.
bool is_utf8(std::string_view text);

}  // namespace troupe::recipe
