// How a simulated cluster is broken.
#include "runtime/sim/node_parts.hpp"
#include "runtime/sim/world.hpp"

namespace troupe::sim {
namespace {

// The kernel closes the connections of a process that ends.
constexpr nanoseconds process_end_noticed = std::chrono::milliseconds(3);

}  // namespace

void world::forget(world_node& n) {
  n.running = false;
  n.directory = nullptr;
  n.agent = nullptr;
  n.entrypoint = nullptr;
  listeners_.erase(n.name);
  if (n.kind == node_kind::director) director_ = nullptr;
}

void world::kill(world_node& n, crash_kind how) {
  if (!n.running) return;
  const bool silent = how == crash_kind::silent;
  // Engines first: ending the actors would stop them in good order, and the group would hear that a rank leaves.
  if (n.parts) n.parts->crash(silent ? nanoseconds::max() : process_end_noticed);
  net_->crash(n.number, how);
  plane_->kill(n.number, silent);
  forget(n);
  n.slowness = 1;
  net_->faults().slow(n.number, 1);
  if (!silent) return;
  // Its peers' connections end by their timeout.
  agenda_.after(settings().cluster.connection_timeout, [this, &n, life = net_->incarnation(n.number)] {
    if (net_->up(n.number) || net_->incarnation(n.number) != life) return;
    for (auto& other : nodes_)
      if (&other != &n) net_->break_link(n.number, other.number, crash_kind::silent);
  });
}

void world::restart(world_node& n) {
  if (n.running) return;
  if (!net_->up(n.number)) net_->restart(n.number);
  plane_->revive(n.number);
  start_process(n);
}

void world::leave(world_node& n, nanoseconds grace) {
  if (!n.running) return;
  if (!n.agent) return kill(n, crash_kind::killed);  // a director has nothing to drain
  auto* agent = caf::actor_cast<caf::abstract_actor*>(n.agent);
  agent->attach_functor([this, &n, pid = n.pid](const caf::error&) {
    agenda_.after(nanoseconds{0}, [this, &n, pid] {
      if (n.running && n.pid == pid) kill(n, crash_kind::killed);
    });
  });
  actors::post(n.agent, actors::stop_request{std::chrono::duration_cast<std::chrono::milliseconds>(grace).count()});
}

void world::freeze(world_node& n, bool on) {
  if (!n.running) return;
  net_->freeze(n.number, on);
  plane_->freeze(n.number, on);
  if (n.parts) n.parts->freeze(on);
  if (!on) return;
  agenda_.after(settings().cluster.connection_timeout, [this, &n, pid = n.pid] {
    if (!n.running || n.pid != pid || !net_->faults().is_frozen(n.number)) return;
    for (auto& other : nodes_)
      if (&other != &n) net_->break_link(n.number, other.number, crash_kind::silent);
  });
}

void world::slow(world_node& n, double factor) {
  if (!n.running) return;
  n.slowness = factor;
  net_->faults().slow(n.number, factor);
  if (n.parts) n.parts->slow(factor);
}

void world::cut(const world_node& from, const world_node& to, bool on) {
  net_->faults().cut(from.number, to.number, on);
  if (!on) return;
  agenda_.after(settings().cluster.connection_timeout, [this, a = from.number, b = to.number] {
    if (net_->faults().is_cut(a, b)) net_->break_link(a, b, crash_kind::silent);
  });
}

void world::break_link(const world_node& a, const world_node& b, crash_kind how) {
  net_->break_link(a.number, b.number, how);
  plane_->break_link(a.number, b.number);
}

}  // namespace troupe::sim
