#include "runtime/sim/world.hpp"

#include <fmt/format.h>

#include "actors/protocol/messages.hpp"
#include "runtime/node/roles.hpp"
#include "runtime/node/store_options.hpp"
#include "runtime/sim/node_parts.hpp"

namespace troupe::sim {
namespace {

using namespace actors;

// All nodes of a simulation start at one instant; their views would be most of the work of its begin.
constexpr nanoseconds view_every = std::chrono::milliseconds(5);

double rate_per_ns(uint64_t bytes_per_second) { return static_cast<double>(bytes_per_second) / 1e9; }

node_kind kind_of(role what) {
  switch (what) {
    case role::front:
      return node_kind::front;
    case role::prefill:
      return node_kind::prefill;
    case role::decode:
      return node_kind::decode;
    default:
      return node_kind::storage;
  }
}

}  // namespace

world::system_config::system_config() { register_messages(*this); }

world::world(world_options options) : options_(std::move(options)), random_(options_.seed, 9), agenda_(options_.seed) {}

result<std::unique_ptr<world>> world::make(world_options options) {
  std::unique_ptr<world> w(new world(std::move(options)));
  if (auto ok = w->prepare(); !ok) return fail(ok.error());
  return w;
}

result<void> world::prepare() {
  const auto& s = options_.settings;
  if (!options_.cost) return fail(errc::invalid_argument, "sim.cost: a simulation needs a cost model");
  TROUPE_TRY(commons_.outline, kernels::load_cost_outline(s.model.path));
  auto limits = node::engine_limits_of(s.decode, s.engine);
  TROUPE_TRY(facts_, kernels::cost_model_facts(*commons_.outline, *options_.cost, limits, s.engine.replay));
  if (s.storage.nodes > 0) {
    auto named = s;
    named.storage.block_tokens = facts_.window;
    if (named.storage.fingerprint.empty()) named.storage.fingerprint = facts_.fingerprint;
    TROUPE_TRY(cache_, node::storage_scheme(named));
  }
  const uint64_t page = options_.cost->kv.page_bytes;
  if (page > 0) scale_ = static_cast<double>(page) / commons_.outline->plan.page_bytes;

  coordinator::install(config_, agenda_, options_.seed);
  system_ = std::make_unique<caf::actor_system>(config_);
  system_->await_actors_before_shutdown(false);
  link_options messages;
  messages.latency = s.sim.latency;
  messages.jitter = s.sim.jitter;
  messages.bytes_per_ns = rate_per_ns(s.sim.control_rate);
  if (s.sim.profile == "hostile") {
    messages.loss = s.sim.loss / 1000.0;
    messages.duplication = s.sim.duplication / 1000.0;
    messages.reordering = s.sim.reordering / 1000.0;
  }
  net_ = std::make_unique<network>(*system_, agenda_, options_.seed, messages);
  net_->encode_all(s.sim.encode);
  plane_options p;
  p.link = messages;
  p.link.bytes_per_ns = p.link.ingress_per_ns = rate_per_ns(s.sim.node_rate);
  p.link.link_per_ns = rate_per_ns(s.sim.link_rate);
  p.scale = scale_;
  p.deadline = s.transport.peer_deadline;
  plane_ = std::make_unique<plane>(agenda_, options_.seed, net_->faults(), p);
  commons_.events = &agenda_;
  commons_.wires = plane_.get();
  commons_.timer = std::make_shared<agenda_timer>(agenda_);
  commons_.cost = options_.cost;
  commons_.load_time = s.sim.load_time;
  commons_.step_deadline = s.transport.step_deadline;
  commons_.seed = options_.seed;
  commons_.on_step = options_.on_step;
  meeting_ = std::make_unique<engine_meeting>(commons_);

  std::vector<world_node> all(1);
  all[0].name = "director";
  all[0].kind = node_kind::director;
  std::map<node_kind, uint32_t> counts;
  for (const auto& g : node::wanted_groups(s))
    for (uint32_t i = 0; i < g.count; ++i) {
      auto& n = all.emplace_back();
      n.name = fmt::format("{}/{}", g.group, i);
      n.kind = kind_of(g.what);
      n.index = counts[n.kind]++;
    }
  nodes_ = std::move(all);  // from here on they stay where they are
  for (auto& n : nodes_) {
    n.number = net_->add(n.name);
    n.clock = std::make_unique<node_clock>(agenda_);
  }
  return {};
}

world::~world() {
  if (!net_) return;
  director_ = nullptr;
  listeners_.clear();
  for (auto& n : nodes_) {
    if (n.parts) n.parts->crash(nanoseconds::max());
    forget(n);
  }
  net_.reset();  // ends every actor
  agenda_.clear();
  for (auto& n : nodes_) n.parts = nullptr;
  agenda_.clear();
  system_.reset();
}

void world::start() {
  for (auto& n : nodes_) start_process(n);
}

void world::start_process(world_node& n) {
  n.running = true;
  if (n.kind == node_kind::director) return start_director(n);
  const auto& s = settings();
  n.parts = std::make_shared<node_parts>(*this, n);
  n.pid = n.parts->life();
  n.directory = spawn_directory(*net_, n.number, listeners_, *system_);
  node_agent_options o;
  o.self.cluster = s.cluster.name;
  o.self.name = o.self.host = n.name;
  o.self.port = 1;
  o.self.pid = n.pid;
  o.self.wanted_seat = n.name;
  o.roles = node::make_role_factory(
      s, n.parts, [&n](entrypoint_actor e) { n.entrypoint = std::move(e); }, n.name);
  o.directory = n.directory;
  n.agent = spawn_node_agent(*system_, net_->id(n.number), coordinator::of(*system_).unit(), std::move(o));
  listeners_[n.name] = caf::actor_cast<caf::strong_actor_ptr>(n.agent);
}

void world::start_director(world_node& n) {
  auto d = node::director_options_of(settings(), cluster_epoch{++director_epoch_});
  d.view_every = view_every;
  director_ = spawn_director(*system_, net_->id(n.number), coordinator::of(*system_).unit(), std::move(d));
  listeners_["director"] = caf::actor_cast<caf::strong_actor_ptr>(director_);
}

bool world::run_until(const std::function<bool()>& done, nanoseconds limit) {
  auto& c = coordinator::of(*system_);
  const auto end = agenda_.now() + limit;
  while (!done()) {
    if (c.has_job()) {
      c.run_job();
    } else if (!agenda_.empty() && agenda_.next() <= end) {
      agenda_.run_next();
    } else {
      agenda_.pass(end);
      return done();
    }
  }
  return true;
}

bool world::serving() {
  auto s = status();
  if (!s || !s->complete) return false;
  for (auto* f : fronts()) {
    auto r = ask<front_report>(f->entrypoint, front_query{});
    if (!r || r->draining || r->prefill_schedulers != settings().prefill.ranks ||
        r->decode_schedulers != settings().decode.ranks)
      return false;
  }
  return fronts().size() == settings().front.count;
}

result<void> world::wait_serving(nanoseconds limit) {
  const auto end = now() + limit;
  while (now() < end) {
    if (serving()) return {};
    run_for(std::chrono::milliseconds(250));
  }
  auto s = status();
  std::string why = s ? "" : s.error().message;
  if (s)
    for (size_t i = s->events.size() > 8 ? s->events.size() - 8 : 0; i < s->events.size(); ++i)
      why += "\n  " + s->events[i];
  return fail(errc::unavailable, "the cluster does not serve after {} s: {}",
              std::chrono::duration_cast<std::chrono::seconds>(limit).count(), why);
}

world_node* world::find(node_kind kind, uint32_t index) {
  for (auto& n : nodes_)
    if (n.kind == kind && n.index == index) return &n;
  return nullptr;
}

uint32_t world::count(node_kind kind) const {
  uint32_t out = 0;
  for (const auto& n : nodes_) out += n.kind == kind ? 1 : 0;
  return out;
}

std::vector<world_node*> world::fronts() {
  std::vector<world_node*> out;
  for (auto& n : nodes_)
    if (n.kind == node_kind::front && n.running && n.entrypoint) out.push_back(&n);
  return out;
}

bool world::submit(world_node& front, client_submit request) {
  if (!front.entrypoint) return false;
  post(front.entrypoint, std::move(request));
  return true;
}

}  // namespace troupe::sim
