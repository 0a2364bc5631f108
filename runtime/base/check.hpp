// Asserts for our own invariants. They stay on in release builds and print values. Bad input is never a check: it is a
// result<T>.
#pragma once

#include <fmt/format.h>

#include <string>

namespace troupe {

/// Prints file, line, condition and text to stderr, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& text);

}  // namespace troupe

/// TROUPE_CHECK(free + owned == total, "free {} owned {} total {}", free, owned, total)
#define TROUPE_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::troupe::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
