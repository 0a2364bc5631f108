#include "runtime/node/engine_host.hpp"

#include <algorithm>

#include "kernels/engine/cost_engine.hpp"
#include "kernels/engine/cpu_engine.hpp"
#include "kernels/ep/local_group.hpp"
#include "kernels/model/damage.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/cost_file.hpp"
#include "runtime/node/open_model.hpp"
#include "runtime/node/roles.hpp"
#include "runtime/transport/process_transport.hpp"

namespace troupe::node {
namespace {

// By this long all members of a group view must have answered; the director waits longer before it gives up on a rank.
constexpr auto connect_timeout = std::chrono::seconds(5);

// A configuration may allow more than the model was made for: then the model's own limit holds.
uint32_t usable_context(const kernels::model_config& model, uint32_t limit) {
  return model.max_position_embeddings == 0 ? limit : std::min(limit, model.max_position_embeddings);
}

}  // namespace

engine_host::engine_host(host_options options)
    : options_(std::move(options)),
      limits_(engine_limits_of(options_.rank, options_.engine)),
      thread_([this] { run(); }) {}

engine_host::~engine_host() {
  stop();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  engine_.reset();
  transport_.reset();  // pulls under way end here, while there still is a queue to put their ends into
}

void engine_host::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;  // what was posted before the end is still done: callers wait for it
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

void engine_host::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void engine_host::open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) {
  {
    std::lock_guard lock(gate_->mutex);
    gate_->sink = std::move(sink);
  }
  post([this, done = std::move(done)] { done(load()); });
}

void engine_host::regroup(const actors::group_view& view, std::function<void(result<void>)> done) {
  post([this, view, done = std::move(done)] { done(regroup_now(view)); });
}

void engine_host::stop() {
  {
    std::lock_guard lock(gate_->mutex);
    gate_->sink = nullptr;
  }
  post([this] {
    if (engine_) engine_->stop();
    stopped_.store(true, std::memory_order_release);
  });
}

result<std::string> engine_host::load() {
  const nanoseconds begin = steady_clock().now();
  if (options_.engine.kind == "cost") {
    TROUPE_TRY(model_, kernels::load_cost_outline(options_.model));
    TROUPE_TRY(cost_, config::load_cost_model(options_.engine.cost_model));
    timer_ = kernels::make_live_timer();
  } else {
    TROUPE_TRY(model_, kernels::load_model(options_.model));
  }
  if (auto damage = kernels::find_damage(model_->files, kernels::damage_scan::light); !damage.empty())
    return fail(errc::corrupt, "{}; fetch the files again (`troupe doctor --model {}` reads every tensor)",
                kernels::damage_text(damage), options_.model);
  limits_.max_context = usable_context(model_->config, limits_.max_context);
  uint64_t window = std::max(1u, model_->config.sliding_window);
  uint64_t needed = (uint64_t{limits_.max_context} + window - 1) / window;
  if (needed > limits_.pages) {
    return fail(
        errc::invalid_argument,
        "{} pages of {} tokens cannot hold one sequence of max_context {}: raise `pages` to {} or lower `max_context`",
        limits_.pages, window, limits_.max_context, needed);
  }
  if (options_.reachable) {
    transport::options t;
    t.shared_memory = options_.transport.shared_memory;
    t.deadline = options_.transport.peer_deadline;
    TROUPE_TRY(transport_, transport::make_process_transport(t));
    TROUPE_TRY(pages_, transport_->allocate(size_t{limits_.pages} * model_->plan.page_bytes));
    place_bytes_ = cost_ ? kernels::cost_state_bytes : kernels::handoff_bytes(*model_);
    if (limits_.handoffs > 0) {
      TROUPE_TRY(states_, transport_->allocate(size_t{limits_.handoffs} * place_bytes_));
      memory_ = {transport_->address(), pages_->descriptor().encode(), states_->descriptor().encode()};
    }
    if (options_.snapshots > 0 && !cost_) {
      TROUPE_TRY(snapshots_, transport_->allocate(options_.snapshots * model_->plan.snapshot_bytes()));
      snapshot_memory_ = {transport_->address(), snapshots_->descriptor().encode()};
      limits_.snapshots = options_.snapshots;
    }
  } else {
    limits_.handoffs = 0;
  }
  std::string address = "alone";
  if (options_.ranks > 1) {
    kernels::ep::ep_endpoint_options o;
    o.shared_memory = options_.transport.shared_memory;
    o.incarnation = options_.incarnation;
    TROUPE_TRY(endpoint_, kernels::ep::make_ep_endpoint(o));
    address = endpoint_->address();
  }
  log::info("{}: {} layers, {} experts, mapped in {} ms", options_.model, model_->config.num_hidden_layers,
            model_->config.n_routed_experts,
            std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock().now() - begin).count());
  return address;
}

result<std::unique_ptr<kernels::ep::group>> engine_host::make_group(const actors::group_view& view) {
  auto count = static_cast<uint32_t>(view.members.size());
  auto me = std::find_if(view.members.begin(), view.members.end(),
                         [this](const auto& m) { return m.rank == options_.index; });
  if (me == view.members.end())
    return fail(errc::invalid_argument, "group view {} of {} does not hold rank {}", view.epoch.value, view.group,
                options_.index);
  // Engines without weights exchange headers only.
  auto shape = cost_ ? kernels::ep::group_shape{.ranks = count, .hidden = 1, .top_k = 1, .max_rows = 1}
                     : kernels::engine_group_shape(*model_, limits_, count);
  if (count == 1) return kernels::ep::make_local_group(shape);
  kernels::ep::group_view v;
  v.epoch = view.epoch;
  v.rank = static_cast<uint32_t>(me - view.members.begin());
  for (const auto& m : view.members) v.members.push_back({m.inc.value, m.ep_address});
  v.shape = shape;
  v.deadline = options_.transport.step_deadline;
  v.connect_timeout = connect_timeout;
  return endpoint_->connect(v);
}

void engine_host::pull(const actors::transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
                       std::function<void(result<uint64_t>)> done) {
  auto route = route_of(from, pages, place);
  if (!route) return post([done = std::move(done), e = route.error()] { done(fail(e)); });
  kernels::sequence_export want{from.rows, from.state_bytes, from.state_checksum, {}};
  for (const auto& page : from.pages) want.page_checksums.push_back(page.checksum);
  kernels::pull_handoff(
      *transport_, model_->plan, *route, std::move(want), [this](std::function<void()> task) { post(std::move(task)); },
      [this, peer = route->peer, place, rows = from.rows, done = std::move(done)](result<uint64_t> r) {
        if (!r && r.error().code == errc::peer_lost) transport_->remove_peer(peer);
        if (!r) return done(std::move(r));
        const auto state = states_->bytes().subspan(size_t{place} * place_bytes_, place_bytes_);
        if (cost_) {
          auto ok = kernels::check_cost_state(engine_->facts(), rows, state);
          return done(ok ? std::move(r) : result<uint64_t>(fail(ok.error())));
        }
        auto head = kernels::head_of(*model_, engine_->facts(), rows, state);
        done(head ? std::move(r) : result<uint64_t>(fail(head.error())));
      });
}

void engine_host::pull_snapshot(const actors::snapshot_source& from, uint32_t place,
                                std::function<void(result<void>)> done) {
  const auto route = [&]() -> result<kernels::snapshot_route> {
    const uint64_t bytes = model_->plan.snapshot_bytes();
    if (!snapshots_ || from.bytes != bytes || place >= limits_.snapshots)
      return fail(errc::invalid_argument, "a snapshot of {} B into place {}", from.bytes, place);
    kernels::snapshot_route r;
    TROUPE_TRY(r.from, transport::remote_region::decode(from.region));
    TROUPE_TRY(r.peer, transport_->add_peer(from.address));
    r.from_offset = from.offset;
    r.to = snapshots_;
    r.to_offset = place * bytes;
    r.bytes = bytes;
    r.crc = from.crc;
    return r;
  }();
  if (!route) return post([done = std::move(done), e = route.error()] { done(fail(e)); });
  kernels::pull_snapshot(
      *transport_, *route, [this](std::function<void()> task) { post(std::move(task)); },
      [this, peer = route->peer, done = std::move(done)](result<void> r) {
        if (!r && r.error().code == errc::peer_lost) transport_->remove_peer(peer);
        done(std::move(r));
      });
}

result<kernels::handoff_route> engine_host::route_of(const actors::transfer_grant& from,
                                                     const std::vector<kernels::page_id>& pages, uint32_t place) {
  if (!states_ || !engine()) return fail(errc::unavailable, "this rank has no memory that peers can reach");
  if (from.state_bytes > place_bytes_)
    return fail(errc::corrupt, "a state of {} B, at most {} B fit", from.state_bytes, place_bytes_);
  kernels::handoff_route r;
  TROUPE_TRY(r.from_pages, transport::remote_region::decode(from.memory.pages));
  TROUPE_TRY(r.from_states, transport::remote_region::decode(from.memory.states));
  TROUPE_TRY(r.peer, transport_->add_peer(from.memory.address));
  r.from_state = uint64_t{from.state_place} * place_bytes_;
  r.to_pages = pages_;
  r.to_states = states_;
  r.to_state = uint64_t{place} * place_bytes_;
  for (const auto& page : from.pages) r.from.push_back(page.page);
  r.to = pages;
  return r;
}

result<void> engine_host::regroup_now(const actors::group_view& view) {
  if (!model_) return fail(errc::unavailable, "the checkpoint is not loaded");
  TROUPE_TRY(auto group, make_group(view));
  auto placement =
      kernels::initial_placement(*model_, static_cast<uint32_t>(view.members.size()), options_.rank.redundant_experts,
                                 kernels::first_placement_version(view.epoch));
  if (engine_) return engine_->regroup(std::move(group), std::move(placement));
  auto sink = [gate = gate_](kernels::step_result r) {
    std::lock_guard lock(gate->mutex);
    if (gate->sink) gate->sink(std::move(r));
  };
  if (cost_) {
    kernels::cost_engine_config c;
    c.outline = model_;
    c.model = cost_;
    c.timer = timer_;
    c.limits = limits_;
    if (pages_) c.pages = pages_->bytes();
    if (states_) c.handoff = states_->bytes();
    c.group = std::move(group);
    c.placement = std::move(placement);
    c.replay_mode = options_.engine.replay;
    c.adaptive_drafts = true;
    TROUPE_TRY(engine_, kernels::make_cost_engine(std::move(c), std::move(sink)));
    engine_pointer_.store(engine_.get(), std::memory_order_release);
    return {};
  }
  kernels::cpu_engine_config c;
  c.weights = model_;
  c.limits = limits_;
  c.isa = options_.engine.isa == "auto" ? "" : options_.engine.isa;
  if (pages_) c.pages = pages_->bytes();
  if (states_) c.handoff = states_->bytes();
  if (snapshots_) c.snapshots = snapshots_->bytes();
  c.group = std::move(group);
  c.placement = std::move(placement);
  c.split.window = options_.rank.split_window;
  c.replay_mode = options_.engine.replay;
  c.adaptive_drafts = true;
  TROUPE_TRY(engine_, kernels::make_cpu_engine(std::move(c), std::move(sink)));
  engine_pointer_.store(engine_.get(), std::memory_order_release);
  return {};
}

result<kernels::model_facts> read_facts(const config::settings& s, const std::string& name, uint32_t limit) {
  TROUPE_TRY(auto model, open_model(s));
  kernels::engine_limits limits;
  limits.max_context = usable_context(model->config, limit);
  kernels::model_facts facts;
  if (s.engine.kind == "cost") {
    TROUPE_TRY(auto cost, config::load_cost_model(s.engine.cost_model));
    TROUPE_TRY(facts, kernels::cost_model_facts(*model, *cost, limits, ""));
  } else {
    TROUPE_TRY(facts, kernels::cpu_model_facts(*model, limits, ""));
  }
  facts.name = name;
  return facts;
}

}  // namespace troupe::node
