// A simulated cluster: virtual nodes from the ordinary configuration, each with its node agent and the role actors that
// a live process would have, engines that only take time, disks in memory, one agenda, one seed.
//
//   world w; w.start(); load feeds requests into w.submit(); w.run_until(...); faults call kill, cut, ...
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/director.hpp"
#include "actors/cluster/node_agent.hpp"
#include "actors/protocol/front.hpp"
#include "runtime/config/config.hpp"
#include "runtime/sim/cost_host.hpp"
#include "runtime/sim/directory.hpp"
#include "runtime/sim/disk_host.hpp"
#include "runtime/sim/network.hpp"
#include "runtime/sim/probe.hpp"

namespace troupe::sim {

/// What a world is made of.
struct world_options {
  config::settings settings;
  uint64_t seed = 1;
  std::shared_ptr<const policies::cost_model> cost;
  std::function<void(const cost_host&, const kernels::step_result&)> on_step;  // may be empty
};

/// What a node is for; a node keeps it over its lives.
enum class node_kind : uint8_t { director, front, prefill, decode, storage };

class node_parts;

/// One virtual node.
struct world_node {
  std::string name;  // "director", "front/0", "prefill-3/1", "decode-0/7", "storage/2": the seat it wants
  node_kind kind = node_kind::front;
  uint32_t index = 0;  // among the nodes of its kind
  size_t number = 0;   // in the network
  bool running = false;
  int32_t pid = 0;
  actors::directory_actor directory;
  actors::node_agent_actor agent;
  actors::entrypoint_actor entrypoint;  // of a front that has its role
  std::shared_ptr<node_parts> parts;
  std::unique_ptr<node_clock> clock;
  std::unique_ptr<disk_cabinet> cabinet;  // of a storage node
  double slowness = 1;
};

/// Not thread safe. Faults and submissions come from the driver or the agenda, never from an actor's handler.
class world {
 public:
  /// Errors: those of the model's folder; invalid_argument for a configuration that cannot be simulated.
  static result<std::unique_ptr<world>> make(world_options options);
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  /// Starts every node's process.
  void start();
  /// Runs until `done` or until `limit` of virtual time from now; returns done(). `done` is asked between any two
  /// things that happen.
  bool run_until(const std::function<bool()>& done, nanoseconds limit);
  void run_for(nanoseconds d) {
    run_until([] { return false; }, d);
  }
  /// Every seat is filled and ready, and the fronts that are up know all schedulers. Asks them: takes some virtual
  /// time.
  bool serving();
  /// Runs until serving() or for `limit`; unavailable: what the director says is missing.
  result<void> wait_serving(nanoseconds limit);

  nanoseconds now() const { return agenda_.now(); }
  agenda& events() { return agenda_; }
  network& net() { return *net_; }
  plane& wires() { return *plane_; }
  const config::settings& settings() const { return options_.settings; }
  const kernels::model_facts& facts() const { return facts_; }
  /// How the cluster's blocks are named; nothing where it has no cache.
  const std::optional<kv::hash_scheme>& cache() const { return cache_; }
  uint64_t seed() const { return options_.seed; }
  /// For what is drawn from outside of the actors.
  rng& random() { return random_; }
  uint64_t handled() { return coordinator::of(*system_).handled(); }
  uint64_t held() { return coordinator::of(*system_).held(); }
  uint64_t hash() { return coordinator::of(*system_).hash(); }
  const engine_meeting& engines() const { return *meeting_; }

  std::vector<world_node>& nodes() { return nodes_; }
  /// The node of that kind and index; null: there is none.
  world_node* find(node_kind kind, uint32_t index);
  uint32_t count(node_kind kind) const;
  /// Front processes that are up and have an entrypoint, in order.
  std::vector<world_node*> fronts();
  /// Gives a request to a front; false: it has no entrypoint.
  bool submit(world_node& front, actors::client_submit request);

  /// Asks an actor and runs until the answer is there.
  template <class Answer, class Handle, class Query>
  result<Answer> ask(const Handle& to, Query q) {
    if (!to) return fail(errc::unavailable, "there is nobody to ask");
    auto out = std::make_shared<std::optional<result<Answer>>>();
    const auto node = caf::actor_cast<caf::strong_actor_ptr>(to)->node();
    actors::spawn_on<probe_state<Handle, Query, Answer>>(*system_, node, coordinator::of(*system_).unit(), to, q, out);
    run_until([&] { return out->has_value(); }, std::chrono::seconds(6));
    if (!out->has_value()) return fail(errc::timeout, "no answer");
    return std::move(**out);
  }
  result<actors::status_report> status() { return ask<actors::status_report>(director_, actors::status_query{}); }

  // What can be broken. Nothing happens to a node that is not running, unless said otherwise.

  /// The process ends.
  void kill(world_node& n, crash_kind how);
  /// A supervisor starts it again, with a new incarnation; a director with a higher epoch. Only if it is not running.
  void restart(world_node& n);
  /// The node is asked to drain and leave, as by SIGTERM.
  void leave(world_node& n, nanoseconds grace);
  /// SIGSTOP and SIGCONT.
  void freeze(world_node& n, bool on);
  /// Messages, steps and disk calls take `factor` times as long; 1: as they should.
  void slow(world_node& n, double factor);
  /// Bytes from one node to another are swallowed; one way. Also of nodes that are down.
  void cut(const world_node& from, const world_node& to, bool on);
  /// Their connections end; `told`: at once, else as by a timeout.
  void break_link(const world_node& a, const world_node& b, crash_kind how);
  /// The node's wall clock moves.
  void jump_clock(world_node& n, nanoseconds by) { n.clock->offset += by; }

 private:
  friend class node_parts;
  explicit world(world_options options);
  result<void> prepare();
  void start_process(world_node& n);
  void forget(world_node& n);
  void start_director(world_node& n);

  struct system_config : caf::actor_system_config {
    system_config();
  };

  world_options options_;
  rng random_;
  agenda agenda_;
  system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<network> net_;
  std::unique_ptr<plane> plane_;
  engine_commons commons_;
  std::unique_ptr<engine_meeting> meeting_;
  kernels::model_facts facts_;
  std::optional<kv::hash_scheme> cache_;
  double scale_ = 1;
  listeners listeners_;
  actors::director_actor director_;
  std::vector<world_node> nodes_;
  uint64_t director_epoch_ = 0;
  int32_t next_pid_ = 1000;
};

}  // namespace troupe::sim
