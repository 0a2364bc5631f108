// Line plots as SVG.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace troupe::sim {

/// A line: one value per bin; NaN: a gap.
struct plot_line {
  std::string name, colour;
  std::vector<double> values;
};

/// A stretch of time to mark over the whole height.
struct plot_mark {
  std::string name;
  double from_s = 0, to_s = 0;
};

/// One figure: `bin_s` seconds per value. The y axis starts at 0 and ends at `top` (0: at the highest value, rounded
/// up).
struct plot {
  std::string title, unit;
  double bin_s = 1, top = 0;
  std::vector<plot_line> lines;
  std::vector<plot_mark> marks;
};

/// An <svg> element of 960 x 220, with axes, legend and titles to hover. Numbers are finite by construction.
std::string svg_of(const plot& p);

}  // namespace troupe::sim
