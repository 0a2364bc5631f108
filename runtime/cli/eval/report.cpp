#include "runtime/cli/eval/report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::cli {

using json = nlohmann::ordered_json;
using namespace kernels::measure;

namespace {

double per(double sum, uint64_t count) { return count ? sum / static_cast<double>(count) : 0; }
double share(uint64_t part, uint64_t whole) { return per(static_cast<double>(part), whole); }
double milliseconds(nanoseconds t) { return static_cast<double>(t.count()) * 1e-6; }

json to_json(const calibration& c) {
  json bins = json::array();
  for (const calibration_bin& b : c.bins())
    bins.push_back(
        {{"count", b.count}, {"predicted", per(b.predicted, b.count)}, {"happened", share(b.happened, b.count)}});
  return {{"samples", c.count()},
          {"expected_error", c.expected_error()},
          {"mean_predicted", c.mean_predicted()},
          {"mean_happened", c.mean_happened()},
          {"bins", bins}};
}

json to_json(const acceptance_row& a) {
  json slots = json::array();
  for (const draft_slot& s : a.seen.slots())
    slots.push_back({{"reached", s.reached}, {"rate", s.rate()}, {"cumulative", s.cumulative()}});
  json out{{"temperature", a.temperature},
           {"mean_accepted", a.seen.mean_length()},
           {"blocks", a.seen.blocks()},
           {"cut_blocks", a.seen.cut_blocks()},
           {"slots", slots},
           {"calibration", {{"cumulative", to_json(a.seen.cumulative())}, {"per_slot", to_json(a.seen.per_slot())}}}};
  if (auto s = a.seen.scaled())
    out["calibration"]["scaled"] = {{"temperatures", s->temperatures},
                                    {"before", s->before.expected_error()},
                                    {"after", s->after.expected_error()},
                                    {"samples", s->after.count()}};
  return out;
}

}  // namespace

json to_json(const eval_report& r) {
  json j{{"model", r.model}, {"fingerprint", r.fingerprint}, {"text", r.text}, {"isa", r.isa}, {"threads", r.threads}};
  if (r.loss) {
    const loss_sums& l = *r.loss;
    j["loss"] = {{"documents", l.documents},
                 {"tokens", l.tokens},
                 {"bytes", l.bytes},
                 {"nats_per_byte", per(l.nats, l.bytes)},
                 {"nats_per_token", per(l.nats, l.tokens)},
                 {"right", share(l.right, l.tokens)},
                 {"answer_tokens", l.answer_tokens},
                 {"nats_per_answer_token", per(l.answer_nats, l.answer_tokens)}};
  }
  if (r.agreement) {
    const next_agreement& a = *r.agreement;
    j["agreement"] = {{"with", r.agreement_with},
                      {"documents", a.documents},
                      {"documents_with_other_tokens", a.different},
                      {"positions", a.positions},
                      {"rate", a.rate()},
                      {"our_nats_per_byte", per(a.our_nats, a.bytes)},
                      {"their_nats_per_byte", per(a.their_nats, a.bytes)}};
  }
  if (!r.load.empty()) {
    j["load"] = json::array();
    for (const layer_load& l : r.load)
      j["load"].push_back({{"rows", l.rows}, {"max_over_mean", l.max_over_mean}, {"min_over_mean", l.min_over_mean}});
  }
  for (const acceptance_row& a : r.acceptance) j["acceptance"].push_back(to_json(a));
  if (r.replay) {
    const replay_agreement& a = *r.replay;
    j["replay"] = {{"cases", a.cases},
                   {"cases_joined", a.joined},
                   {"tokens_reused", a.reused},
                   {"positions", a.rows},
                   {"agreement", share(a.same, a.rows)},
                   {"first_positions", a.first_rows},
                   {"first_agreement", share(a.first_same, a.first_rows)},
                   {"flips", a.rows - a.same},
                   {"flips_far", a.flips_far},
                   {"nats_exact", a.nats_exact},
                   {"nats_bounded", a.nats_bounded}};
  }
  if (r.load_time) {
    json rows = json::array();
    for (const decode_speed& s : r.decode)
      rows.push_back({{"concurrent", s.concurrent},
                      {"drafts", to_string(s.drafts)},
                      {"tokens", s.tokens},
                      {"tokens_per_second", s.per_second()},
                      {"drafted", s.drafted},
                      {"accepted", s.accepted}});
    j["speed"] = {{"load_ms", milliseconds(r.load_time->total())},
                  {"load_model_ms", milliseconds(r.load_time->model)},
                  {"load_engine_ms", milliseconds(r.load_time->engine)},
                  {"prefill_prompt_tokens", r.prefill_tokens},
                  {"prefill_tokens_per_second", r.prefill},
                  {"decode", rows}};
  }
  if (!r.balance.empty()) {
    const balance_options& o = r.balance_options;
    json windows = json::array();
    for (const balance_window& w : r.balance)
      windows.push_back({{"steps", w.steps},
                         {"rows", w.rows},
                         {"placement", w.placement.value},
                         {"lb", w.lb},
                         {"lb_worst_layer", w.lb_worst},
                         {"plan_before", w.plan_before},
                         {"plan_after", w.plan_after},
                         {"experts_loaded", w.moved},
                         {"steps_of_move", w.move_steps},
                         {"lb_by_layer", w.layer_lb},
                         {"plan_after_by_layer", w.layer_plan},
                         {"step_us", w.step_us},
                         {"expert_us_busiest", w.busiest_expert_us},
                         {"expert_us_mean", w.mean_expert_us}});
    j["balance"] = {{"ranks", o.ranks},  {"redundant", o.redundant},       {"interval", o.interval},
                    {"slots", o.slots},  {"split_window", o.split_window}, {"loads_per_step", o.loads_per_step},
                    {"windows", windows}};
  }
  for (const sample& s : r.samples)
    j["samples"].push_back({{"question", s.question}, {"answer", s.answer}, {"ended", s.ended}});
  return j;
}

std::string to_text(const eval_report& r) {
  std::string out = fmt::format("{} ({}), {}, {} thread{}\ntext {}\n", r.model, r.fingerprint.substr(0, 12), r.isa,
                                r.threads, r.threads == 1 ? "" : "s", r.text);
  auto line = [&](auto format, const auto&... args) { out += fmt::format(fmt::runtime(format), args...) + "\n"; };
  if (r.loss) {
    const loss_sums& l = *r.loss;
    line("\nloss        {:.4f} nats/byte, {:.4f} nats/token, {:.1f} % of next tokens right", per(l.nats, l.bytes),
         per(l.nats, l.tokens), 100 * share(l.right, l.tokens));
    if (l.answer_tokens > 0) line("            answers alone: {:.4f} nats/token", per(l.answer_nats, l.answer_tokens));
    line("            {} documents, {} tokens, {} bytes", l.documents, l.tokens, l.bytes);
  }
  if (r.agreement) {
    const next_agreement& a = *r.agreement;
    line(
        "\nagreement   {:.3f} % of next tokens are those of {} ({} positions, {} documents; {} more have other tokens)",
        100 * a.rate(), r.agreement_with, a.positions, a.documents, a.different);
    line("            {:.4f} nats/byte here, {:.4f} there", per(a.our_nats, a.bytes), per(a.their_nats, a.bytes));
  }
  if (!r.load.empty()) {
    out += "\nload        layer   max/mean   min/mean\n";
    for (size_t i = 0; i < r.load.size(); ++i)
      line("            {:>5}   {:>8.2f}   {:>8.2f}", i, r.load[i].max_over_mean, r.load[i].min_over_mean);
  }
  for (const acceptance_row& a : r.acceptance) {
    line("\nacceptance  {:.2f} of {} drafts at temperature {} ({} blocks; {} more were cut short)",
         a.seen.mean_length(), a.seen.slots().size(), a.temperature, a.seen.blocks(), a.seen.cut_blocks());
    std::string rates = "            by slot:", sums = "            up to it:";
    for (const draft_slot& s : a.seen.slots()) {
      rates += fmt::format(" {:.3f}", s.rate());
      sums += fmt::format(" {:.3f}", s.cumulative());
    }
    out += rates + "\n" + sums + "\n";
    for (auto [name, c] : {std::pair{"cumulative", &a.seen.cumulative()}, std::pair{"by slot", &a.seen.per_slot()}})
      line("            calibration error, {}: {:.2f} % ({} samples; predicted {:.3f}, happened {:.3f})", name,
           100 * c->expected_error(), c->count(), c->mean_predicted(), c->mean_happened());
    if (auto s = a.seen.scaled())
      line(
          "            cumulative, scaled by temperatures fitted on the first half: {:.2f} % on the second (unscaled "
          "{:.2f} %)",
          100 * s->after.expected_error(), 100 * s->before.expected_error());
  }
  if (r.replay) {
    const replay_agreement& a = *r.replay;
    line("\nreplay      bounded against exact: {:.2f} % of next tokens are the same, of the first 32 {:.2f} %",
         100 * share(a.same, a.rows), 100 * share(a.first_same, a.first_rows));
    line(
        "            {} conversations ({} of them joined ones), {} positions; {} of {} flips were not near ties; "
        "{:.4f} nats/token against "
        "{:.4f}",
        a.cases, a.joined, a.rows, a.flips_far, a.rows - a.same, per(a.nats_bounded, a.rows),
        per(a.nats_exact, a.rows));
  }
  if (r.load_time) {
    line("\nspeed       loaded in {:.0f} ms (checkpoint {:.0f}, engine {:.0f})", milliseconds(r.load_time->total()),
         milliseconds(r.load_time->model), milliseconds(r.load_time->engine));
    line("            prefill {:.0f} tokens/s (a prompt of {})", r.prefill, r.prefill_tokens);
    out += "            concurrent     drafts   tokens/s   accepted/drafted\n";
    for (const decode_speed& s : r.decode)
      line("            {:>10}   {:>8}   {:>8.0f}   {}/{}", s.concurrent, to_string(s.drafts), s.per_second(),
           s.accepted, s.drafted);
  }
  if (!r.balance.empty()) {
    const balance_options& o = r.balance_options;
    line("\nbalance     {} ranks, {} redundant slots, {} requests each, split from {} steps", o.ranks, o.redundant,
         o.slots, o.split_window);
    out +=
        "            steps   lb      worst   planned            loaded   in steps   step us   experts us, "
        "busiest/mean\n";
    for (const balance_window& w : r.balance)
      line("            {:>5}   {:.3f}   {:.3f}   {:.3f} -> {:.3f}   {:>8}   {:>8}   {:>7.0f}   {:.0f}/{:.0f}", w.steps,
           w.lb, w.lb_worst, w.plan_before, w.plan_after, w.moved, w.move_steps, w.step_us, w.busiest_expert_us,
           w.mean_expert_us);
  }
  for (const sample& s : r.samples) out += "\n> " + s.question + "\n" + s.answer + (s.ended ? "\n" : " ...\n");
  return out;
}

}  // namespace troupe::cli
