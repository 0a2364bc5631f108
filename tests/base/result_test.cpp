#include "runtime/base/result.hpp"

#include <gtest/gtest.h>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

namespace troupe {
namespace {

result<int> half(int x) {
  if (x % 2 != 0) return fail(errc::invalid_argument, "{} is odd", x);
  return x / 2;
}

result<int> quarter(int x) {
  TROUPE_TRY(const int h, half(x));
  return half(h);
}

TEST(result, try_passes_values_and_errors_on) {
  EXPECT_EQ(quarter(8).value(), 2);
  ASSERT_FALSE(quarter(6).has_value());
  EXPECT_EQ(quarter(6).error().code, errc::invalid_argument);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
}

TEST(result, every_code_has_its_own_name) {
  for (int a = 1; a <= 12; ++a) {
    EXPECT_STRNE(to_string(errc(a)), "unknown") << a;
    for (int b = a + 1; b <= 12; ++b) EXPECT_STRNE(to_string(errc(a)), to_string(errc(b)));
  }
  EXPECT_STREQ(to_string(errc(0)), "unknown");
}

TEST(check, prints_the_values_and_aborts) {
  const int free = 3, owned = 4;
  EXPECT_DEATH(TROUPE_CHECK(free + owned == 8, "free {} owned {}", free, owned), "invariant broken.*free 3 owned 4");
}

TEST(clock, manual_clock_moves_only_by_hand) {
  manual_clock c;
  EXPECT_EQ(c.now().count(), 0);
  c.advance(nanoseconds(5));
  EXPECT_EQ(c.now().count(), 5);
  const auto before = steady_clock().now();
  EXPECT_LE(before, steady_clock().now());
}

}  // namespace
}  // namespace troupe
