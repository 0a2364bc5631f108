#include "runtime/cli/load/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

double four_places(double v) { return std::round(v * 1e4) / 1e4; }
double millis(nanoseconds d) { return four_places(static_cast<double>(d.count()) / 1e6); }
double rate_of(uint64_t n, nanoseconds d) {
  return four_places(static_cast<double>(n) * 1e9 / static_cast<double>(d.count()));
}
double ratio_of(double part, double whole) { return whole > 0 ? four_places(part / whole) : 0; }

json latencies_json(const latency_histogram& h) {
  return {{"count", h.count()},       {"mean", millis(h.mean())},  {"p50", millis(h.at(0.5))},
          {"p90", millis(h.at(0.9))}, {"p99", millis(h.at(0.99))}, {"max", millis(h.most())}};
}

// Differences of a rank's counters.
struct rank_delta {
  uint64_t steps = 0, tokens = 0, prompt_rows = 0, drafted = 0, accepted = 0;
  kernels::step_times times;
  actors::gap_counts gaps;
  uint32_t ranks = 0;

  void add(const rank_delta& o) {
    steps += o.steps;
    tokens += o.tokens;
    prompt_rows += o.prompt_rows;
    drafted += o.drafted;
    accepted += o.accepted;
    for (auto part : {&kernels::step_times::total, &kernels::step_times::attention, &kernels::step_times::dispatch,
                      &kernels::step_times::experts, &kernels::step_times::combine, &kernels::step_times::sampling,
                      &kernels::step_times::idle_before})
      times.*part += o.times.*part;
    gaps.steps += o.gaps.steps;
    gaps.gap += o.gaps.gap;
    gaps.waited += o.gaps.waited;
    gaps.busy += o.gaps.busy;
    ranks += o.ranks;
  }

  json as_json(nanoseconds wall) const {
    const auto to_ms = [](int64_t ns) { return millis(nanoseconds(ns)); };
    const double whole = static_cast<double>(wall.count()) * ranks;
    const int64_t named = times.attention + times.dispatch + times.experts + times.combine + times.sampling;
    const int64_t idle = std::max<int64_t>(0, static_cast<int64_t>(whole) - times.total);
    const std::pair<const char*, int64_t> parts[] = {{"attention", times.attention},
                                                     {"dispatch", times.dispatch},
                                                     {"experts", times.experts},
                                                     {"combine", times.combine},
                                                     {"sampling", times.sampling},
                                                     {"other", std::max<int64_t>(0, times.total - named)},
                                                     {"idle", idle}};
    json in_ms, in_shares;
    for (const auto& [name, ns] : parts) {
      in_ms[name] = to_ms(ns);
      in_shares[name] = ratio_of(static_cast<double>(ns), whole);
    }
    // A wait for a core is the machine's, not the scheduler's.
    const int64_t gap = std::max<int64_t>(0, gaps.gap - gaps.waited);
    return {{"steps", steps},
            {"tokens", tokens},
            {"prompt_rows", prompt_rows},
            {"drafted", drafted},
            {"accepted", accepted},
            {"step_ms", steps > 0 ? four_places(to_ms(times.total) / static_cast<double>(steps)) : 0},
            {"ms", in_ms},
            {"share", in_shares},
            {"waited_for_peers_ms", to_ms(times.idle_before)},
            {"gap",
             {{"steps", gaps.steps},
              {"ms", to_ms(gap)},
              {"waited_for_core_ms", to_ms(gaps.waited)},
              {"steps_ms", to_ms(gaps.busy)},
              {"share_of_steps", ratio_of(static_cast<double>(gap), static_cast<double>(gaps.busy))}}}};
  }
};

rank_delta delta_of(const actors::rank_report& from, const actors::rank_report& to) {
  rank_delta d;
  const bool same = to.steps >= from.steps;  // else it was started again
  const auto less = [same](auto a, auto b) { return same ? a - b : a; };
  d.ranks = 1;
  d.steps = less(to.steps, from.steps);
  for (auto part : {&kernels::step_times::total, &kernels::step_times::attention, &kernels::step_times::dispatch,
                    &kernels::step_times::experts, &kernels::step_times::combine, &kernels::step_times::sampling,
                    &kernels::step_times::idle_before})
    d.times.*part = less(to.times.*part, from.times.*part);
  d.gaps = {less(to.gaps.steps, from.gaps.steps), less(to.gaps.gap, from.gaps.gap),
            less(to.gaps.waited, from.gaps.waited), less(to.gaps.busy, from.gaps.busy)};
  return d;
}

}  // namespace

json to_json(const load_summary& s) {
  json errors = json::object();
  for (const auto& [kind, n] : s.errors) errors[kind] = n;
  return {{"seconds", four_places(static_cast<double>(s.took.count()) / 1e9)},
          {"stopped", s.stopped},
          {"requests",
           {{"sent", s.sent},
            {"finished", s.finished},
            {"left", s.left},
            {"interrupted", s.interrupted},
            {"failed", s.failed},
            {"skipped_too_long", s.skipped},
            {"due_but_unsent", s.unsent},
            {"to_be_left", s.leavers},
            {"slow_clients", s.slow},
            {"most_at_once", s.most_at_once}}},
          {"errors", errors},
          {"tokens",
           {{"prompt", s.prompt_tokens},
            {"cached", s.cached_tokens},
            {"completion", s.completion_tokens},
            {"asked_prompt", s.expected_prompt_tokens},
            {"asked_completion", s.expected_completion_tokens},
            {"received", s.tokens}}},
          {"hit_rate", ratio_of(static_cast<double>(s.cached_tokens), static_cast<double>(s.prompt_tokens))},
          {"per_second",
           {{"requests", rate_of(s.finished, s.took)},
            {"input_tokens", rate_of(s.prompt_tokens, s.took)},
            {"output_tokens", rate_of(s.tokens, s.took)}}},
          {"ttft_ms", latencies_json(s.first_token)},
          {"tpot_ms", latencies_json(s.per_token)},
          {"inter_token_ms", latencies_json(s.between_tokens)},
          {"end_to_end_ms", latencies_json(s.whole)},
          {"start_lag_ms", latencies_json(s.lag)}};
}

json ranks_json(const node::cluster_picture& before, const node::cluster_picture& after, nanoseconds wall) {
  json list = json::array();
  std::map<std::string, rank_delta> roles;
  for (const auto& [seat, to] : after.ranks) {
    const auto from = before.ranks.find(seat);
    auto d = delta_of(from == before.ranks.end() ? actors::rank_report{} : from->second, to);
    if (const auto s = after.schedulers.find(seat); s != after.schedulers.end()) {
      const auto old = before.schedulers.find(seat);
      const auto zero = old == before.schedulers.end() || s->second.steps < old->second.steps
                            ? actors::scheduler_report{}
                            : old->second;
      d.tokens = s->second.tokens - zero.tokens;
      d.prompt_rows = s->second.prompt_rows - zero.prompt_rows;
      d.drafted = s->second.drafted - zero.drafted;
      d.accepted = s->second.accepted - zero.accepted;
    }
    json j{{"seat", seat}};
    j.update(d.as_json(wall));
    list.push_back(std::move(j));
    roles[seat.substr(0, seat.find('-'))].add(d);
  }
  json sums;
  for (const auto& [role, d] : roles) {
    sums[role] = {{"ranks", d.ranks}};
    sums[role].update(d.as_json(wall));
  }
  return {{"wall_ms", millis(wall)}, {"roles", sums}, {"ranks", list}};
}

std::string to_text(const load_summary& s) {
  std::string out = fmt::format("{} requests in {:.1f} s: {} finished, {} left by their client, {} failed", s.sent,
                                static_cast<double>(s.took.count()) / 1e9, s.finished, s.left, s.failed);
  if (s.interrupted > 0) out += fmt::format(", {} interrupted", s.interrupted);
  if (s.skipped > 0) out += fmt::format("; {} skipped, which do not fit the context", s.skipped);
  out += "\n";
  for (const auto& [kind, n] : s.errors) out += fmt::format("  {} x {}\n", n, kind);
  const auto line = [&](const char* name, const latency_histogram& h) {
    if (h.count() > 0)
      out += fmt::format("  {:<22}{:>10.2f} / {:.2f} / {:.2f} ms (median, 90 %, 99 %)\n", name, millis(h.at(0.5)),
                         millis(h.at(0.9)), millis(h.at(0.99)));
  };
  line("first token", s.first_token);
  line("per token after it", s.per_token);
  line("whole answer", s.whole);
  line("sent too late", s.lag);
  out += fmt::format("  {:.1f} requests/s, {:.0f} prompt tokens/s, {:.0f} tokens/s out, hit rate {:.1f} %\n",
                     rate_of(s.finished, s.took), rate_of(s.prompt_tokens, s.took), rate_of(s.tokens, s.took),
                     100 * ratio_of(static_cast<double>(s.cached_tokens), static_cast<double>(s.prompt_tokens)));
  return out;
}

}  // namespace troupe::cli
