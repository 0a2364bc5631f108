#include "runtime/sim/network.hpp"

#include <caf/actor_proxy.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/detail/sync_request_bouncer.hpp>
#include <caf/make_actor.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/sec.hpp>

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/sim/plain_message.hpp"

namespace troupe::sim {

// Encoded, on its way.
struct network::letter {
  size_t from = 0, to = 0;
  caf::node_id from_id, to_id;
  uint32_t breaks = 0;  // of the connection, when it was sent
  caf::actor_id target = 0;
  caf::strong_actor_ptr sender;
  caf::message_id mid;
  std::vector<caf::strong_actor_ptr> stages;
  std::vector<char> bytes;
  caf::message plain;  // instead of bytes
};

struct network::backend final : caf::proxy_registry::backend {
  backend(network& n, size_t o) : net(n), owner(o) {}
  caf::strong_actor_ptr make_proxy(caf::node_id nid, caf::actor_id aid) override {
    return net.make_proxy(owner, nid, aid);
  }
  void set_last_hop(caf::node_id*) override {}
  network& net;
  size_t owner;
};

struct network::proxy final : caf::actor_proxy {
  proxy(caf::actor_config& c, network* n, size_t o) : caf::actor_proxy(c), net(n), owner(o) {}
  void enqueue(caf::mailbox_element_ptr e, caf::execution_unit*) override {
    if (!killed) net->transmit(owner, node(), id(), std::move(e));
  }
  void kill_proxy(caf::execution_unit* c, caf::error reason) override {
    killed = true;
    cleanup(std::move(reason), c);  // watchers of this node get their down here
  }
  network* net;
  size_t owner;
  bool killed = false;
};

network::network(caf::actor_system& system, agenda& a, uint64_t seed, link_options link)
    : system_(system), agenda_(a), coordinator_(coordinator::of(system)), times_(a, seed, 3, link, faults_) {}

network::~network() {
  for (size_t i = 0; i < nodes_.size(); ++i) crash(i, crash_kind::silent);
  *alive_ = false;
}

void network::give_id(size_t index) {
  auto& n = *nodes_[index];
  caf::node_id::default_data::host_id_type host{};
  host[0] = static_cast<uint8_t>(index + 1);
  host[1] = static_cast<uint8_t>((index + 1) >> 8);
  n.id = caf::make_node_id(n.incarnation, host);
}

size_t network::add(const std::string& name) {
  TROUPE_CHECK(find(name) == SIZE_MAX, "node {} exists", name);
  auto n = std::make_unique<node>();
  n->name = name;
  n->maker = std::make_unique<backend>(*this, nodes_.size());
  n->proxies = std::make_unique<caf::proxy_registry>(system_, *n->maker);
  names_[name] = nodes_.size();
  nodes_.push_back(std::move(n));
  give_id(nodes_.size() - 1);
  return nodes_.size() - 1;
}

size_t network::find(const std::string& name) const {
  auto it = names_.find(name);
  return it == names_.end() ? SIZE_MAX : it->second;
}

size_t network::node_of(const caf::node_id& id) const {
  if (!id || id->implementation_id() != caf::node_id::default_data::class_id) return SIZE_MAX;
  const auto host = static_cast<const caf::node_id::default_data&>(*id).host_id();  // give_id wrote it
  const size_t i = (host[0] | size_t{host[1]} << 8) - size_t{1};
  return i < nodes_.size() && nodes_[i]->id == id ? i : SIZE_MAX;
}

caf::strong_actor_ptr network::real(caf::actor_id aid) const {
  auto it = coordinator_.actors().find(aid);
  return it == coordinator_.actors().end() ? nullptr : it->second.lock();
}

caf::strong_actor_ptr network::view(size_t node, const caf::strong_actor_ptr& target) {
  if (!target) return nullptr;
  if (target->node() == nodes_[node]->id) return real(target->id());
  const size_t home = node_of(target->node());
  if (home == SIZE_MAX || !nodes_[home]->up) return nullptr;
  return nodes_[node]->proxies->get_or_put(target->node(), target->id());
}

caf::strong_actor_ptr network::make_proxy(size_t owner, const caf::node_id& nid, caf::actor_id aid) {
  TROUPE_CHECK(nid != nodes_[owner]->id, "a proxy of node {} for its own actor {}", nodes_[owner]->name, aid);
  caf::actor_config config{coordinator_.unit()};
  auto p = caf::make_actor<proxy, caf::strong_actor_ptr>(aid, nid, &system_, config, this, owner);
  // The owner is a watcher of the actor from now on.
  auto gone = [this, owner, nid, aid, owner_id = nodes_[owner]->id, alive = alive_](const caf::error& reason) {
    if (!*alive) return;
    const size_t home = node_of(nid);
    if (home == SIZE_MAX || !nodes_[home]->up) return;  // the node's crash has its own notice
    agenda_.after(times_.delay(home, owner), [=, this] {
      if (*alive && nodes_[owner]->id == owner_id && !faults_.is_cut(home, owner))
        nodes_[owner]->proxies->erase(nid, aid, reason);
    });
  };
  if (auto target = real(aid))
    target->get()->attach_functor(gone);
  else
    gone(caf::make_error(caf::exit_reason::unknown));
  return p;
}

uint32_t& network::breaks(size_t from, size_t to) {
  auto& b = nodes_[from]->breaks;
  if (b.size() <= to) b.resize(nodes_.size());
  return b[to];
}

void network::transmit(size_t from, const caf::node_id& to_id, caf::actor_id aid, caf::mailbox_element_ptr e) {
  auto& source = *nodes_[from];
  const size_t to = node_of(to_id);
  if (!source.up || to == SIZE_MAX) return;
  auto l = std::make_shared<letter>();
  auto content = e->move_content_to_message();
  const auto plain = encode_all_ ? std::nullopt : plain_size(content);
  if (plain) {
    l->plain = std::move(content);
  } else {
    caf::binary_serializer out{coordinator_.unit(), l->bytes};
    auto failed = out(content);
    TROUPE_CHECK(!failed, "a message from {} cannot be encoded", source.name);
  }
  const uint64_t size = plain ? *plain : l->bytes.size();
  ++messages_;
  bytes_ += size;
  l->from = from;
  l->to = to;
  l->from_id = source.id;
  l->to_id = to_id;
  l->breaks = breaks(from, to);
  l->target = aid;
  l->sender = std::move(e->sender);
  l->mid = e->mid;
  l->stages = std::move(e->stages);
  const auto& o = times_.options();
  auto drawn = [&](double p) { return p > 0 && times_.random().uniform() < p; };
  const bool lost = drawn(o.loss), twice = drawn(o.duplication), late = drawn(o.reordering);
  const auto when = times_.arrival(from, to, size, late);
  if (twice) post(when + times_.delay(from, to), l);
  if (!lost) post(when, std::move(l));
}

void network::post(nanoseconds when, std::shared_ptr<letter> l) {
  agenda_.at(when, [this, alive = alive_, l = std::move(l)] {
    if (!*alive) return;
    if (faults_.is_cut(l->from, l->to)) return faults_.swallowed(l->from, l->to);
    faults_.let_through(l->from, l->to, [this, alive, l] {
      if (*alive && nodes_[l->to]->up && nodes_[l->to]->id == l->to_id && breaks(l->from, l->to) == l->breaks)
        deliver(*l);
    });
  });
}

void network::deliver(letter& l) {
  if (nodes_[l.from]->id != l.from_id) return;  // the connection ended with the sender's old life
  auto* unit = coordinator_.unit();
  caf::message content = l.plain;
  if (!l.bytes.empty()) {
    unit->proxy_registry_ptr(nodes_[l.to]->proxies.get());
    caf::binary_deserializer in{unit, l.bytes};
    auto failed = in(content);
    unit->proxy_registry_ptr(nullptr);
    TROUPE_CHECK(!failed, "a message to {} cannot be decoded", nodes_[l.to]->name);
  }
  auto sender = view(l.to, l.sender);
  auto stages = l.stages;  // a doubled message is delivered twice
  for (auto& s : stages) s = view(l.to, s);
  if (auto target = real(l.target)) {
    target->enqueue(caf::make_mailbox_element(std::move(sender), l.mid, std::move(stages), std::move(content)), unit);
  } else if (sender) {
    caf::detail::sync_request_bouncer bounce{caf::make_error(caf::sec::request_receiver_down)};
    bounce(sender, l.mid);
  }
}

void network::break_link(size_t a, size_t b, crash_kind kind) {
  for (auto [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    ++breaks(from, to);
    auto told = [this, alive = alive_, at = to, id = nodes_[to]->id, other = nodes_[from]->id] {
      if (*alive && nodes_[at]->id == id) nodes_[at]->proxies->erase(other);
    };
    agenda_.after(kind == crash_kind::killed ? times_.delay(from, to) : nanoseconds{0}, told);
  }
}

void network::freeze(size_t node, bool on) {
  faults_.freeze(node, on);
  coordinator_.hold(nodes_[node]->id, on);
}

void network::crash(size_t index, crash_kind kind) {
  auto& n = *nodes_[index];
  if (!n.up) return;
  n.up = false;  // first: what it still "sends" is dropped
  freeze(index, false);
  std::vector<caf::strong_actor_ptr> mine;
  std::vector<caf::resumable*> jobs;
  for (auto& [aid, weak] : coordinator_.actors()) {
    auto p = weak.lock();
    if (!p || p->node() != n.id) continue;
    jobs.push_back(static_cast<caf::scheduled_actor*>(p->get()));
    mine.push_back(std::move(p));
  }
  coordinator_.drop_jobs(jobs);
  for (auto& p : mine) {
    auto* a = static_cast<caf::scheduled_actor*>(p->get());
    if (a->getf(caf::abstract_actor::is_cleaned_up_flag)) continue;
    a->on_exit();  // destroys the state
    a->cleanup(caf::exit_reason::kill, coordinator_.unit());
  }
  coordinator_.drop_jobs(jobs);  // the ends of the others made some runnable again before their own turn
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (i == index) continue;
    n.proxies->erase(nodes_[i]->id);
    if (kind == crash_kind::silent) continue;
    agenda_.after(times_.delay(index, i), [this, alive = alive_, i, id = nodes_[i]->id, dead = n.id] {
      if (*alive && nodes_[i]->id == id) nodes_[i]->proxies->erase(dead);
    });
  }
}

void network::restart(size_t index) {
  auto& n = *nodes_[index];
  TROUPE_CHECK(!n.up, "node {} is up", n.name);
  // Whoever has not noticed its end gets a reset from the new process.
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (i == index) continue;
    agenda_.after(times_.delay(index, i), [this, alive = alive_, i, id = nodes_[i]->id, dead = n.id] {
      if (*alive && nodes_[i]->id == id) nodes_[i]->proxies->erase(dead);
    });
  }
  ++n.incarnation;
  n.up = true;
  times_.forget(index);
  give_id(index);
}

}  // namespace troupe::sim
