#include "policies/phi.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::policies {
namespace {

// -log10(P(N(0,1) > z)).
double phi_of(double z) {
  if (z < 30) return -std::log10(0.5 * std::erfc(z / std::sqrt(2.0)));
  // erfc would underflow: Mills ratio, relative error of P below 1 / z^4.
  return (z * z / 2 + std::log(z * std::sqrt(2 * M_PI)) - std::log1p(-1 / (z * z))) / std::log(10.0);
}

}  // namespace

result<phi_plan> plan_phi(const phi_input& in) {
  if (!(in.interval_ms > 0) || !std::isfinite(in.interval_ms) || !(in.pause_ms >= 0) || !std::isfinite(in.pause_ms))
    return fail(errc::invalid_argument, "interval_ms {}, pause_ms {}: a positive and a not negative time",
                in.interval_ms, in.pause_ms);
  if (!(in.suspect_at > 0 && in.suspect_at <= in.down_at) || !std::isfinite(in.down_at))
    return fail(errc::invalid_argument, "suspect_at {}, down_at {}: 0 < suspect_at <= down_at expected", in.suspect_at,
                in.down_at);
  if (!std::isfinite(in.now_ms)) return fail(errc::invalid_argument, "now_ms: {}", in.now_ms);
  const auto& h = in.heartbeats_ms;
  for (size_t i = 0; i < h.size(); ++i) {
    if (!std::isfinite(h[i]) || h[i] > in.now_ms)
      return fail(errc::invalid_argument, "heartbeats_ms[{}]: {} is after now {}", i, h[i], in.now_ms);
    if (i > 0 && h[i] < h[i - 1])
      return fail(errc::invalid_argument, "heartbeats_ms[{}]: {} is before {}", i, h[i], h[i - 1]);
  }
  constexpr double assumed = 4;
  double n = assumed, mean = in.interval_ms, m2 = 0;
  for (size_t i = 1; i < h.size(); ++i) {
    const double gap = h[i] - h[i - 1], delta = gap - mean;
    n += 1;
    mean += delta / n;
    m2 += delta * (gap - mean);
  }
  phi_plan out;
  out.mean_ms = mean + in.pause_ms;
  out.deviation_ms = std::max({std::sqrt(m2 / n), mean / 10, 10.0});
  const double silent = in.now_ms - (h.empty() ? 0 : h.back());
  out.phi = std::max(0.0, phi_of((silent - out.mean_ms) / out.deviation_ms));
  out.verdict = out.phi >= in.down_at      ? phi_verdict::down
                : out.phi >= in.suspect_at ? phi_verdict::suspect
                                           : phi_verdict::alive;
  double low = -out.mean_ms / out.deviation_ms, high = 10 + std::sqrt(2 * std::log(10.0) * in.suspect_at);
  for (int i = 0; i < 50; ++i) (phi_of((low + high) / 2) < in.suspect_at ? low : high) = (low + high) / 2;
  out.suspect_in_ms =
      out.verdict == phi_verdict::alive ? std::max(0.0, out.mean_ms + high * out.deviation_ms - silent) : 0;
  constexpr const char* names[] = {"alive", "suspect", "down"};
  out.reason = fmt::format("{}: silent {:.0f} ms, gaps {:.0f} +- {:.0f} ms, phi {:.1f}",
                           names[static_cast<size_t>(out.verdict)], silent, out.mean_ms, out.deviation_ms, out.phi);
  return out;
}

}  // namespace troupe::policies
