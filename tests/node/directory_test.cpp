// The live directory over real sockets, with a real director: nodes that want each other at the same moment all reach
// each other. (CAF closes the connections of nodes that dial each other at once, or half of one.)
#include "runtime/node/directory.hpp"

#include <gtest/gtest.h>
#include <caf/scoped_actor.hpp>

#include <barrier>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/cluster/director.hpp"
#include "actors/cluster/node_agent.hpp"
#include "runtime/node/actor_net.hpp"

namespace troupe::node {
namespace {

using namespace std::chrono_literals;

class no_roles final : public actors::role_factory {
 public:
  result<actors::role_actors> start(caf::local_actor*, const actors::role_assignment&, const actors::node_identity&,
                                    const actors::node_agent_actor&, const actors::directory_actor&) override {
    return fail(errc::unsupported, "this node takes no roles");
  }
  void stopped(const actors::role_assignment&) override {}
};

struct small_node {
  small_node(const config::address& director, int index) {
    auto cell = std::make_shared<local_agent>();
    door = spawn_door(net.system(), cell);
    const auto self = net.publish(door, {"127.0.0.1", 0});
    EXPECT_TRUE(self);
    directory_options o;
    o.director = director;
    o.self = *self;
    o.agent = cell;
    o.door = caf::actor_cast<actors::any_handle>(door);
    directory = spawn_directory(net.system(), o);
    cell->set_directory(directory);
    actors::node_agent_options a;
    a.self.cluster = "test";
    a.self.name = "node-" + std::to_string(index);
    a.self.host = self->host;
    a.self.port = self->port;
    a.self.pid = index;
    a.self.wanted_seat = "none";
    a.roles = std::make_shared<no_roles>();
    a.directory = directory;
    agent = actors::spawn_node_agent(net.system(), net.system().node(), nullptr, std::move(a));
    cell->set(agent);
    agent_cell = cell;
  }
  ~small_node() {
    agent_cell->set({});
    agent_cell->set_directory({});
    for (const auto& h : {caf::actor_cast<actors::any_handle>(agent), caf::actor_cast<actors::any_handle>(directory),
                          caf::actor_cast<actors::any_handle>(door)})
      actors::end_actor(h);
  }
  actors::resolve_reply resolve(node_number whom) {
    actors::resolve_reply out;
    caf::scoped_actor asker{net.system()};
    asker->request(directory, 20s, actors::resolve_request{{whom, {}, "node_agent"}})
        .receive([&](const actors::resolve_reply& r) { out = r; },
                 [&](const caf::error& e) { out.outcome = actors::to_status(actors::from_caf(e)); });
    return out;
  }

  actor_net net{{2, 500ms, 10s, true}};
  std::shared_ptr<local_agent> agent_cell;
  door_actor door;
  actors::directory_actor directory;
  actors::node_agent_actor agent;
};

// The view once it names `count` nodes.
actors::cluster_view view_of(caf::actor_system& system, const actors::director_actor& director, size_t count) {
  caf::scoped_actor asker{system};
  actors::cluster_view view;
  for (const auto end = steady_clock().now() + 20s; view.nodes.size() < count && steady_clock().now() < end;)
    asker->request(director, 5s, actors::status_query{})
        .receive([&](const actors::status_report& r) { view = r.view; }, [](const caf::error&) {});
  return view;
}

TEST(directory, nodes_that_want_each_other_at_once_reach_each_other) {
  constexpr int count = 4;
  for (int round = 0; round < 16; ++round) {
    actor_net net{{2, 500ms, 10s, true}};
    actors::director_options d;
    d.cluster = "test";
    d.epoch = cluster_epoch{1};
    const auto director = actors::spawn_director(net.system(), net.system().node(), nullptr, std::move(d));
    const auto at = net.publish(director, {"127.0.0.1", 0});
    ASSERT_TRUE(at) << at.error().message;
    std::vector<std::unique_ptr<small_node>> nodes;
    for (int i = 0; i < count; ++i) nodes.push_back(std::make_unique<small_node>(*at, i + 1));
    const auto view = view_of(net.system(), director, count);
    ASSERT_EQ(view.nodes.size(), size_t{count});
    for (auto& n : nodes) caf::anon_send(n->directory, view);  // all of them know it now
    std::barrier start(count * count);
    std::vector<std::thread> threads;
    std::mutex mutex;
    for (auto& from : nodes) {
      for (const auto& to : view.nodes) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          const auto r = from->resolve(to.node);
          std::lock_guard lock(mutex);
          EXPECT_TRUE(r.outcome.ok() && r.handle) << "round " << round << ", to " << to.name << ": " << r.outcome.text;
        });
      }
    }
    for (auto& t : threads) t.join();
    nodes.clear();
    actors::end_actor(caf::actor_cast<actors::any_handle>(director));
  }
}

}  // namespace
}  // namespace troupe::node
