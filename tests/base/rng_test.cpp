#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <array>

namespace troupe {
namespace {

// Known answers of the Random123 distribution for philox4x32 with 10 rounds.
TEST(philox, known_answers) {
  using a4 = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (a4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (a4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (a4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(rng, same_seed_same_numbers_and_streams_differ) {
  rng a(7), b(7), c(7, 1);
  const auto x = a.next();
  EXPECT_EQ(x, b.next());
  EXPECT_NE(x, c.next());
}

TEST(rng, below_is_in_range_and_reaches_every_value) {
  rng r(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen.at(r.below(7));
  for (int n : seen) EXPECT_GT(n, 800);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(r.below(1), 0u);
  const double u = r.uniform();
  EXPECT_GE(u, 0.0);
  EXPECT_LT(u, 1.0);
}

}  // namespace
}  // namespace troupe
