#include "runtime/sim/workload/draws.hpp"

#include <algorithm>
#include <bit>

namespace troupe::sim {
namespace {

constexpr double ln2 = 0.69314718055994530942;

}  // namespace

double exact_ln(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | uint64_t{1023} << 52);  // [1, 2)
  if (m > 1.41421356237309515) m *= 0.5, ++exponent;
  const double z = (m - 1) / (m + 1), z2 = z * z;  // |z| < 0.172: ln m = 2 (z + z^3/3 + ...)
  double sum = 0;
  for (int k = 12; k >= 0; --k) sum = sum * z2 + 1.0 / (2 * k + 1);
  return 2 * z * sum + exponent * ln2;
}

double exact_exp(double x) {
  const auto n = static_cast<int>(x / ln2 + (x < 0 ? -0.5 : 0.5));
  const double r = x - n * ln2;  // |r| < 0.35
  double sum = 1;
  for (int k = 18; k >= 1; --k) sum = 1 + sum * r / k;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

nanoseconds draw_exponential(rng& random, nanoseconds mean) {
  const double u = 1 - random.uniform();  // (0, 1]
  return nanoseconds(static_cast<int64_t>(-exact_ln(u) * static_cast<double>(mean.count())));
}

double draw_log_normal(rng& random, double median, uint32_t sigma_hundredths) {
  double normal = -6;
  for (int i = 0; i < 12; ++i) normal += random.uniform();
  return median * exact_exp(std::clamp(normal * sigma_hundredths / 100, -700.0, 700.0));
}

nanoseconds draw_log_uniform(rng& random, nanoseconds least, nanoseconds most) {
  const double span = exact_ln(static_cast<double>(most.count()) / static_cast<double>(least.count()));
  const auto v =
      static_cast<int64_t>(static_cast<double>(least.count()) * exact_exp(std::min(span * random.uniform(), 700.0)));
  return std::clamp(nanoseconds(v), least, most);
}

uint32_t draw_geometric(rng& random, uint32_t mean) {
  if (mean <= 1) return 1;
  // P(N > n) = (1 - 1/mean)^n
  const double u = 1 - random.uniform();
  const double n = exact_ln(u) / exact_ln(1 - 1.0 / mean);
  return 1 + static_cast<uint32_t>(std::min(n, 1000.0 * mean));
}

}  // namespace troupe::sim
