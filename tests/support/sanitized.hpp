// Tests run 5 to 20 times slower under sanitizers, which look for other mistakes than a large number of cases does.
#pragma once

namespace troupe::tests {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

/// How many cases to run: `all`, or `few` under a sanitizer.
constexpr int cases(int all, int few) { return sanitized ? few : all; }

}  // namespace troupe::tests
