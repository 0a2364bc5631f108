// The summary as a page: one file, no network, no script needed.
#pragma once

#include <string>

#include "runtime/sim/report/summary.hpp"

namespace troupe::sim {

/// HTML with inline style and SVG: figures of load, queues, hit rate, rank time and roles over time with the faults
/// marked in all of them, and tables of latencies, faults and definitions. Well-formed XML too (every tag closed), so
/// that it can be checked without a browser. Values show on hovering (SVG titles).
std::string html_report(const run_summary& s);

/// Text with & < > " escaped.
std::string escape_html(const std::string& text);

}  // namespace troupe::sim
