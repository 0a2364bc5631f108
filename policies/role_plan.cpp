#include "policies/role_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::policies {
namespace {

double pressure(double need, uint32_t units) { return units > 0 ? need / units : need > 0 ? INFINITY : 0; }

}  // namespace

result<role_plan> plan_roles(const role_plan_input& in) {
  if (!(in.low > 0 && in.low <= in.target && in.target <= in.high && in.high <= 1))
    return fail(errc::invalid_argument, "low {}, target {}, high {}: 0 < low <= target <= high <= 1 expected", in.low,
                in.target, in.high);
  if (!(in.drain_s > 0) || !std::isfinite(in.drain_s)) return fail(errc::invalid_argument, "drain_s: {}", in.drain_s);
  const size_t n = in.roles.size();
  uint64_t least = 0, now = 0;
  std::vector<double> need(n);
  for (size_t i = 0; i < n; ++i) {
    const auto& r = in.roles[i];
    if (!(r.rate >= 0) || !(r.queued >= 0) || !std::isfinite(r.rate) || !std::isfinite(r.queued) || r.least > r.most)
      return fail(errc::invalid_argument, "roles[{}]: rate {}, queued {}, least {}, most {}", i, r.rate, r.queued,
                  r.least, r.most);
    need[i] = r.rate + r.queued / in.drain_s;
    least += r.least, now += r.units;
  }
  if (least > in.units || now > in.units)
    return fail(errc::invalid_argument, "units: {}, but the roles have {} and want at least {}", in.units, now, least);

  role_plan out;
  std::string why;
  const auto wanted = [&](size_t i) {
    const double w = std::ceil(need[i] / in.target - 1e-9);
    return static_cast<uint32_t>(
        std::clamp<double>(w, in.roles[i].least, std::max(in.roles[i].least, std::min(in.roles[i].most, in.units))));
  };
  for (size_t i = 0; i < n; ++i) {
    const auto& r = in.roles[i];
    uint32_t want = std::clamp(r.units, r.least, r.most);
    const bool grow = need[i] > in.high * r.units;
    const bool shrink =
        r.units > 0 && (need[i] == 0 || need[i] < in.low * (r.units - 1)) && r.queued == 0 && r.since_change >= in.hold;
    if (grow) want = std::max(want, wanted(i));
    if (shrink) want = std::min(want, wanted(i));
    out.units.push_back(want);
  }
  uint64_t sum = std::accumulate(out.units.begin(), out.units.end(), uint64_t{0});
  if (sum > in.units) {
    out.short_of_units = true;
    // Deal the pool out by need, from the least each must have.
    const auto caps = out.units;
    std::vector<uint32_t> dealt(n);
    uint64_t left = in.units;
    for (size_t i = 0; i < n; ++i) left -= dealt[i] = in.roles[i].least;
    for (; left > 0; --left) {
      size_t best = SIZE_MAX;
      for (size_t i = 0; i < n; ++i)
        if (dealt[i] < caps[i] && (best == SIZE_MAX || pressure(need[i], dealt[i]) > pressure(need[best], dealt[best])))
          best = i;
      if (best == SIZE_MAX) break;
      ++dealt[best];
    }
    const auto worst = [&](const std::vector<uint32_t>& units) {
      double w = 0;
      for (size_t i = 0; i < n; ++i) w = std::max(w, pressure(need[i], units[i]));
      return w;
    };
    // What there is now, with free units given out: kept unless dealing anew is clearly better.
    std::vector<uint32_t> kept(n);
    uint64_t free = in.units;
    bool bounds = true;
    for (size_t i = 0; i < n; ++i) {
      kept[i] = std::min(in.roles[i].units, caps[i]);
      bounds = bounds && kept[i] >= in.roles[i].least;
      free -= kept[i];
    }
    for (; free > 0; --free) {
      size_t best = SIZE_MAX;
      for (size_t i = 0; i < n; ++i)
        if (kept[i] < caps[i] && (best == SIZE_MAX || pressure(need[i], kept[i]) > pressure(need[best], kept[best])))
          best = i;
      if (best == SIZE_MAX) break;
      ++kept[best];
    }
    out.units = !bounds || worst(dealt) < 0.9 * worst(kept) ? dealt : kept;
    why = ", pool short";
  }
  for (size_t i = 0; i < n; ++i) {
    out.change = out.change || out.units[i] != in.roles[i].units;
    out.reason += fmt::format("{}{} -> {} (need {:.2f})", i ? ", " : "", in.roles[i].units, out.units[i], need[i]);
  }
  out.reason += why;
  return out;
}

}  // namespace troupe::policies
