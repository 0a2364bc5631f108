#include "runtime/sim/node_parts.hpp"

#include "runtime/node/store_options.hpp"

namespace troupe::sim {
namespace {

constexpr uint32_t link_lanes = 2;            // as the threads of a live process's way to the store
constexpr uint64_t link_bytes = 16ull << 20;  // for what is pulled; being read; being written
constexpr nanoseconds compute_time = std::chrono::microseconds(10);  // to check and copy a part
constexpr nanoseconds plan_time = std::chrono::milliseconds(20);     // to plan a placement
constexpr double memory_rate = 10;                                   // bytes per nanosecond

double per_ns(uint64_t bytes_per_second) { return static_cast<double>(bytes_per_second) / 1e9; }

}  // namespace

std::shared_ptr<actors::rank_host> node_parts::rank(const actors::role_assignment& seat,
                                                    const actors::node_identity& identity) {
  const auto& s = world_.settings();
  const bool prefill = seat.what == actors::role::prefill;
  auto host =
      std::make_shared<cost_host>(world_.commons_, *world_.meeting_, node_.number, seat, identity.inc.value,
                                  prefill ? static_cast<const config::ranks_section&>(s.prefill) : s.decode, s.engine);
  if (node_.slowness > 1) host->slow(static_cast<uint32_t>(node_.slowness * 1000));
  if (auto& old = ranks_[seat.seat()]) retired_.push_back(std::move(old));
  return ranks_[seat.seat()] = host;
}

std::shared_ptr<actors::storage_host> node_parts::storage(const actors::role_assignment& seat) {
  const auto& s = world_.settings();
  disk_host_options o;
  o.events = &world_.agenda_;
  o.wires = world_.plane_.get();
  o.wall = node_.clock.get();
  if (!node_.cabinet) node_.cabinet = std::make_unique<disk_cabinet>();
  o.cabinet = node_.cabinet.get();
  o.node = node_.number;
  o.seat = seat.index;
  o.storage = s.storage;
  o.scheme = *world_.cache_;
  o.latency = s.sim.disk_latency;
  o.bytes_per_ns = per_ns(s.sim.disk_rate) * s.storage.disks;
  o.scale = world_.scale_;
  o.seed = world_.seed() * 1'000'003 + node_.number * 64;
  auto host = std::make_shared<disk_host>(std::move(o));
  if (auto& old = storage_[seat.seat()]) retired_.push_back(std::move(old));
  return storage_[seat.seat()] = host;
}

const actors::prefix_options* node_parts::cache(const actors::role_assignment& seat) {
  const auto& s = world_.settings();
  if (!world_.cache_ || !s.cache.enabled) return nullptr;
  auto l = std::make_shared<link>();
  auto endpoint = world_.plane_->make(node_.number, true);
  if (!endpoint) return nullptr;
  l->endpoint = std::move(*endpoint);
  l->compute = std::make_shared<agenda_worker>(world_.agenda_, link_lanes, compute_time, memory_rate);
  l->options = node::prefix_options_of(s);
  l->options.store = actors::make_prefix_store(l->session);
  l->options.scheme = *world_.cache_;
  if (auto& old = links_[seat.seat()]) retired_.push_back(std::move(old));
  return &(links_[seat.seat()] = std::move(l))->options;
}

void node_parts::start_cache(const actors::role_context& context, actors::role_actors& role) {
  auto& l = links_.at(context.assignment.seat());
  actors::store_client_options c;
  c.keep = l;
  c.identity = context.identity;
  c.directory = context.directory;
  c.plane = l->endpoint;
  c.compute = l->compute.get();
  c.wall = node_.clock.get();
  c.scheme = l->options.scheme;
  c.client = node::client_options_of(world_.settings().storage);
  c.client.seed = world_.seed() * 1'000'003 + static_cast<uint64_t>(life_);
  c.client.read_window = c.client.write_window = link_bytes;
  c.staging_bytes = link_bytes;
  auto client = actors::spawn_store_client(context.parent, l->session, std::move(c));
  role.viewers.push_back(client);
  role.all.push_back(caf::actor_cast<actors::any_handle>(client));
}

std::shared_ptr<kv::worker> node_parts::planner() {
  if (!planner_) planner_ = std::make_shared<agenda_worker>(world_.agenda_, 1, plan_time, memory_rate);
  return planner_;
}

void node_parts::stopped(const actors::role_assignment& seat) {
  if (auto it = links_.find(seat.seat()); it != links_.end()) {
    it->second->session->close();
    retired_.push_back(std::move(it->second));
    links_.erase(it);
  }
  if (auto it = storage_.find(seat.seat()); it != storage_.end()) {
    it->second->stop();
    retired_.push_back(std::move(it->second));
    storage_.erase(it);
  }
  if (auto it = ranks_.find(seat.seat()); it != ranks_.end()) {
    it->second->stop();
    retired_.push_back(std::move(it->second));
    ranks_.erase(it);
  }
}

void node_parts::crash(nanoseconds noticed) {
  for (auto& [seat, host] : ranks_) host->crash(noticed);
  for (auto& [seat, host] : storage_) host->stop();
  for (auto& [seat, l] : links_) l->compute->hold(true);
}

void node_parts::freeze(bool on) {
  for (auto& [seat, host] : ranks_) host->freeze(on);
  for (auto& [seat, host] : storage_) host->freeze(on);
  for (auto& [seat, l] : links_) l->compute->hold(on);
}

void node_parts::slow(double factor) {
  for (auto& [seat, host] : ranks_) host->slow(static_cast<uint32_t>(factor * 1000));
  for (auto& [seat, host] : storage_) host->slow(factor);
  for (auto& [seat, l] : links_) l->compute->slow(factor);
}

}  // namespace troupe::sim
