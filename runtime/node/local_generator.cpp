#include "runtime/node/local_generator.hpp"

#include <unistd.h>
#include <caf/scoped_actor.hpp>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "actors/cluster/director.hpp"
#include "actors/cluster/node_agent.hpp"
#include "runtime/node/actor_net.hpp"
#include "runtime/node/engine_host.hpp"
#include "runtime/node/entrypoint_generator.hpp"
#include "runtime/node/live_parts.hpp"

namespace troupe::node {
namespace {

using namespace actors;
using namespace std::chrono_literals;

// The agents of this process's nodes by process name, filled before the directory gets its first request for one; and
// what the last cluster view said of their roles.
struct agent_table {
  std::mutex mutex;
  std::map<std::string, node_agent_actor> by_name;
  std::condition_variable changed;     // ready or failure
  bool ready = false;                  // every role is
  std::optional<std::string> failure;  // of a role that could not start; it stays like that
};

// The directory of a cluster that lives in one actor system: no dialling, the agents are at hand.
class table_directory {
 public:
  using interface = directory_actor;
  static inline const char* name = "table_directory";
  explicit table_directory(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(std::shared_ptr<agent_table> agents) {
    agents_ = std::move(agents);
    return {[this](const resolve_request& r) {
              auto to = self_->make_response_promise<promise<resolve_reply>>();
              node_agent_actor agent;
              {
                std::lock_guard lock(agents_->mutex);
                auto it = agents_->by_name.find(names_[r.key.node]);
                if (it != agents_->by_name.end()) agent = it->second;
              }
              links_.ask(
                  self_, agent, 2s, lookup_request{r.key.inc, r.key.name},
                  [to](const lookup_reply& x) mutable {
                    to.deliver(resolve_reply{x.outcome, x.handle});
                  },
                  [to](const error& e) mutable {
                    to.deliver(resolve_reply{to_status(e), nullptr});
                  });
              return to;
            },
            [this](const cluster_view& v) {
              for (const auto& n : v.nodes) names_[n.node] = n.name;
              learn(v);
            },
            [](const dial_request&) {}, [](const greeting&) {}, [](const tick&) {}};
  }

 private:
  void learn(const cluster_view& v) {
    size_t ready = 0;
    std::lock_guard lock(agents_->mutex);
    for (const auto& n : v.nodes) {
      for (const auto& r : n.roles) {
        if (r.state == role_state::failed) agents_->failure = r.text;
        ready += r.state == role_state::ready;
      }
    }
    agents_->ready = ready > 0 && ready == agents_->by_name.size();
    agents_->changed.notify_all();
  }

  interface::pointer self_;
  peer_links links_;
  std::shared_ptr<agent_table> agents_;
  std::map<node_number, std::string> names_;
};

class local_generator final : public gateway::generator {
 public:
  local_generator(config::settings s, kernels::model_facts facts)
      : settings_(std::move(s)), net_({2, 500ms, 10s, false}), inner_(std::move(facts)) {}

  ~local_generator() override {
    inner_.set_ready(false);
    inner_.attach({});
    caf::scoped_actor self{net_.system()};
    for (auto& [name, agent] : agents_->by_name) {
      self->request(agent, std::chrono::seconds(5), stop_request{0}).receive([](stop_reply&) {}, [](caf::error&) {});
      caf::anon_send_exit(agent, caf::exit_reason::user_shutdown);
    }
    for (const auto& h : {caf::actor_cast<any_handle>(director_), caf::actor_cast<any_handle>(directory_)}) {
      if (h) caf::anon_send_exit(h, caf::exit_reason::user_shutdown);
    }
    agents_->by_name.clear();
  }

  result<void> start(nanoseconds limit) {
    auto& system = net_.system();
    director_options d;
    d.cluster = settings_.cluster.name;
    d.wanted = {{role::front, "front", 1}, {role::decode, "decode-0", 1}};
    director_ = spawn_director(system, system.node(), nullptr, std::move(d));
    directory_ = spawn_on<table_directory>(system, system.node(), nullptr, agents_);
    factory_ = make_role_factory(settings_, make_live_parts(settings_, false),
                                 [this](entrypoint_actor e) { inner_.attach(std::move(e)); });
    for (const char* seat : {"front/0", "decode-0/0"}) {
      node_agent_options a;
      a.self.cluster = settings_.cluster.name;
      a.self.name = seat;
      a.self.host = "in process";
      a.self.pid = getpid();
      a.self.wanted_seat = seat;
      a.roles = factory_;
      a.directory = directory_;
      a.director = caf::actor_cast<any_handle>(director_);
      auto agent = spawn_node_agent(system, system.node(), nullptr, std::move(a));
      std::lock_guard lock(agents_->mutex);
      agents_->by_name[seat] = std::move(agent);
    }
    return wait_until_ready(limit);
  }

  const kernels::model_facts& facts() const override { return inner_.facts(); }
  bool ready() const override { return inner_.ready(); }
  void submit(gateway::generate_request r, on_event callback) override {
    inner_.submit(std::move(r), std::move(callback));
  }
  void cancel(const std::string& id) override { inner_.cancel(id); }

 private:
  result<void> wait_until_ready(nanoseconds limit) {
    const nanoseconds deadline = steady_clock().now() + limit;
    {
      std::unique_lock lock(agents_->mutex);
      if (!agents_->changed.wait_for(lock, limit, [this] { return agents_->ready || agents_->failure; }))
        return fail(errc::timeout, "the engine was not ready within {}", config::format_duration(limit));
      if (agents_->failure) return fail(errc::invalid_argument, "{}", *agents_->failure);
    }
    auto proof = run_canary(inner_, deadline - steady_clock().now());
    inner_.set_ready(proof.has_value());
    return proof;
  }

  const config::settings settings_;
  actor_net net_;
  entrypoint_generator inner_;
  const std::shared_ptr<agent_table> agents_ = std::make_shared<agent_table>();
  std::shared_ptr<role_factory> factory_;
  director_actor director_;
  directory_actor directory_;
};

}  // namespace

result<std::unique_ptr<gateway::generator>> make_local_generator(config::settings s, nanoseconds ready_within) {
  s.decode.ranks = s.decode.ep = 1;
  std::string name = s.model.name.empty() ? std::filesystem::path(s.model.path).filename().string() : s.model.name;
  TROUPE_TRY(auto facts, read_facts(s, name, s.decode.max_context));
  auto g = std::make_unique<local_generator>(std::move(s), std::move(facts));
  if (auto ok = g->start(ready_within); !ok) return fail(ok.error());
  return g;
}

}  // namespace troupe::node
