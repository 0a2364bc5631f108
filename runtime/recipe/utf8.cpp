#include "runtime/recipe/utf8.hpp"

namespace troupe::recipe {

namespace {
constexpr std::string_view replacement = "\xEF\xBF\xBD";
}

void utf8_stream::byte(uint8_t b, std::string& out) {
  if (have_ != 0) {
    if (b >= low_ && b <= high_) {
      open_[have_++] = static_cast<char>(b);
      low_ = 0x80;
      high_ = 0xBF;
      if (have_ == need_) {
        out.append(open_, have_);
        have_ = 0;
      }
      return;
    }
    out += replacement;  // the part so far was the start of a character, this byte is not its next
    have_ = 0;
  }
  low_ = 0x80;
  high_ = 0xBF;
  if (b < 0x80) {
    out += static_cast<char>(b);
    return;
  }
  if (b >= 0xC2 && b <= 0xDF) {
    need_ = 2;
  } else if (b >= 0xE0 && b <= 0xEF) {
    need_ = 3;
    if (b == 0xE0) low_ = 0xA0;   // no overlong forms
    if (b == 0xED) high_ = 0x9F;  // no surrogates
  } else if (b >= 0xF0 && b <= 0xF4) {
    need_ = 4;
    if (b == 0xF0) low_ = 0x90;
    if (b == 0xF4) high_ = 0x8F;  // up to U+10FFFF
  } else {
    out += replacement;
    return;
  }
  open_[0] = static_cast<char>(b);
  have_ = 1;
}

void utf8_stream::push(std::string_view bytes, std::string& out) {
  for (char c : bytes) byte(static_cast<uint8_t>(c), out);
}

void utf8_stream::finish(std::string& out) {
  if (have_ != 0) out += replacement;
  have_ = 0;
}

std::string to_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  utf8_stream s;
  s.push(bytes, out);
  s.finish(out);
  return out;
}

bool is_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  utf8_stream s;
  s.push(text, out);
  return s.waiting() == 0 && out == text;
}

}  // namespace troupe::recipe
