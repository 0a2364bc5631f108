// The summary as a JSON document.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/sim/report/summary.hpp"

namespace troupe::sim {
namespace {

using json = nlohmann::ordered_json;

double six(double v) { return std::isfinite(v) ? std::round(v * 1e6) / 1e6 : 0; }
double ms(int64_t ns) { return six(static_cast<double>(ns) / 1e6); }
double s_of(int64_t ns) { return six(static_cast<double>(ns) / 1e9); }
double part(uint64_t a, uint64_t b) { return b == 0 ? 0 : six(static_cast<double>(a) / static_cast<double>(b)); }

json quantiles_json(const quantiles& q) {
  return {{"count", q.count}, {"mean", ms(q.mean)}, {"p50", ms(q.p50)},
          {"p90", ms(q.p90)}, {"p99", ms(q.p99)},   {"max", ms(q.most)}};
}

json time_or_null(int64_t ns) { return ns < 0 ? json(nullptr) : json(s_of(ns)); }

json faults_json(const run_summary& s) {
  json list = json::array();
  std::map<std::string, std::vector<int64_t>> by_kind, silences;
  for (const auto& f : s.faults) {
    list.push_back({{"name", f.name},
                    {"kind", f.kind},
                    {"target", f.target},
                    {"began_s", time_or_null(f.began)},
                    {"ended_s", time_or_null(f.ended)},
                    {"effect_seen_s", time_or_null(f.seen)},
                    {"recovered_after_ms", f.recovered < 0 ? json(nullptr) : json(ms(f.recovered))},
                    {"streams", f.streams},
                    {"silence_ms", f.silence < 0 ? json(nullptr) : json(ms(f.silence))}});
    if (f.recovered >= 0) by_kind[f.kind].push_back(f.recovered);
    if (f.silence >= 0) silences[f.kind].push_back(f.silence);
  }
  json kinds = json::object();
  for (auto& [kind, times] : by_kind) kinds[kind] = quantiles_json(quantiles_of(times));
  json quiet = json::object();
  for (auto& [kind, times] : silences) quiet[kind] = quantiles_json(quantiles_of(times));
  json out;
  out["count"] = s.faults.size();
  out["without_effect"] = s.without_effect;
  out["definition"] =
      "recovered_after: from the begin until the cluster served as before; streams: requests that were getting tokens "
      "at "
      "the begin; silence: the longest wait of one of them from then on for its next token or its end";
  out["recovery_ms"] = std::move(kinds);
  out["silence_ms"] = std::move(quiet);
  out["list"] = std::move(list);
  return out;
}

json timeline_json(const run_summary& s) {
  json t;
  t["bin_s"] = s_of(s.over_time.width());
  const double seconds = static_cast<double>(s.over_time.width()) / 1e9;
  const auto column = [&](const char* name, auto value) {
    json c = json::array();
    for (const auto& b : s.over_time.bins()) c.push_back(value(b));
    t[name] = std::move(c);
  };
  const auto ns = static_cast<double>(s.over_time.width());
  column("arrived_per_s", [&](const auto& b) { return six(b.arrived / seconds); });
  column("finished_per_s", [&](const auto& b) { return six(b.finished / seconds); });
  column("tokens_per_s", [&](const auto& b) { return six(b.tokens / seconds); });
  column("hit_rate",
         [&](const auto& b) { return b.asked_tokens > 0 ? json(six(b.hit_tokens / b.asked_tokens)) : json(nullptr); });
  constexpr const char* pools[] = {"prefill", "decode", "storage", "front"};
  for (size_t p = 0; p < 2; ++p)
    if (const double ranks = s.pools[p].ranks; ranks > 0)
      column((std::string(pools[p]) + "_in_steps").c_str(),
             [&](const auto& b) { return six(b.rank_ns[p] / (ranks * ns)); });
  for (size_t p = 0; p < 4; ++p) {
    column((std::string(pools[p]) + "_ready").c_str(), [&](const auto& b) { return b.ready[p]; });
    column((std::string(pools[p]) + "_waiting").c_str(), [&](const auto& b) { return b.waiting[p]; });
    column((std::string(pools[p]) + "_running").c_str(), [&](const auto& b) { return b.running[p]; });
  }
  return t;
}

}  // namespace

nlohmann::ordered_json to_json(const run_summary& s) {
  json j;
  j["troupe_summary"] = 1;
  j["name"] = s.about.name;
  j["seed"] = s.about.seed;
  j["event_log_hash"] = fmt::format("{:016x}", s.event_log_hash);
  j["events"] = s.events;
  j["virtual_s"] = s_of(s.virtual_ns);
  j["workload"] = s.about.workload;
  j["command"] = s.about.command;
  j["requests"] = {{"submitted", s.submitted},
                   {"finished", s.finished},
                   {"failed", s.failed},
                   {"cancelled", s.cancelled},
                   {"open", s.submitted - std::min(s.submitted, s.finished + s.failed + s.cancelled)},
                   {"resumptions", s.resumptions}};
  const double run = static_cast<double>(s.virtual_ns) / 1e9;
  const auto per_s = [&](uint64_t n) { return run > 0 ? six(static_cast<double>(n) / run) : 0; };
  j["tokens"] = {{"input", s.input_tokens},
                 {"output", s.output_tokens},
                 {"input_per_s", per_s(s.input_tokens)},
                 {"output_per_s", per_s(s.output_tokens)}};
  j["ttft_ms"] = quantiles_json(s.first_token);
  j["tpot_ms"] = quantiles_json(s.per_token);
  j["request_ms"] = quantiles_json(s.whole);
  j["goodput"] = {{"definition",
                   "finished requests whose first token came within slo_ttft_ms and whose mean time per "
                   "further token is within slo_tpot_ms"},
                  {"slo_ttft_ms", ms(s.about.slo_first_token.count())},
                  {"slo_tpot_ms", ms(s.about.slo_per_token.count())},
                  {"requests", s.within_slo},
                  {"requests_per_s", per_s(s.within_slo)},
                  {"share_of_submitted", part(s.within_slo, s.submitted)}};
  j["hit_rate"] = {{"definition",
                    "blocks: longest stored prefix found over complete blocks asked for; tokens: reused "
                    "after the backtrack of hit_length over input tokens"},
                   {"blocks", part(s.hit_blocks, s.asked_blocks)},
                   {"tokens", part(s.hit_tokens, s.matched_tokens)},
                   {"asked_blocks", s.asked_blocks},
                   {"hit_blocks", s.hit_blocks}};
  json pools;
  constexpr const char* names[] = {"prefill", "decode"};
  for (size_t p = 0; p < 2; ++p)
    pools[names[p]] = {{"ranks", s.pools[p].ranks},
                       {"steps", s.pools[p].steps},
                       {"tokens", s.pools[p].tokens},
                       {"in_steps", six(s.pools[p].in_steps)},
                       {"achieved_over_balanced", six(s.pools[p].achieved_over_balanced)}};
  pools["definition"] =
      "in_steps: rank time inside steps over ranks x run; achieved_over_balanced: cost-model work done in the middle "
      "80 % "
      "of the run over ranks x that time (1: work spread perfectly, at saturation)";
  j["pools"] = std::move(pools);
  j["bytes"] = {{"messages", s.bytes[0]},   {"handoff", s.bytes[1]}, {"store_write", s.bytes[2]},
                {"store_read", s.bytes[3]}, {"experts", s.bytes[4]}, {"repair", s.bytes[5]}};
  j["economics"] = {{"revenue", six(s.account.revenue)},
                    {"cost", six(s.account.cost)},
                    {"revenue_per_gpu_hour", six(s.account.revenue_per_gpu_hour)},
                    {"cost_per_gpu_hour", six(s.account.cost_per_gpu_hour)},
                    {"cost_per_output_mtoken", six(s.account.cost_per_output_mtoken)},
                    {"saved_by_hits", six(s.account.saved_by_hits)}};
  j["faults"] = faults_json(s);
  j["violation"] = s.violation.empty() ? json(nullptr) : json(s.violation);
  j["timeline"] = timeline_json(s);
  return j;
}

}  // namespace troupe::sim
