// Virtual nodes inside one actor_system, and the network between them. A virtual node is a CAF node id; a handle to an
// actor of another node is a proxy that leads through here. Every message is encoded and decoded on its way, so nothing
// crosses that a real network would not carry; the sender is replaced on arrival, so replies and downs travel the same
// way.
//
// The link is what TCP gives: order per pair of nodes, no loss of single messages. A cut link swallows messages
// silently, a stalled one keeps them back, a broken one loses what is under way and makes the handles of both sides
// dead. A crashed node is noticed by its peers after one latency (the process was killed), or not at all (the host is
// gone). With loss, duplication or reordering in the options single messages suffer too: the hostile profile.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/proxy_registry.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sim/coordinator.hpp"
#include "runtime/sim/links.hpp"

namespace troupe::sim {

/// How a crash looks from outside: the peers are told after one latency (the process was killed), or hear nothing (the
/// host is gone).
enum class crash_kind : uint8_t { killed, silent };

/// Not thread safe. Make it after the actor_system, destroy it before.
class network {
 public:
  network(caf::actor_system& system, agenda& a, uint64_t seed, link_options link);
  ~network();
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  /// A new node (up); names are unique.
  size_t add(const std::string& name);
  /// The name's index, or SIZE_MAX.
  size_t find(const std::string& name) const;
  const std::string& name(size_t node) const { return nodes_[node]->name; }
  bool up(size_t node) const { return nodes_[node]->up; }
  /// Its node id, for spawn_on. Changes with every restart.
  const caf::node_id& id(size_t node) const { return nodes_[node]->id; }
  /// Counts its lives, from 1.
  uint32_t incarnation(size_t node) const { return nodes_[node]->incarnation; }
  /// The node on which an actor lives.
  size_t node_of(const caf::node_id& id) const;
  size_t size() const { return nodes_.size(); }

  /// `target` as `node` sees it: itself when it lives there, else a proxy; null when its node is down or of another
  /// life.
  caf::strong_actor_ptr view(size_t node, const caf::strong_actor_ptr& target);

  /// Ends every actor of the node at once. Call it from the driver or the agenda, never from a handler.
  void crash(size_t node, crash_kind kind);
  /// Up again, with a new incarnation and no actors.
  void restart(size_t node);
  /// Swallows messages from one node to the other until healed.
  void cut(size_t from, size_t to) { faults_.cut(from, to, true); }
  void heal(size_t from, size_t to) { faults_.cut(from, to, false); }
  /// The connection of two nodes ends: what is under way is lost, handles between them are dead, new ones can be
  /// resolved. killed: both are told after one latency; silent: now, as when a connection timeout has run out.
  void break_link(size_t a, size_t b, crash_kind kind);
  /// No actor of the node runs and nothing arrives there, until it goes on. Connections stay.
  void freeze(size_t node, bool on);
  /// What is broken between nodes; the data plane looks at it too.
  link_faults& faults() { return faults_; }
  /// Loss, duplication and reordering take effect at once.
  link_options& options() { return times_.options(); }

  /// false: messages without handles are handed over as they are, which is much faster.
  void encode_all(bool on) { encode_all_ = on; }

  uint64_t messages() const { return messages_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct backend;
  struct proxy;
  struct node {
    std::string name;
    uint32_t incarnation = 1;
    bool up = true;
    caf::node_id id;
    std::unique_ptr<backend> maker;
    std::unique_ptr<caf::proxy_registry> proxies;
    std::vector<uint32_t> breaks;  // of the connection to each node: what was sent before is lost
  };
  struct letter;  // a message under way

  void give_id(size_t index);
  caf::strong_actor_ptr make_proxy(size_t owner, const caf::node_id& nid, caf::actor_id aid);
  caf::strong_actor_ptr real(caf::actor_id aid) const;
  void transmit(size_t from, const caf::node_id& to, caf::actor_id aid, caf::mailbox_element_ptr e);
  void post(nanoseconds when, std::shared_ptr<letter> l);
  void deliver(letter& l);
  uint32_t& breaks(size_t from, size_t to);

  caf::actor_system& system_;
  agenda& agenda_;
  coordinator& coordinator_;
  link_faults faults_;
  link_times times_;
  std::vector<std::unique_ptr<node>> nodes_;
  std::map<std::string, size_t> names_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // functors in actors outlive this object
  uint64_t messages_ = 0, bytes_ = 0;
  bool encode_all_ = true;
};

}  // namespace troupe::sim
