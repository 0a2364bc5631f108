#include "runtime/sim/report/html.hpp"

#include <fmt/format.h>

#include <limits>

#include "runtime/sim/report/plot.hpp"

namespace troupe::sim {
namespace {

constexpr const char* page_style =
    "body{font:14px sans-serif;max-width:980px;margin:24px auto;padding:0 12px;color:#222;background:#fff}"
    "h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 8px}p{margin:4px 0}"
    "table{border-collapse:collapse;margin:8px 0}td,th{padding:3px 12px 3px 0;text-align:right;border-bottom:1px solid "
    "#ddd}"
    "td:first-child,th:first-child{text-align:left}.l{text-align:left}svg{width:100%;height:auto;display:block;margin:"
    "10px 0}"
    "svg text{font-size:11px;fill:#444}svg .title{font-size:13px;font-weight:bold;fill:#222}svg .y{text-anchor:end}"
    "svg .x{text-anchor:middle}svg .grid{stroke:#e4e4e4}svg polyline{fill:none;stroke-width:1.5}"
    "svg .fault{fill:#d33;fill-opacity:.18}.bad{color:#b00;white-space:pre-wrap;font-family:monospace}"
    ".quiet{color:#666}code{background:#f3f3f3;padding:1px 4px}";

constexpr const char* colours[] = {"#1668b8", "#d9661f", "#2b8a3e", "#7a4fb5"};
constexpr const char* pool_names[] = {"prefill", "decode", "storage", "front"};

std::string row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string out = "<tr>";
  for (const auto& c : cells) out += fmt::format("<{0}>{1}</{0}>", tag, escape_html(c));
  return out + "</tr>\n";
}

std::string ms_text(int64_t ns) { return fmt::format("{:.1f}", static_cast<double>(ns) / 1e6); }
std::string share_text(uint64_t a, uint64_t b) {
  return b == 0 ? "-" : fmt::format("{:.2f} %", 100.0 * static_cast<double>(a) / static_cast<double>(b));
}

std::string time_text(int64_t ns) { return ns < 0 ? "-" : fmt::format("{:.3f} s", static_cast<double>(ns) / 1e9); }

std::vector<std::string> latency_cells(const char* name, const quantiles& q) {
  return {name,           std::to_string(q.count), ms_text(q.mean), ms_text(q.p50),
          ms_text(q.p90), ms_text(q.p99),          ms_text(q.most)};
}

template <class F>
plot_line line_of(const run_summary& s, std::string name, size_t colour, F value) {
  plot_line l{std::move(name), colours[colour % 4], {}};
  for (const auto& b : s.over_time.bins()) l.values.push_back(value(b));
  return l;
}

std::vector<plot> plots_of(const run_summary& s) {
  const double width = static_cast<double>(s.over_time.width()), seconds = width / 1e9;
  std::vector<plot> out;
  out.push_back({"Load",
                 "requests per second",
                 seconds,
                 0,
                 {line_of(s, "arrived", 0, [&](const auto& b) { return b.arrived / seconds; }),
                  line_of(s, "finished", 2, [&](const auto& b) { return b.finished / seconds; })},
                 {}});
  out.push_back({"Tokens",
                 "accepted per second",
                 seconds,
                 0,
                 {line_of(s, "tokens", 0, [&](const auto& b) { return b.tokens / seconds; })},
                 {}});
  plot waiting{"Queue", "requests waiting", seconds, 0, {}, {}}, running{"Running", "requests", seconds, 0, {}, {}};
  plot ready{"Roles", "nodes ready", seconds, 0, {}, {}};
  plot steps{"Rank time inside steps", "share", seconds, 1, {}, {}};
  for (size_t p = 0; p < 4; ++p) {
    if (p < 2) {
      waiting.lines.push_back(
          line_of(s, pool_names[p], p, [p](const auto& b) { return static_cast<double>(b.waiting[p]); }));
      running.lines.push_back(
          line_of(s, pool_names[p], p, [p](const auto& b) { return static_cast<double>(b.running[p]); }));
      if (const double ranks = s.pools[p].ranks; ranks > 0)
        steps.lines.push_back(
            line_of(s, pool_names[p], p, [=](const auto& b) { return b.rank_ns[p] / (ranks * width); }));
    }
    ready.lines.push_back(line_of(s, pool_names[p], p, [p](const auto& b) { return static_cast<double>(b.ready[p]); }));
  }
  plot hits{"Hit rate", "reused over input tokens", seconds, 1, {}, {}};
  hits.lines.push_back(line_of(s, "hit rate", 2, [](const auto& b) {
    return b.asked_tokens > 0 ? b.hit_tokens / b.asked_tokens : std::numeric_limits<double>::quiet_NaN();
  }));
  for (auto* p : {&waiting, &running, &hits, &steps, &ready}) out.push_back(std::move(*p));
  std::vector<plot_mark> marks;
  for (const auto& f : s.faults)
    if (f.began >= 0)
      marks.push_back({f.name + ": " + f.kind + " of " + f.target, static_cast<double>(f.began) / 1e9,
                       static_cast<double>(f.ended < 0 ? s.virtual_ns : f.ended) / 1e9});
  for (auto& p : out) p.marks = marks;
  return out;
}

std::string tables_of(const run_summary& s) {
  std::string out = "<h2>Requests</h2>\n<table>\n";
  out +=
      row({"submitted", "finished", "failed", "cancelled", "resumed", "within limits", "input tokens", "output tokens"},
          "th");
  out += row({std::to_string(s.submitted), std::to_string(s.finished), std::to_string(s.failed),
              std::to_string(s.cancelled), std::to_string(s.resumptions), share_text(s.within_slo, s.submitted),
              std::to_string(s.input_tokens), std::to_string(s.output_tokens)});
  out += "</table>\n<table>\n" + row({"ms", "count", "mean", "p50", "p90", "p99", "max"}, "th");
  out += row(latency_cells("time to first token", s.first_token));
  out += row(latency_cells("time per further token", s.per_token));
  out += row(latency_cells("whole request", s.whole));
  out += "</table>\n<h2>Fleet</h2>\n<table>\n" +
         row({"pool", "ranks", "steps", "in steps", "achieved over balanced"}, "th");
  for (size_t p = 0; p < 2; ++p)
    out += row({pool_names[p], std::to_string(s.pools[p].ranks), std::to_string(s.pools[p].steps),
                fmt::format("{:.2f} %", 100 * s.pools[p].in_steps),
                fmt::format("{:.2f} %", 100 * s.pools[p].achieved_over_balanced)});
  out += "</table>\n<table>\n" + row({"hit rate", "blocks", "tokens"}, "th");
  out += row({"of the store", share_text(s.hit_blocks, s.asked_blocks), share_text(s.hit_tokens, s.matched_tokens)});
  out += "</table>\n<table>\n" +
         row({"bytes moved", "messages", "handoff", "store writes", "store reads", "experts", "repair"}, "th");
  std::vector<std::string> bytes{"MB"};
  for (const uint64_t b : s.bytes) bytes.push_back(fmt::format("{:.1f}", static_cast<double>(b) / 1e6));
  out += row(bytes) + "</table>\n<table>\n" +
         row({"US$", "revenue per GPU-hour", "cost per GPU-hour", "cost per million output tokens"}, "th");
  out += row({"", fmt::format("{:.3f}", s.account.revenue_per_gpu_hour),
              fmt::format("{:.3f}", s.account.cost_per_gpu_hour),
              fmt::format("{:.3f}", s.account.cost_per_output_mtoken)});
  out += "</table>\n";
  if (s.faults.empty()) return out;
  out += "<h2>Faults</h2>\n<table>\n" + row({"fault", "kind", "target", "began", "ended", "effect seen",
                                             "recovered after", "streams", "longest silence"},
                                            "th");
  constexpr size_t most = 500;
  for (size_t i = 0; i < std::min(most, s.faults.size()); ++i) {
    const auto& f = s.faults[i];
    out += row({f.name, f.kind, f.target, time_text(f.began), time_text(f.ended), time_text(f.seen),
                time_text(f.recovered), std::to_string(f.streams), time_text(f.silence)});
  }
  out += "</table>\n";
  if (s.faults.size() > most) out += fmt::format("<p>and {} more</p>\n", s.faults.size() - most);
  for (const auto& w : s.without_effect) out += "<p class=\"bad\">" + escape_html(w) + "</p>\n";
  return out;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t')
      out += c;
  }
  return out;
}

std::string html_report(const run_summary& s) {
  const std::string name = s.about.name.empty() ? "Simulation" : s.about.name;
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta "
      "charset=\"utf-8\"/><title>{0}</title><style>{1}</style></head><body>\n"
      "<h1>{0}</h1>\n<p class=\"quiet\">seed {2}, event log hash {3:016x}, {4} events, {5:.3f} s of virtual time</p>\n"
      "<p class=\"quiet\">{6}</p>\n",
      escape_html(name), page_style, s.about.seed, s.event_log_hash, s.events, static_cast<double>(s.virtual_ns) / 1e9,
      escape_html(s.about.workload));
  if (!s.about.command.empty()) out += "<p><code>" + escape_html(s.about.command) + "</code></p>\n";
  if (!s.violation.empty()) out += "<h2>Violation</h2>\n<div class=\"bad\">" + escape_html(s.violation) + "</div>\n";
  out += tables_of(s) + "<h2>Over time</h2>\n";
  if (!s.faults.empty()) out += "<p class=\"quiet\">Red: a fault lasts. Its name shows on hovering.</p>\n";
  for (const auto& p : plots_of(s)) out += svg_of(p);
  out += fmt::format(
      "<h2>Definitions</h2>\n<p>Within limits: first token within {:.0f} ms and mean time per further token within "
      "{:.0f} "
      "ms.</p>\n<p>Hit rate, blocks: longest stored prefix found over complete blocks asked for; tokens: reused over "
      "input tokens.</p>\n<p>In steps: rank time inside steps over ranks times run. Achieved over balanced: cost-model "
      "work done in the middle 80 % of the run over ranks times that time.</p>\n<p>Recovered after: from a fault's "
      "begin "
      "until the cluster served as before. Longest silence: of the streams that were getting tokens at its begin, the "
      "longest wait from then on for the next token or the end.</p>\n</body></html>\n",
      static_cast<double>(s.about.slo_first_token.count()) / 1e6,
      static_cast<double>(s.about.slo_per_token.count()) / 1e6);
  return out;
}

}  // namespace troupe::sim
