#include "runtime/cli/sim_simple.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/config/units.hpp"
#include "runtime/sim/report/compare.hpp"
#include "runtime/sim/workload/simple.hpp"

namespace troupe::cli {
namespace {

double rounded_rate(double v) { return std::round(v * 1e6) / 1e6; }

result<nlohmann::ordered_json> read_summary(const std::string& file) {
  std::ifstream in(file);
  if (!in) return fail(errc::io, "{}: cannot be read", file);
  auto j = nlohmann::ordered_json::parse(in, nullptr, false);
  if (j.is_discarded())
    return fail(errc::invalid_argument, "{}: is not JSON; a summary of `troupe sim` expected", file);
  return j;
}

int run_compare(const std::string& a, const std::string& b, double least_percent) {
  const auto first = read_summary(a), second = read_summary(b);
  for (const auto* r : {&first, &second})
    if (!*r) return complain("sim compare", r->error().message, usage);
  const auto c = sim::compare_summaries(*first, *second);
  if (!c) return complain("sim compare", c.error().message, usage);
  fmt::print("{}\n", c->dump(2));
  tell("a: {}\nb: {}\nWhat differs by {} % or more:\n{}", a, b, least_percent,
       sim::comparison_text(*c, least_percent / 100));
  return ok;
}

}  // namespace

void workload_choice::add_to(CLI::App& c) {
  c.add_option("--trace", trace, "Requests to play: *.jsonl (Mooncake) or *.csv (Azure); without: drawn ones")
      ->option_text("FILE");
  c.add_option("--loops", loops, "Play a trace so many times, with prompts of their own; 0: without end [1]");
  c.add_option("--rate", rate, "2: everything arrives in half the time [1]");
  c.add_option("--scale", scale, "0.5: prompts and answers of half the length [1]");
  c.add_option("--first", first, "Only so many requests");
  c.add_option("--for", length, "Virtual time of the load, e.g. 10m; without: until the workload is over");
  c.add_flag("--as-recorded", as_recorded,
             "Leave a trace's times as they are; without: requests of one instant (recorders have bins) are spread");
  c.add_option("--per-hour", per_hour, "Drawn sessions per hour of virtual time [3600]");
  c.add_option("--arrivals", arrivals, "How drawn sessions begin: poisson, bursts, diurnal [poisson]")
      ->check(CLI::IsMember({"poisson", "bursts", "diurnal"}));
  c.add_option("--agents", agents_percent, "Percent of drawn sessions that are agents [20]")
      ->check(CLI::Range(0u, 100u));
}

result<sim::workload_options> workload_choice::take(uint32_t block_tokens) const {
  const auto named = [](const char* option, const error& e) { return fail(e.code, "{}: {}", option, e.message); };
  sim::workload_options o;
  o.trace = trace, o.loops = loops, o.first = first, o.seed = seed, o.block_tokens = block_tokens;
  o.spread = !as_recorded;
  const auto l = sim::parse_ratio(scale), r = sim::parse_ratio(rate);
  if (!l) return named("--scale", l.error());
  if (!r) return named("--rate", r.error());
  o.length = *l, o.rate = *r;
  if (!length.empty()) {
    const auto d = config::parse_duration(length);
    if (!d) return named("--for", d.error());
    o.duration = *d;
  }
  using kind = sim::arrival_options::kind;
  o.generator.arrivals.how = arrivals == "bursts"    ? kind::bursts
                             : arrivals == "diurnal" ? kind::diurnal
                                                     : kind::poisson;
  o.generator.arrivals.per_hour = per_hour;
  o.generator.agent_permille = agents_percent * 10;
  return o;
}

void sim_simple_choice::add_to(CLI::App& c) {
  c.add_option("--place", place,
               "Simple mode: round_robin and prefix_load over private caches, or one shared cache of the size of all")
      ->check(CLI::IsMember({"round_robin", "prefix_load", "shared"}))
      ->capture_default_str();
  c.add_option("--caches", caches, "Simple mode: number of caches")
      ->check(CLI::Range(1u, 65'536u))
      ->capture_default_str();
  c.add_option("--cache-tokens", cache_tokens, "Simple mode: room of each in tokens; default: no limit");
  c.add_option("--block-tokens", block_tokens, "Simple mode: tokens of a block")
      ->check(CLI::IsMember({512, 256, 128, 64, 32}))
      ->capture_default_str();
}

int run_sim_simple(const workload_choice& load, const sim_simple_choice& o) {
  const auto options = load.take(o.block_tokens);
  if (!options) return complain("sim", options.error().message, usage);
  const auto place = sim::parse_simple_place(o.place);
  if (!place) return complain("sim", place.error().message, usage);
  auto source = sim::open_workload(*options);
  if (!source) return complain("sim", source.error().message, usage);
  const auto c = sim::run_simple(**source, {*place, o.caches, o.cache_tokens});
  if (!c) return complain("sim", c.error().message, usage);
  nlohmann::ordered_json j;
  j["workload"] = (*source)->text();
  j["definition"] =
      "a request hits the longest prefix of its blocks that its cache has; then all its blocks are stored or touched, "
      "first "
      "to last; the least recently used go; a partial last block counts as a block";
  j["place"] = o.place;
  j["caches"] = o.caches;
  j["cache_tokens"] = o.cache_tokens > 0 ? nlohmann::ordered_json(o.cache_tokens) : nlohmann::ordered_json(nullptr);
  j["block_tokens"] = o.block_tokens;
  j["requests"] = c->requests;
  j["blocks"] = c->blocks;
  j["hit_blocks"] = c->hit_blocks;
  j["block_hit_rate"] = rounded_rate(c->block_hit_rate());
  j["token_hit_rate"] = rounded_rate(c->token_hit_rate());
  j["requests_per_cache"] = c->requests_of;
  j["missed_blocks_per_cache"] = c->missed_of;
  fmt::print("{}\n", j.dump(2));
  return ok;
}

void add_sim_compare(CLI::App& sim, context& ctx) {
  struct options {
    std::string a, b;
    double least = 1;
  };
  auto o = std::make_shared<options>();
  CLI::App* c = sim.add_subcommand("compare", "Two summaries of `troupe sim` side by side; JSON to stdout");
  c->add_option("A", o->a, "A summary (JSON)")->required();
  c->add_option("B", o->b, "Another one")->required();
  c->add_option("--least", o->least, "Show to people what differs by so many percent or more")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  c->callback([o, &ctx] { ctx.result = run_compare(o->a, o->b, o->least); });
}

}  // namespace troupe::cli
