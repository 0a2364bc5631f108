#include "tests/actors/sim_cluster.hpp"

#include <cstdlib>

#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

class sink final : public client_sink {
 public:
  sink(std::shared_ptr<client> c, sim::agenda& a) : client_(std::move(c)), agenda_(a) {}
  void on_event(client_event e) override {
    auto& c = *client_;
    c.in_order = c.in_order && c.ends == 0 &&
                 (e.tokens.empty() || e.first_position == c.request.prompt.size() + c.tokens.size());
    c.tokens.insert(c.tokens.end(), e.tokens.begin(), e.tokens.end());
    if (!e.done) return;
    ++c.ends;
    c.last = std::move(e);
    c.ended = agenda_.now();
  }

 private:
  std::shared_ptr<client> client_;
  sim::agenda& agenda_;
};

}  // namespace

class sim_cluster::factory final : public role_factory {
 public:
  factory(sim_cluster& c, std::string node) : cluster_(c), node_(std::move(node)) {}

  result<role_actors> start(caf::local_actor* parent, const role_assignment& a, const node_identity& identity,
                            const node_agent_actor& agent, const directory_actor& directory) override {
    auto& v = cluster_.nodes_.at(node_);
    role_context context{parent, a, identity, agent, directory};
    role_actors out;
    if (a.what == role::front) {
      auto options = cluster_.options_.entrypoint;
      options.prefix = cluster_.prefix();
      out = start_front_role(context, options, v.entrypoint);
    } else {
      auto missing = [&net = *cluster_.net_, self = v.index](const group_view& view) {
        std::vector<uint32_t> gone;
        for (uint32_t i = 0; i < view.members.size(); ++i) {  // as an engine counts them
          const auto& m = view.members[i];  // an address is "node name/incarnation of the virtual node"
          const auto slash = m.ep_address.find('/');
          const size_t n = net.find(m.ep_address.substr(0, slash));
          if (n != self && (!net.up(n) || std::to_string(net.incarnation(n)) != m.ep_address.substr(slash + 1)))
            gone.push_back(i);
        }
        return gone;
      };
      const auto life = cluster_.net_->incarnation(v.index);
      cluster_.options_.engine.memories = cluster_.memories_;
      auto scheduler = cluster_.options_.scheduler;
      scheduler.prefix = cluster_.prefix();
      out = start_rank_role(context,
                            std::make_shared<stand_in_host>(cluster_.agenda_, cluster_.options_.engine,
                                                            node_ + "/" + std::to_string(life), missing),
                            scheduler, cluster_.options_.balance);
    }
    v.named = out.named;
    return out;
  }

  void stopped(const role_assignment&) override {
    auto& v = cluster_.nodes_.at(node_);
    v.entrypoint = nullptr;
    v.named.clear();
  }

 private:
  sim_cluster& cluster_;
  std::string node_;
};

sim_cluster::sim_cluster(cluster_options o)
    : options_(std::move(o)), random_(options_.seed, 9), agenda_(options_.seed) {
  static const bool quiet = (log::init("test", std::getenv("TROUPE_TEST_LOG") ? "debug" : "off"), true);
  (void)quiet;
  sim::coordinator::install(config_, agenda_, options_.seed);
  system_ = std::make_unique<caf::actor_system>(config_);
  system_->await_actors_before_shutdown(false);
  net_ = std::make_unique<sim::network>(*system_, agenda_, options_.seed, options_.link);
  if (options_.cache) {
    store = std::make_shared<stand_in_store>(agenda_);
    store->peek = [this](const snapshot_source& s) -> uint64_t {
      const auto host = memories_->find(s.address);
      return host == memories_->end() ? 0 : host->second->stand_in()->shots.at(s.offset / s.bytes);
    };
  }
  net_->add("director");
  start_director();
  auto add = [&](const std::string& name, const std::string& seat, bool start = true) {
    auto& v = nodes_[name];
    v.index = net_->add(name);
    v.wanted_seat = seat;
    if (start) start_node(name);
  };
  for (uint32_t i = 0; i < options_.fronts; ++i) add("front-" + std::to_string(i), "front/" + std::to_string(i));
  for (uint32_t i = 0; i < options_.prefill; ++i)
    add("prefill-" + std::to_string(i), options_.changes.on ? "" : "prefill-" + std::to_string(i));
  for (uint32_t i = 0; i < options_.decode; ++i)
    add("decode-" + std::to_string(i), options_.changes.on ? "" : "decode-0/" + std::to_string(i));
  for (uint32_t i = 0; i < options_.spares; ++i) add("spare-" + std::to_string(i), "decode-0", false);
}

prefix_options sim_cluster::prefix() const {
  prefix_options p = options_.prefix;
  p.store = store;
  if (store) p.scheme = store->scheme;
  return p;
}

void sim_cluster::start_director() {
  const size_t home = net_->find("director");
  if (!net_->up(home)) net_->restart(home);
  director_options d;
  d.epoch = cluster_epoch{++director_epoch_};
  if (director_epoch_ > 1) d.settle = std::chrono::seconds(1);
  d.wanted.push_back({role::front, "front", options_.fronts});
  const bool any = options_.changes.on;
  const uint32_t ranks = options_.prefill + options_.decode;
  for (uint32_t i = 0; i < (any ? ranks : options_.prefill); ++i)
    d.wanted.push_back({role::prefill, "prefill-" + std::to_string(i), 1, i < options_.prefill ? 1u : 0u});
  if (options_.decode > 0)
    d.wanted.push_back({role::decode, "decode-0", any ? ranks : options_.decode, options_.decode});
  d.changes = options_.changes;
  director_ = spawn_director(*system_, net_->id(home), sim::coordinator::of(*system_).unit(), d);
  listeners_["director"] = caf::actor_cast<caf::strong_actor_ptr>(director_);
}

void sim_cluster::crash_director() {
  net_->crash(net_->find("director"), sim::crash_kind::killed);
  listeners_.erase("director");
  director_ = nullptr;
}

void sim_cluster::cut_both(const std::string& a, const std::string& b, bool on) {
  const size_t x = net_->find(a), y = net_->find(b);
  for (auto [from, to] : {std::pair{x, y}, std::pair{y, x}}) on ? net_->cut(from, to) : net_->heal(from, to);
}

sim_cluster::~sim_cluster() {
  director_ = nullptr;
  listeners_.clear();
  for (auto& [name, v] : nodes_) v = {};
  net_.reset();  // ends every actor
  system_.reset();
}

void sim_cluster::start_node(const std::string& name) {
  auto& v = nodes_.at(name);
  v.pid = ++next_pid_;
  v.directory = sim::spawn_directory(*net_, v.index, listeners_, *system_);
  node_agent_options o;
  o.self = {"troupe", name, name, 1, v.pid, v.wanted_seat, {}};
  o.roles = std::make_shared<factory>(*this, name);
  o.directory = v.directory;
  v.agent = spawn_node_agent(*system_, net_->id(v.index), sim::coordinator::of(*system_).unit(), o);
  listeners_[name] = caf::actor_cast<caf::strong_actor_ptr>(v.agent);
}

void sim_cluster::crash(const std::string& name, sim::crash_kind kind) {
  auto& v = nodes_.at(name);
  net_->crash(v.index, kind);
  v.directory = nullptr;
  v.agent = nullptr;
  v.entrypoint = nullptr;
  v.named.clear();
  listeners_.erase(name);
}

void sim_cluster::restart(const std::string& name) {
  net_->restart(nodes_.at(name).index);
  start_node(name);
}

bool sim_cluster::run_until(const std::function<bool()>& done, nanoseconds limit) {
  auto& c = sim::coordinator::of(*system_);
  const auto end = agenda_.now() + limit;
  while (!done()) {
    if (c.has_job()) {
      c.run_job();
    } else if (!agenda_.empty() && agenda_.next() <= end) {
      agenda_.run_next();
    } else {
      return done();
    }
  }
  return true;
}

void sim_cluster::wait_ready() {
  for (int i = 0; i < 100; ++i) {
    run_for(std::chrono::milliseconds(100));
    if (!status().complete) continue;
    bool attached = true;
    for (auto& [name, v] : nodes_) {
      if (!v.entrypoint) continue;
      auto r = ask_now<front_report>(v.entrypoint, front_query{});
      attached = attached && r.prefill_schedulers == options_.prefill && r.decode_schedulers == options_.decode;
    }
    if (attached) return;
  }
  for (auto& e : status().events) ADD_FAILURE() << e;
  FAIL() << "the cluster did not get ready";
}

client_submit sim_cluster::random_request() {
  client_submit r;
  r.prompt.resize(1 + random_.below(120), 7);
  r.sampling.seed = random_.next();
  r.stop.max_tokens = static_cast<uint32_t>(1 + random_.below(40));
  r.stop.ignore_eos = random_.below(2) == 0;
  r.speculate = random_.below(4) != 0;
  return r;
}

std::shared_ptr<client> sim_cluster::submit(client_submit r, const std::string& front) {
  auto c = std::make_shared<client>();
  r.id = "request-" + std::to_string(next_client_++);
  if (store && r.cache)
    r.chain = *kv::hash_chain(store->scheme, r.salt, std::vector<uint32_t>(r.prompt.begin(), r.prompt.end()));
  c->request = r;
  r.sink = std::make_shared<sink>(c, agenda_);
  clients.push_back(c);
  auto& e = nodes_.at(front).entrypoint;
  EXPECT_TRUE(e) << "no entrypoint";
  if (e) post(e, std::move(r));
  return c;
}

void sim_cluster::expect_clean() {
  for (auto& [name, v] : nodes_) {
    for (auto& [actor, handle] : v.named) {
      SCOPED_TRACE(name + " " + actor);
      if (actor.ends_with("/rank")) {
        auto r = ask_now<rank_report>(caf::actor_cast<rank_actor>(handle), rank_query{});
        EXPECT_EQ(r.pages_free, r.pages_total);
        EXPECT_EQ(r.slots_open, 0u);
        EXPECT_EQ(r.plans_open, 0u);
        EXPECT_EQ(r.pages_request + r.pages_transfer + r.pages_write_back, 0u);
        EXPECT_EQ(r.prefix.reading + r.prefix.writing, 0u);
        EXPECT_EQ(r.transfers.offered + r.transfers.sending + r.transfers.fetching, 0u);
        EXPECT_EQ(r.transfers.places_free, r.transfers.places);
        EXPECT_EQ(r.snapshots.places_free, r.snapshots.places);
      } else if (actor.ends_with("/scheduler")) {
        auto r = ask_now<scheduler_report>(caf::actor_cast<scheduler_actor>(handle), scheduler_query{});
        EXPECT_EQ(r.pages_free, r.pages_total);
        EXPECT_EQ(r.waiting + r.running + r.closing, 0u);
        EXPECT_EQ(r.unacknowledged, 0u);
      } else if (actor.ends_with("/entrypoint")) {
        auto r = ask_now<front_report>(caf::actor_cast<entrypoint_actor>(handle), front_query{});
        EXPECT_EQ(r.running, 0u);
      }
    }
  }
}

void sim_cluster::expect_clients_right(bool all_finished) {
  for (auto& c : clients) {
    SCOPED_TRACE(c->request.id);
    EXPECT_EQ(c->ends, 1);
    EXPECT_TRUE(c->in_order);
    const auto want = c->expected();
    const bool finished = c->last.finish != kernels::finish_reason::none;
    EXPECT_NE(finished, c->last.failure != errc{}) << "neither or both of finish and failure";
    if (all_finished) {
      EXPECT_TRUE(finished) << to_string(c->last.failure) << ": " << c->last.failure_text;
    }
    ASSERT_LE(c->tokens.size(), want.size());
    EXPECT_TRUE(std::equal(c->tokens.begin(), c->tokens.end(), want.begin()));
    if (finished) {
      EXPECT_EQ(c->tokens.size(), want.size());
    }
    EXPECT_EQ(c->last.completion_tokens, c->tokens.size());
    EXPECT_EQ(c->last.prompt_tokens, c->request.prompt.size());
  }
}

}  // namespace troupe::actors
