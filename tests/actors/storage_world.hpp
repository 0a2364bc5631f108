// Storage nodes, a director and a client in one actor_system: virtual nodes and time, memory disks that outlive their
// nodes, the loopback transport, one seed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/director.hpp"
#include "actors/cluster/node_agent.hpp"
#include "actors/protocol/messages.hpp"
#include "actors/storage/storage_node.hpp"
#include "actors/storage/store_client.hpp"
#include "kv/device/memory_disk.hpp"
#include "kv/index/memory_db.hpp"
#include "runtime/sim/directory.hpp"
#include "runtime/transport/loopback.hpp"

namespace troupe::actors {

struct storage_world_options {
  uint64_t seed = 1;
  uint32_t nodes = 3, disks = 1, data = 2, parity = 1;
  uint64_t staging_bytes = 4 << 20;
  kv::snapshot_tier_options snapshots;  // entry_bytes 0: none
  storage_times times;
  std::optional<kv::hash_scheme> client_scheme;
  nanoseconds hedge_after{0};
};

/// Blocking work in virtual time.
class agenda_worker final : public kv::worker {
 public:
  explicit agenda_worker(sim::agenda& a) : agenda_(a) {}
  bool submit(kv::task t) override {
    if (held) {
      waiting.push_back(std::move(t));
      return true;
    }
    agenda_.after(std::chrono::microseconds(80), std::move(t));
    return true;
  }
  bool held = false;  // work waits until it is let go
  std::vector<kv::task> waiting;

 private:
  sim::agenda& agenda_;
};

class storage_world {
 public:
  explicit storage_world(storage_world_options o);
  ~storage_world();

  /// Runs until `done` or until `limit` of virtual time from now; returns done().
  bool run_until(const std::function<bool()>& done, nanoseconds limit);
  void run_for(nanoseconds d) {
    run_until([] { return false; }, d);
  }
  /// Every storage node is ready and the client has met all of them. Fails the test otherwise.
  void wait_ready();

  void crash(uint32_t node, sim::crash_kind kind = sim::crash_kind::killed);
  void restart(uint32_t node);
  /// Its end of the data plane does nothing, or goes on.
  void stall(uint32_t node, bool on);

  /// Runs `f` in the client's actor and waits for the answer it gives.
  template <class T>
  result<T> call(std::function<void(store_state&, kv::reply<T>)> f, nanoseconds limit = std::chrono::seconds(60)) {
    auto got = std::make_shared<std::optional<result<T>>>();
    session_->post([f, got](store_state& s) { f(s, [got](result<T> r) { got->emplace(std::move(r)); }); });
    if (!run_until([&] { return got->has_value(); }, limit)) return fail(errc::internal, "no answer");
    return std::move(**got);
  }
  result<kv::put_chain_reply> put(kv::put_chain_request r) {
    auto shared = std::make_shared<kv::put_chain_request>(std::move(r));
    return call<kv::put_chain_reply>(
        [shared](store_state& s, auto back) { s.client->put(std::move(*shared), std::move(back)); });
  }
  result<kv::get_chain_reply> get(kv::get_chain_request r) {
    auto shared = std::make_shared<kv::get_chain_request>(std::move(r));
    return call<kv::get_chain_reply>(
        [shared](store_state& s, auto back) { s.client->get(std::move(*shared), std::move(back)); });
  }
  result<uint64_t> match(const std::vector<kv::block_hash>& chain) {
    return call<uint64_t>([chain](store_state& s, auto back) { s.client->match(chain, std::move(back)); });
  }
  /// What all scrubbers together find (and repair).
  kv::scrub_report scrub(bool repair);

  /// Asks an actor from the client's node and runs until the answer is there.
  template <class Answer, class Handle, class Query>
  Answer ask_now(const Handle& handle, Query q);

  struct life;
  struct storage {
    size_t index = 0;  // in the network
    int32_t pid = 0;
    std::vector<std::unique_ptr<kv::memory_disk>> disks;
    std::unique_ptr<kv::memory_db> records;
    std::shared_ptr<agenda_worker> work;
    directory_actor directory;
    node_agent_actor agent;
    std::weak_ptr<life> open;
    any_handle actor;
  };
  storage& node(uint32_t n) { return nodes_[n]; }
  store_session& session() { return *session_; }
  transport::transport& client_plane() { return *client_planes_.front(); }
  std::shared_ptr<store_session> new_client(std::optional<kv::hash_scheme> scheme);
  sim::agenda& agenda() { return agenda_; }
  sim::network& net() { return *net_; }
  caf::actor_system& system() { return *system_; }
  kv::manual_unix_clock wall{1'800'000'000};

 private:
  class factory;
  class host;
  struct config : caf::actor_system_config {
    config() { register_messages(*this); }
  };
  struct agenda_time final : clock_source {
    explicit agenda_time(sim::agenda& a) : agenda(a) {}
    nanoseconds now() const override { return agenda.now(); }
    sim::agenda& agenda;
  };
  void start(uint32_t n);

  storage_world_options options_;
  sim::agenda agenda_;
  agenda_time time_{agenda_};
  std::unique_ptr<transport::loopback_network> wires_;
  config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<sim::network> net_;
  sim::listeners listeners_;
  director_actor director_;
  std::vector<storage> nodes_;
  size_t client_node_ = 0;
  directory_actor client_directory_;
  agenda_worker client_work_{agenda_};
  std::vector<std::shared_ptr<transport::transport>> client_planes_;
  std::shared_ptr<store_session> session_;
  int32_t next_pid_ = 1;
};

/// Asks once and keeps the answer.
template <class Handle, class Query, class Answer>
class storage_probe {
 public:
  using interface = actor_type<takes<tick>>;
  static inline const char* name = "probe";
  explicit storage_probe(interface::pointer self) : self_(self), links_(self) {}
  interface::behavior_type make_behavior(Handle to, Query q, std::shared_ptr<std::vector<Answer>> out) {
    links_.ask(
        self_, to, std::chrono::seconds(30), q,
        [this, out](const Answer& a) {
          out->push_back(a);
          self_->quit();
        },
        [this, out](const error& e) {
          Answer a{};
          if constexpr (requires { a.outcome; }) a.outcome = to_status(e);
          out->push_back(a);
          self_->quit();
        });
    return {[](const tick&) {}};
  }

 private:
  interface::pointer self_;
  peer_links links_;
};

template <class Answer, class Handle, class Query>
Answer storage_world::ask_now(const Handle& handle, Query q) {
  auto out = std::make_shared<std::vector<Answer>>();
  spawn_on<storage_probe<Handle, Query, Answer>>(*system_, net_->id(client_node_),
                                                 sim::coordinator::of(*system_).unit(), handle, q, out);
  run_until([&] { return !out->empty(); }, std::chrono::seconds(60));
  EXPECT_FALSE(out->empty()) << "no answer";
  return out->empty() ? Answer{} : out->front();
}

}  // namespace troupe::actors
