#include "runtime/sim/report/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/sim/report/html.hpp"

namespace troupe::sim {
namespace {

constexpr double left = 60, right = 946, above = 30, below = 190;

// 1, 2 or 5 times a power of ten, at least v.
double round_up(double v) {
  if (!(v > 0)) return 1;
  const double unit = std::pow(10, std::floor(std::log10(v)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * unit >= v) return m * unit;
  return 10 * unit;
}

// One unit for the whole axis.
std::string time_label(double s, double span) {
  if (span >= 2 * 86'400) return fmt::format("{:.3g} d", s / 86'400);
  if (span >= 2 * 3'600) return fmt::format("{:.3g} h", s / 3'600);
  if (span >= 120) return fmt::format("{:.3g} min", s / 60);
  return fmt::format("{:.3g} s", s);
}

}  // namespace

std::string svg_of(const plot& p) {
  size_t bins = 1;
  double top = p.top;
  for (const auto& l : p.lines) {
    bins = std::max(bins, l.values.size());
    if (p.top <= 0)
      for (const double v : l.values)
        if (std::isfinite(v)) top = std::max(top, v);
  }
  if (p.top <= 0) top = round_up(top);
  const double span = p.bin_s * static_cast<double>(bins);
  const auto x_of = [&](double s) { return left + (right - left) * std::clamp(s / span, 0.0, 1.0); };
  const auto y_of = [&](double v) { return below - (below - above) * std::clamp(v / top, 0.0, 1.0); };
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 960 220\" role=\"img\"><title>{0}</title><text class=\"title\" x=\"{1}\" "
      "y=\"16\">{0}{2}</text>\n",
      escape_html(p.title), left, p.unit.empty() ? "" : " (" + escape_html(p.unit) + ")");
  for (const auto& m : p.marks) {
    const double a = x_of(m.from_s), b = std::max(x_of(m.to_s), a + 1.5);
    out += fmt::format(
        "<rect class=\"fault\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}</title></rect>\n", a,
        above, b - a, below - above, escape_html(m.name));
  }
  for (int i = 0; i <= 4; ++i) {
    const double v = top * i / 4, s = span * i / 4;
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\"/><text class=\"y\" x=\"{3}\" "
        "y=\"{4:.1f}\">{5:.4g}</text><text class=\"x\" x=\"{6:.1f}\" y=\"206\">{7}</text>\n",
        left, y_of(v), right, left - 6, y_of(v) + 4, v, x_of(s), time_label(s, span));
  }
  double legend = right;
  for (auto l = p.lines.rbegin(); l != p.lines.rend(); ++l) {
    legend -= 22 + 7.2 * static_cast<double>(l->name.size());
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"12\" x2=\"{1:.1f}\" y2=\"12\" stroke=\"{2}\" stroke-width=\"3\"/><text "
        "x=\"{3:.1f}\" "
        "y=\"16\">{4}</text>\n",
        legend, legend + 12, l->colour, legend + 16, escape_html(l->name));
  }
  for (const auto& l : p.lines) {
    std::string points;
    size_t count = 0;
    const auto flush = [&] {
      // A single point between gaps would not show as a line.
      if (count > 0)
        out += fmt::format("<polyline points=\"{}\" stroke=\"{}\"><title>{}</title></polyline>\n",
                           count == 1 ? points + points : points, l.colour, escape_html(l.name));
      points.clear(), count = 0;
    };
    for (size_t i = 0; i < l.values.size(); ++i) {
      if (!std::isfinite(l.values[i])) {
        flush();
        continue;
      }
      points += fmt::format("{:.1f},{:.1f} ", x_of((static_cast<double>(i) + 0.5) * p.bin_s), y_of(l.values[i]));
      ++count;
    }
    flush();
  }
  return out + "</svg>\n";
}

}  // namespace troupe::sim
