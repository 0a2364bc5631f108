// A whole cluster of our actors in one actor_system: virtual nodes, virtual time, stand-in engines, one seed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/director.hpp"
#include "actors/cluster/node_agent.hpp"
#include "actors/protocol/messages.hpp"
#include "actors/serving/roles.hpp"
#include "runtime/sim/directory.hpp"
#include "tests/actors/stand_in_host.hpp"

namespace troupe::actors {

/// What a client saw of its request, and what it should have seen.
struct client : std::enable_shared_from_this<client> {
  client_submit request;
  std::vector<kernels::token_id> tokens;
  int ends = 0;
  bool in_order = true;
  client_event last;
  nanoseconds ended{0};

  std::vector<kernels::token_id> expected() const {
    std::vector<kernels::token_id> out;
    for (uint32_t i = 0; i < request.stop.max_tokens; ++i) {
      out.push_back(token_at(request.sampling.seed, static_cast<uint32_t>(request.prompt.size()) + i));
      if (out.back() == 1 && !request.stop.ignore_eos) break;
    }
    return out;
  }
};

struct cluster_options {
  uint64_t seed = 1;
  uint32_t prefill = 1, decode = 2, fronts = 1, spares = 0;
  role_changes changes;  // on: ranks take any seat, and each role may have all of them
  sim::link_options link;
  stand_in_options engine;
  bool cache = false;     // a block store, see sim_cluster::store
  prefix_options prefix;  // its times
  scheduler_options scheduler;
  eplb_options balance;
  entrypoint_options entrypoint;
  cluster_options() { engine.limits.handoffs = 6; }
};

class sim_cluster {
 public:
  explicit sim_cluster(cluster_options o);
  ~sim_cluster();

  /// Runs until `done` or until `limit` of virtual time from now; returns done().
  bool run_until(const std::function<bool()>& done, nanoseconds limit);
  void run_for(nanoseconds d) {
    run_until([] { return false; }, d);
  }
  /// Every seat is ready and the front is attached to every scheduler. Fails the test otherwise.
  void wait_ready();

  /// Sends a request to the front; the client is kept in `clients`.
  std::shared_ptr<client> submit(client_submit r, const std::string& front = "front-0");
  void cancel(const std::shared_ptr<client>& c, const std::string& front = "front-0") {
    if (auto& e = nodes_.at(front).entrypoint) post(e, client_cancel{c->request.id});
  }
  /// A random request: prompt 1..120 tokens, up to 40 new ones.
  client_submit random_request();

  /// Starts a process on an existing node: after a crash, or a spare ("spare-0" ...), which nobody has started.
  void start_node(const std::string& name);
  void crash(const std::string& name, sim::crash_kind kind);
  /// As a supervisor would: the process is started again.
  void restart(const std::string& name);

  /// The director's process dies; it is started again with the next epoch.
  void crash_director();
  void start_director();
  void cut_both(const std::string& a, const std::string& b, bool on);

  /// Asks an actor and runs until the answer is there.
  template <class Answer, class Handle, class Query>
  Answer ask_now(const Handle& handle, Query q);
  status_report status() { return ask_now<status_report>(director_, status_query{}); }

  /// Pages, slots, queues of every rank that is up: nothing is left over. Fails the test otherwise.
  void expect_clean();
  /// One end each, tokens in order and equal to the formula.
  void expect_clients_right(bool all_finished);

  struct vnode {
    size_t index = 0;
    std::string wanted_seat;
    int32_t pid = 0;
    directory_actor directory;
    node_agent_actor agent;
    entrypoint_actor entrypoint;
    std::map<std::string, any_handle> named;
  };
  vnode& node(const std::string& name) { return nodes_.at(name); }
  bool has(const std::string& name) const { return nodes_.contains(name); }
  sim::network& net() { return *net_; }
  sim::agenda& agenda() { return agenda_; }
  rng& random() { return random_; }
  caf::actor_system& system() { return *system_; }
  sim::coordinator& scheduler() { return sim::coordinator::of(*system_); }
  director_actor director() { return director_; }
  uint64_t hash() { return sim::coordinator::of(*system_).hash(); }
  uint64_t handled() { return sim::coordinator::of(*system_).handled(); }
  std::vector<std::shared_ptr<client>> clients;
  std::shared_ptr<stand_in_store> store;  // where the options ask for one

 private:
  class factory;
  prefix_options prefix() const;
  struct config : caf::actor_system_config {
    config() { register_messages(*this); }
  };

  cluster_options options_;
  const std::shared_ptr<stand_in_memories> memories_ = std::make_shared<stand_in_memories>();
  rng random_;
  sim::agenda agenda_;
  config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<sim::network> net_;
  sim::listeners listeners_;
  director_actor director_;
  std::map<std::string, vnode> nodes_;
  uint64_t director_epoch_ = 0;
  int32_t next_pid_ = 1000;
  uint64_t next_client_ = 0;
};

/// Asks once and keeps the answer.
template <class Handle, class Query, class Answer>
class probe_state {
 public:
  using interface = actor_type<takes<tick>>;
  static inline const char* name = "probe";
  explicit probe_state(interface::pointer self) : self_(self), links_(self) {}
  interface::behavior_type make_behavior(Handle to, Query q, std::shared_ptr<std::vector<Answer>> out) {
    links_.ask(
        self_, to, std::chrono::seconds(30), q,
        [this, out](const Answer& a) {
          out->push_back(a);
          self_->quit();
        },
        [this](const error& e) {
          ADD_FAILURE() << "probe: " << e.message;
          self_->quit();
        });
    return {[](const tick&) {}};
  }

 private:
  interface::pointer self_;
  peer_links links_;
};

template <class Answer, class Handle, class Query>
Answer sim_cluster::ask_now(const Handle& handle, Query q) {
  auto out = std::make_shared<std::vector<Answer>>();
  const auto node = caf::actor_cast<caf::strong_actor_ptr>(handle)->node();
  spawn_on<probe_state<Handle, Query, Answer>>(*system_, node, sim::coordinator::of(*system_).unit(), handle, q, out);
  run_until([&] { return !out->empty(); }, std::chrono::seconds(60));
  EXPECT_FALSE(out->empty()) << "no answer";
  return out->empty() ? Answer{} : out->front();
}

/// Every client got its end.
inline bool all_ended(const sim_cluster& c) {
  for (auto& x : c.clients)
    if (x->ends == 0) return false;
  return true;
}

}  // namespace troupe::actors
