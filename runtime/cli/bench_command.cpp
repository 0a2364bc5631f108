// troupe bench: a load against a running cluster.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"
#include "runtime/cli/http_client.hpp"
#include "runtime/cli/load/report.hpp"
#include "runtime/cli/load/run.hpp"
#include "runtime/node/status_client.hpp"

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

struct serve_options : cluster_options {
  std::string base_url, director, model, trace, input = "64-256", output = "16-64";
  double speed = 1, rate = 0, duration_s = 0, cancel_share = 0, slow_share = 0, temperature = 0, silence_s = 60;
  uint64_t limit = 0;
  uint32_t concurrency = 0, block_tokens = kv::trace_block_tokens, one_in = 1;
  int64_t seed = -1;
  bool loop = false;
};

nanoseconds in_seconds(double s) { return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(s)); }

// Server, model and its facts; the director's address where it is known.
struct found_server {
  load_target target;
  uint32_t context = UINT32_MAX;
  std::string director;
};

result<found_server> find_server(const serve_options& o) {
  found_server out;
  out.director = o.director;
  out.target.model = o.model;
  if (o.base_url.empty()) {
    TROUPE_TRY(auto file, o.find());
    for (const auto& front : file.fronts) {
      TROUPE_TRY(const auto server, config::parse_address(front));
      out.target.servers.push_back(server);
    }
    if (out.director.empty()) out.director = file.director;
  } else {
    TROUPE_TRY(const auto server, parse_base_url(o.base_url));
    out.target.servers.push_back(server);
  }
  if (const char* key = std::getenv("TROUPE_API_KEY")) out.target.api_key = key;
  http_request q;
  q.server = out.target.servers.at(0);  // all fronts serve the same
  q.target = "/v1/models";
  q.api_key = out.target.api_key;
  TROUPE_TRY(auto models, fetch(q));
  const auto j = nlohmann::json::parse(models.body, nullptr, false);
  if (models.status != 200 || !j.is_object() || !j.contains("data") || !j["data"].is_array() || j["data"].empty())
    return fail(models.status == 503 ? errc::unavailable : errc::invalid_argument, "{}/v1/models: {}", q.server.text(),
                error_text(models));
  const nlohmann::json* entry = nullptr;
  for (const auto& m : j["data"])
    if (m.is_object() && (out.target.model.empty() || m.value("id", "") == out.target.model)) {
      entry = &m;
      break;
    }
  if (entry == nullptr) return fail(errc::invalid_argument, "{} does not serve {}", q.server.text(), out.target.model);
  out.target.model = entry->value("id", "");
  out.context = entry->value("max_model_len", UINT32_MAX);
  // Any server takes these few ids; ours says how many there are.
  out.target.vocabulary = std::max(4u, entry->value("vocab_size", 256u));
  return out;
}

result<load_options> load_of(const serve_options& o, uint64_t seed, uint32_t context) {
  load_options l;
  if (!o.trace.empty()) {
    TROUPE_TRY(l.trace, kv::read_trace_file(o.trace));
    l.trace = some_conversations(std::move(l.trace), o.one_in, seed);
    if (l.trace.empty()) return fail(errc::invalid_argument, "{}: one in {} conversations is none", o.trace, o.one_in);
  }
  l.block_tokens = o.block_tokens;
  l.speed = o.speed;
  l.loop = o.loop;
  l.rate = o.rate;
  l.limit = o.limit;
  l.duration = in_seconds(o.duration_s);
  if (l.limit == 0 && l.duration == nanoseconds(0) && l.trace.empty()) l.limit = 64;
  TROUPE_TRY(l.input, parse_token_range(o.input));
  TROUPE_TRY(l.output, parse_token_range(o.output));
  l.cancel_share = o.cancel_share;
  l.slow_share = o.slow_share;
  l.context = context;
  l.seed = seed;
  return l;
}

json load_json(const serve_options& o, const load_options& l, const load_target& t) {
  json j;
  j["trace"] = o.trace.empty() ? json(nullptr) : json(o.trace);
  if (!o.trace.empty()) {
    j["scale"] = l.speed;
    j["block_tokens"] = l.block_tokens;
    j["one_in"] = o.one_in;
    j["loop"] = l.loop;
  } else {
    j["input_tokens"] = o.input;
  }
  j["output_tokens"] = o.output;
  j["rate"] = l.rate > 0 ? json(l.rate) : json(nullptr);
  j["limit_requests"] = l.limit > 0 ? json(l.limit) : json(nullptr);
  j["duration_s"] = o.duration_s > 0 ? json(o.duration_s) : json(nullptr);
  j["concurrency"] = t.concurrency;
  j["cancel_share"] = l.cancel_share;
  j["slow_client_share"] = l.slow_share;
  j["temperature"] = o.temperature;
  j["seed"] = l.seed;
  return j;
}

// The ranks of the cluster, asked before and after.
class rank_watch {
 public:
  explicit rank_watch(const std::string& director) {
    if (director.empty()) return;
    const auto address = config::parse_address(director);
    if (!address) return;
    director_ = *address;
    net_.emplace(node::net_options{});
    before_ = take();
    began_ = steady_clock().now();
  }
  /// null when the cluster could not be asked both times.
  json report() {
    if (!before_) return nullptr;
    const auto after = take();
    return after ? ranks_json(*before_, *after, steady_clock().now() - began_) : json(nullptr);
  }

 private:
  std::optional<node::cluster_picture> take() {
    auto p = node::take_picture(*net_, director_, std::chrono::seconds(3));
    if (!p) {
      tell("troupe bench serve: no figures of the ranks: {}\n", p.error().message);
      return std::nullopt;
    }
    return std::move(*p);
  }
  std::optional<node::actor_net> net_;
  config::address director_;
  std::optional<node::cluster_picture> before_;
  nanoseconds began_{0};
};

int run(const serve_options& o) {
  auto server = find_server(o);
  if (!server) return complain("bench serve", server.error().message, code_for(server.error()));
  const uint64_t seed = o.seed >= 0 ? static_cast<uint64_t>(o.seed) : entropy_seed() >> 12;
  auto load = load_of(o, seed, server->context);
  if (!load) return complain("bench serve", load.error().message, usage);
  load_target& target = server->target;
  target.temperature = static_cast<float>(o.temperature);
  target.silence = in_seconds(o.silence_s);
  auto plan = load_plan::make(std::move(*load));
  if (!plan) return complain("bench serve", plan.error().message, usage);
  // Without times of their own requests keep `concurrency` running; with times it is only a bound.
  target.concurrency = o.concurrency > 0 ? o.concurrency : plan->timed() ? 256 : 16;
  const json asked = load_json(o, plan->options(), target);
  json servers = json::array();
  for (const auto& s : target.servers) servers.push_back(s.text());
  tell("{} at {}, seed {}\n", target.model, fmt::join(servers.get<std::vector<std::string>>(), ", "), seed);
  rank_watch ranks(server->director);
  const auto summary = run_load(std::move(*plan), target, steady_clock(), [](const load_progress& p) {
    const auto s = std::chrono::duration_cast<std::chrono::seconds>(p.since_start).count();
    if (s > 10 && s % 10 != 0) return;
    tell("{:5} s: {} sent, {} running, {} finished, {} failed, {} tokens\n", s, p.so_far->sent, p.running,
         p.so_far->finished, p.so_far->failed, p.so_far->tokens);
  });
  json j{{"model", target.model}, {"servers", servers}, {"load", asked}};
  j.update(to_json(summary));
  j["cluster"] = ranks.report();
  fmt::print("{}\n", j.dump(2, ' ', false, json::error_handler_t::replace));
  std::fflush(stdout);
  tell("{}", to_text(summary));
  if (summary.stopped) return complain("bench serve", "stopped; the report is of what was done", interrupted);
  if (summary.sent == 0)
    return complain("bench serve",
                    summary.skipped > 0
                        ? fmt::format("nothing was sent: no request fits the context of {} tokens; {}", server->context,
                                      o.trace.empty() ? "ask for shorter prompts or answers"
                                                      : "a smaller --block-tokens makes the trace's shorter")
                        : "nothing was sent",
                    failed);
  return summary.failed == 0 ? ok : failed;
}

void add_serve(CLI::App& bench, context& ctx) {
  auto o = std::make_shared<serve_options>();
  CLI::App* c = bench.add_subcommand("serve", "A load of streaming completions against a running cluster's HTTP front");
  o->add_to(*c);
  const auto share = CLI::Range(0.0, 1.0);
  auto* url = c->add_option("--base-url", o->base_url,
                            "Address of the gateway, http://HOST:PORT[/v1] (an IP address), instead of a cluster on "
                            "this machine");
  c->add_option("--director", o->director, "With --base-url: HOST:PORT of the cluster's director, for the ranks' times")
      ->needs(url);
  c->add_option("--model", o->model, "Model to ask for; the first one served by default");
  auto* trace = c->add_option("--trace", o->trace, "Play a trace in the format of the Mooncake release (JSON lines)");
  c->add_option("--scale", o->speed, "The trace's clock runs so many times as fast")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1e6))
      ->needs(trace);
  c->add_option("--block-tokens", o->block_tokens,
                "Tokens that one hash id of the trace stands for; all its lengths scale along (512: as recorded)")
      ->capture_default_str()
      ->check(CLI::Range(1u, 65536u))
      ->needs(trace);
  c->add_option("--one-in", o->one_in,
                "Play one in so many of the trace's conversations; with a larger --scale their turns come closer")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1'000'000u))
      ->needs(trace);
  c->add_flag("--loop", o->loop,
              "Begin the trace again at its end, with new prompts, until --duration or "
              "--limit-requests")
      ->needs(trace);
  c->add_option("--limit-requests", o->limit, "Requests in all; without a trace and a duration 64")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  c->add_option("--duration", o->duration_s, "Seconds in which requests are sent; running ones then finish")
      ->check(CLI::Range(0.001, 1e7));
  c->add_option("--concurrency", o->concurrency,
                "Requests at once: kept up (16) where requests have no times, else a bound (256)")
      ->check(CLI::Range(1u, 4096u));
  c->add_option("--rate", o->rate, "Requests per second, at random (exponential) distances")
      ->check(CLI::Range(1e-4, 1e5));
  c->add_option("--input-tokens", o->input, "Length of a prompt without a trace, N or N-M")
      ->capture_default_str()
      ->excludes(trace);
  c->add_option("--output-tokens", o->output, "Length of an answer where the trace does not say, N or N-M")
      ->capture_default_str();
  c->add_option("--temperature", o->temperature, "Of sampling")->capture_default_str()->check(CLI::Range(0.0, 2.0));
  c->add_option("--cancel-share", o->cancel_share, "Share of requests whose client leaves before the end")
      ->check(share);
  c->add_option("--slow-client-share", o->slow_share,
                "Share of requests whose client reads 256 bytes every 20 ms; they are left out of the latencies")
      ->check(share);
  c->add_option("--silence", o->silence_s, "Seconds without a byte after which a request has failed")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e5));
  c->add_option("--seed", o->seed, "Draws lengths, prompts, times and who leaves; a fresh one is printed by default")
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 52)));
  c->footer(
      "JSON on stdout (docs/benchmark.md names its members), progress on stderr. Answers always have the length that "
      "was\n"
      "drawn. The API key, where one is needed, comes from TROUPE_API_KEY. Ctrl-C closes what runs and reports what "
      "was done.\n"
      "Exit codes: 0 done, 1 a request failed or none was sent, 2 wrong command line or trace, 3 no cluster, 130 "
      "Ctrl-C.\n"
      "Examples:\n  troupe bench serve --concurrency 32 --limit-requests 200\n"
      "  troupe bench serve --rate 20 --duration 60 --input-tokens 100-1000 --output-tokens 64\n"
      "  troupe bench serve --trace conversation_trace.jsonl --scale 8 --one-in 16 --block-tokens 64 --duration 120");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace

void add_bench(CLI::App& app, context& ctx) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a running cluster");
  bench->require_subcommand(1);
  bench->footer("docs/benchmark.md shows how to benchmark a cluster.");
  add_serve(*bench, ctx);
}

}  // namespace troupe::cli
