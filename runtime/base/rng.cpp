#include "runtime/base/rng.hpp"

#include <random>

#include "runtime/base/check.hpp"

namespace troupe {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

uint64_t rng::next() {
  const auto w = philox({uint32_t(count_), uint32_t(count_ >> 32), uint32_t(stream_), uint32_t(stream_ >> 32)},
                        {uint32_t(seed_), uint32_t(seed_ >> 32)});
  ++count_;
  return uint64_t{w[0]} | uint64_t{w[1]} << 32;
}

uint64_t rng::below(uint64_t bound) {
  TROUPE_CHECK(bound > 0, "bound {}", bound);
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  for (;;) {
    const uint64_t x = next();
    if (x < limit) return x % bound;
  }
}

double rng::uniform() { return double(next() >> 11) * 0x1p-53; }

uint64_t entropy_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace troupe
