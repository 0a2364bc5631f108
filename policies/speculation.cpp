#include "policies/speculation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe::policies {
namespace {

constexpr uint32_t enough_steps = 3, enough_requests = 24, check_longest = 512;
constexpr uint32_t probe_shortest = 512, probe_longest = 4096, probe_never = 1u << 20;
constexpr double off_below = 1.0, on_above = 1.02, beyond_doubt = 1.5, memory = 1.0 / 32, probes_may_cost = 0.01,
                 remembered_requests = 256;

void average(double& value, double sample, uint32_t seen, double weight = memory) {
  value += (sample - value) * std::max(weight, 1.0 / (seen + 1));  // a plain mean at first
}

// Few requests: their luck has to be averaged over more steps.
double weight_of(double requests) { return std::min(memory, requests / remembered_requests); }

double on_ns(const step_cost_table& t, double requests, double verified, double other) {
  return step_cost(t.draft, 0, requests) + step_cost(t.verify, t.stairs, requests + other + verified);
}

double off_ns(const step_cost_table& t, double requests, double other) {
  return step_cost(t.verify, t.stairs, requests + other);
}

double gain_of(const speculation_cell& c, const step_cost_table& t, double requests, double other) {
  const double with = on_ns(t, requests, c.verified * requests, other) * c.slower_on,
               without = off_ns(t, requests, other) * c.slower_off;
  return with > 0 && without > 0 ? c.accepted * without / with : 1;
}

// Steps without drafting between two trials, so that those cost no more than they may.
uint32_t rarest_probe(const speculation_cell& c, const step_cost_table& t, double requests, double other) {
  const double without = off_ns(t, requests, other) * c.slower_off;
  if (!(without > 0)) return probe_shortest;
  const double with = on_ns(t, requests, c.verified * requests, other) * c.slower_on;
  const double trial = std::max<double>(enough_steps, std::ceil(enough_requests / requests));
  const double lost = trial * (with / without - c.accepted);  // in steps without drafting
  return static_cast<uint32_t>(std::clamp<double>(lost / probes_may_cost, probe_shortest, probe_never));
}

}  // namespace

bool is_decided(const speculation_cell& c) { return c.seen_on >= enough_steps && c.seen_requests >= enough_requests; }

speculation_bucket bucket_of(uint32_t requests, uint64_t context) {
  auto log2 = [](uint64_t x) { return x == 0 ? 0u : static_cast<uint32_t>(std::bit_width(x) - 1); };
  return {log2(requests), log2(context)};
}

speculation_plan plan_speculation(const speculation_cell& c, const step_cost_table& table, uint32_t requests,
                                  uint32_t other_rows) {
  speculation_plan plan;
  plan.gain = is_decided(c) ? gain_of(c, table, requests, other_rows) : 1;
  if (c.on && c.check_in == 0) {
    plan.draft = false;
    plan.reason = "does not draft for 3 steps: what steps without drafts take is measured anew";
  } else if (!is_profiled(table)) {
    plan.reason = "drafts: no profiled step cost to compare with";
  } else if (!is_decided(c)) {
    plan.reason = fmt::format("drafts: only {} steps were measured", c.seen_on);
  } else if (c.on) {
    plan.reason =
        fmt::format("drafts: {:.2f} tokens per request and step, {:.2f} times the rate without", c.accepted, plan.gain);
  } else {
    plan.draft = false;
    plan.reason = fmt::format("does not draft: {:.2f} tokens per request and step are {:.2f} times the rate without",
                              c.accepted, plan.gain);
  }
  return plan;
}

result<void> observe(speculation_cell& c, const step_cost_table& table, const speculation_sample& s) {
  if (s.requests == 0 || s.tokens < s.requests || !(s.ns > 0) || !std::isfinite(s.ns) ||
      (!s.drafted && (s.verified > 0 || s.tokens > s.requests)) || s.tokens > uint64_t{s.requests} + s.verified) {
    return fail(errc::invalid_argument,
                "speculation: {} requests, {} verified, {} tokens in {} ns is no step {} drafting", s.requests,
                s.verified, s.tokens, s.ns, s.drafted ? "with" : "without");
  }
  const double requests = s.requests;
  if (s.drafted) {
    average(c.accepted, s.tokens / requests, c.seen_on, weight_of(requests));
    average(c.verified, s.verified / requests, c.seen_on, weight_of(requests));
    if (double t = on_ns(table, requests, s.verified, s.other_rows); t > 0) average(c.slower_on, s.ns / t, c.seen_on);
    c.seen_on += c.seen_on < UINT32_MAX;
    c.seen_requests += std::min(s.requests, UINT32_MAX - c.seen_requests);
  } else {
    if (double t = off_ns(table, requests, s.other_rows); t > 0) average(c.slower_off, s.ns / t, c.seen_off);
    c.seen_off += c.seen_off < UINT32_MAX;
  }
  if (!is_decided(c)) return {};
  if (c.on && s.drafted && c.check_in > 0 && --c.check_in == 0) {
    if (is_profiled(table) && gain_of(c, table, requests, s.other_rows) > beyond_doubt)
      c.check_in = c.check_every;
    else
      c.seen_off = 0;
  }
  if (c.on && !s.drafted && c.check_in == 0 && c.seen_off >= enough_steps)
    c.check_in = c.check_every = std::min(2 * c.check_every, check_longest);
  if (!is_profiled(table)) return {};
  const double gain = gain_of(c, table, requests, s.other_rows);
  if (c.on) {
    if (gain >= off_below) return {};
    c.on = false;
    c.probe_every = rarest_probe(c, table, requests, s.other_rows);
    c.probe_in = c.probe_every;
  } else if (gain > on_above) {
    c.on = true;
    c.check_in = c.check_every;
  } else if (s.drafted) {  // the trial that just ended changed nothing
    c.probe_every =
        std::max(std::min(2 * c.probe_every, probe_longest), rarest_probe(c, table, requests, s.other_rows));
    c.probe_in = c.probe_every;
  } else if (c.probe_in == 0 || --c.probe_in == 0) {
    c.seen_on = c.seen_requests = 0;  // undecided again: the next steps draft, and their plain mean counts
  }
  return {};
}

}  // namespace troupe::policies
