// Blobs as text, for lines between processes.
#pragma once

#include <string>
#include <string_view>

namespace troupe::testing_support {

inline std::string to_hex(std::string_view bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out.push_back(digits[static_cast<unsigned char>(c) >> 4]);
    out.push_back(digits[static_cast<unsigned char>(c) & 15]);
  }
  return out;
}

inline std::string from_hex(std::string_view text) {
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<char>(value(text[i]) << 4 | value(text[i + 1])));
  return out;
}

}  // namespace troupe::testing_support
