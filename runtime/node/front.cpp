#include "runtime/node/front.hpp"

#include <caf/scoped_actor.hpp>

#include <filesystem>

#include "runtime/base/log.hpp"
#include "runtime/node/engine_host.hpp"
#include "runtime/node/store_link.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::node {
namespace {

constexpr auto canary_limit = std::chrono::seconds(10);

result<std::shared_ptr<const recipe::recipe>> load_recipe(const config::model_section& m) {
  if (m.tokenizer.empty()) {
    TROUPE_TRY(auto r, recipe::recipe::load(m.path));
    return std::shared_ptr<const recipe::recipe>(std::move(r));
  }
  TROUPE_TRY(auto tokenizer, recipe::tokenizer::load(m.tokenizer));
  TROUPE_TRY(auto r, recipe::recipe::make(std::move(tokenizer)));
  return std::shared_ptr<const recipe::recipe>(std::move(r));
}

gateway::options server_options(const config::front_section& f, uint32_t index, const std::string& model) {
  gateway::options o;
  const auto listen = f.listen_of(index);
  o.address = listen.host == "localhost" ? "127.0.0.1" : listen.host;
  o.port = listen.port;
  o.model_name = model;
  o.key_file = f.api_keys;
  o.io_threads = f.io_threads;
  o.encode_threads = f.encode_threads;
  o.max_connections = f.max_connections;
  o.max_requests = f.max_requests;
  o.max_body_bytes = f.max_body;
  o.request_timeout = f.request_timeout;
  o.idle_timeout = f.idle_timeout;
  o.keep_alive = f.keep_alive;
  o.slow_client_timeout = f.slow_client_timeout;
  return o;
}

}  // namespace

front::front(actor_net& net, kernels::model_facts facts, std::string model, std::optional<kv::hash_scheme> blocks)
    : net_(net),
      generator_(std::move(facts), std::move(blocks)),
      metrics_(model),
      model_(std::move(model)),
      pulled_(metrics_.counter("troupe_handoffs_total", "Sequences whose state the decode side pulled from prefill.")),
      pulled_bytes_(metrics_.counter("troupe_handoff_bytes_total", "Bytes of pages and state pulled.")),
      pulled_seconds_(metrics_.counter("troupe_handoff_seconds_total",
                                       "Time from the start of a pull to its last checksum, summed.")),
      computed_again_(metrics_.counter("troupe_handoff_failures_total",
                                       "Sequences whose prompt was computed again because its state did not come.")),
      balanced_(
          metrics_.counter("troupe_places_total", "Ranks chosen for requests; kind: by whom.", {{"kind", "balancer"}})),
      alone_(metrics_.counter("troupe_places_total", "Ranks chosen for requests; kind: by whom.", {{"kind", "front"}})),
      matches_(metrics_.counter("troupe_cache_matches_total", "Prompts whose blocks were looked for in the store.")),
      matches_failed_(metrics_.counter("troupe_cache_match_failures_total",
                                       "Prompts placed as a miss because the store did not answer in time.")),
      hit_tokens_(metrics_.counter("troupe_cache_hit_tokens_total", "Prompt tokens that were not computed.")),
      miss_tokens_(metrics_.counter("troupe_cache_miss_tokens_total", "Prompt tokens that were computed.")) {}

front::~front() {
  if (server_) server_->stop();
}

result<std::unique_ptr<front>> front::start(const config::settings& s, uint32_t index, actor_net& net) {
  std::string name = s.model.name.empty() ? std::filesystem::path(s.model.path).filename().string() : s.model.name;
  const uint32_t context =
      s.prefill.ranks > 0 ? std::min(s.prefill.max_context, s.decode.max_context) : s.decode.max_context;
  TROUPE_TRY(auto facts, read_facts(s, name, context));
  TROUPE_TRY(auto blocks, cache_scheme(s));
  TROUPE_TRY(auto recipe, load_recipe(s.model));
  gateway::options options = server_options(s.front, index, name);
  TROUPE_TRY(options.sampling, gateway::read_sampling_defaults(s.model.path));
  uint64_t seed = entropy_seed();
  log::info("seeds of requests that name none come from {}", seed);
  std::unique_ptr<front> f(new front(net, std::move(facts), name, std::move(blocks)));
  TROUPE_TRY(f->server_, gateway::server::start(std::move(options), std::move(recipe), f->generator_, f->metrics_,
                                                steady_clock(), rng(seed)));
  return f;
}

void front::attach(actors::entrypoint_actor entrypoint) {
  {
    std::lock_guard lock(mutex_);
    entrypoint_ = entrypoint;
    ++attached_;
  }
  generator_.attach(std::move(entrypoint));
}

// What the rebalancers of the groups have said last.
void front::show(const std::vector<actors::eplb_report>& experts) {
  for (const auto& e : experts) {
    const observe::labels group{{"group", e.group}};
    auto gauge = [&](const char* name, const char* help) { return metrics_.gauge(name, help, group); };
    gauge("troupe_eplb_lb", "Busiest rank over mean rank in rows for experts, of the last window.").set(e.lb_measured);
    gauge("troupe_eplb_lb_planned", "The same, as the last placement promised.").set(e.lb_after);
    gauge("troupe_eplb_placement_version", "Placement in force.").set(static_cast<double>(e.placement.value));
    gauge("troupe_eplb_looks", "Windows of expert loads looked at.").set(static_cast<double>(e.looks));
    gauge("troupe_eplb_moves", "Placements that took effect.").set(static_cast<double>(e.moves));
    gauge("troupe_eplb_experts_loaded", "Experts loaded for them.").set(static_cast<double>(e.loaded));
    gauge("troupe_eplb_abandoned", "Moves given up.").set(static_cast<double>(e.abandoned));
  }
}

bool front::look_after() {
  actors::entrypoint_actor entrypoint;
  uint64_t attached;
  {
    std::lock_guard lock(mutex_);
    entrypoint = entrypoint_;
    attached = attached_;
  }
  bool was = generator_.ready();
  actors::front_report report;
  bool answered = false;
  reason_ = "the front process has not joined the cluster yet";
  if (entrypoint) {
    reason_ = "the entrypoint does not answer";
    caf::scoped_actor self{net_.system()};
    self->request(entrypoint, std::chrono::seconds(2), actors::front_query{})
        .receive(
            [&](actors::front_report& r) {
              report = std::move(r);
              answered = true;
              reason_ = r.draining ? "draining" : "no decode rank is attached";
            },
            [](caf::error&) {});
  }
  if (answered) export_counts(report, attached);
  show(report.experts);
  bool can = entrypoint && report.ready && !report.draining;
  if (can && proven_ != attached) {
    auto proof = run_canary(generator_, canary_limit);
    if (proof)
      proven_ = attached;
    else
      reason_ = proof.error().message;
    if (!proof && canary_failure_ != reason_) log::warn("not ready: {}", reason_);
    canary_failure_ = proof ? "" : reason_;
  }
  bool is = can && proven_ == attached;
  if (is) reason_.clear();
  generator_.set_ready(is);
  if (is && !was) log::info("ready: a canary request went through");
  if (was && !is) log::warn("not ready: {}", reason_);
  return is != was;
}

void front::export_counts(const actors::front_report& r, uint64_t attached) {
  if (counted_of_ != attached) counted_ = {};
  counted_of_ = attached;
  pulled_.add(static_cast<double>(r.pulled - counted_.pulled));
  pulled_bytes_.add(static_cast<double>(r.pulled_bytes - counted_.pulled_bytes));
  pulled_seconds_.add(static_cast<double>(r.pulled_ns - counted_.pulled_ns) / 1e9);
  computed_again_.add(static_cast<double>(r.computed_again - counted_.computed_again));
  balanced_.add(static_cast<double>(r.balanced - counted_.balanced));
  alone_.add(static_cast<double>(r.alone - counted_.alone));
  matches_.add(static_cast<double>(r.matches - counted_.matches));
  matches_failed_.add(static_cast<double>(r.matches_failed - counted_.matches_failed));
  hit_tokens_.add(static_cast<double>(r.hit_tokens - counted_.hit_tokens));
  miss_tokens_.add(static_cast<double>(r.miss_tokens - counted_.miss_tokens));
  counted_ = r;
}

}  // namespace troupe::node
