#include "tests/actors/storage_world.hpp"

#include <cstdlib>
#include <cstring>

#include "runtime/base/log.hpp"

namespace troupe::actors {

/// What one life of a storage node has open.
struct storage_world::life {
  std::vector<std::unique_ptr<kv::shard_store>> stores;
  std::unique_ptr<kv::block_index> index;
  std::shared_ptr<transport::transport> plane;
};

class storage_world::host final : public storage_host {
 public:
  host(storage_world& w, uint32_t n) : world_(w), n_(n) {}

  void open(std::function<void(result<opened_storage>)> done) override {
    world_.agenda_.after(std::chrono::milliseconds(1), [this, done] { done(open_now()); });
  }
  void stop() override {}

 private:
  result<opened_storage> open_now() {
    const auto& o = world_.options_;
    auto& v = world_.nodes_[n_];
    auto l = std::make_shared<life>();
    opened_storage out;
    out.data = o.data;
    out.parity = o.parity;
    out.seat = n_;
    out.seats = o.nodes;
    out.disks = o.disks;
    for (uint32_t d = 0; d < o.disks; ++d) {
      opened_disk entry;
      entry.id = kv::target_id{n_ * o.disks + d + 1};
      entry.text = "memory";
      if (v.disks[d]) {
        kv::shard_store_options s;
        s.target = entry.id;
        s.chunk_bytes = 1 << 20;
        s.capacity_bytes = 64 << 20;
        s.accept_blank_disk = true;
        for (size_t i = 0; i < s.new_device.size(); ++i)
          s.new_device[i] = static_cast<uint8_t>(1 + entry.id.value + 7 * v.pid);
        TROUPE_TRY(auto store, kv::shard_store::open(*v.disks[d], *v.records, s));
        entry.store = store.get();
        l->stores.push_back(std::move(store));
      } else {
        entry.text = "taken away";
      }
      out.targets.push_back(std::move(entry));
    }
    kv::index_options i;
    TROUPE_TRY(l->index, kv::block_index::open(*v.records, i, world_.wall.now(), world_.agenda_.now()));
    TROUPE_TRY(auto plane, world_.wires_->make({}));
    l->plane = std::move(plane);
    out.index = l->index.get();
    out.blocking = v.work.get();
    out.wall = &world_.wall;
    out.plane = l->plane;
    out.staging_bytes = o.staging_bytes;
    out.snapshots = o.snapshots;
    out.snapshot_bytes = 4 * o.snapshots.entry_bytes;
    out.client.seed = 1000 + static_cast<uint64_t>(v.pid);
    out.keep = l;
    v.open = l;
    return out;
  }

  storage_world& world_;
  const uint32_t n_;
};

class storage_world::factory final : public role_factory {
 public:
  factory(storage_world& w, uint32_t n) : world_(w), n_(n) {}
  result<role_actors> start(caf::local_actor* parent, const role_assignment& a, const node_identity& identity,
                            const node_agent_actor& agent, const directory_actor& directory) override {
    auto out = start_storage_role({parent, a, identity, agent, directory}, std::make_shared<host>(world_, n_),
                                  world_.options_.times);
    world_.nodes_[n_].actor = out.all.front();
    return out;
  }
  void stopped(const role_assignment&) override { world_.nodes_[n_].actor = nullptr; }

 private:
  storage_world& world_;
  const uint32_t n_;
};

storage_world::storage_world(storage_world_options o)
    : options_(std::move(o)), agenda_(options_.seed), wires_(transport::make_loopback_network(time_, options_.seed)) {
  static const bool quiet = (log::init("test", std::getenv("TROUPE_TEST_LOG") ? "debug" : "off"), true);
  (void)quiet;
  sim::coordinator::install(config_, agenda_, options_.seed);
  system_ = std::make_unique<caf::actor_system>(config_);
  system_->await_actors_before_shutdown(false);
  net_ = std::make_unique<sim::network>(*system_, agenda_, options_.seed, sim::link_options{});
  director_options d;
  d.wanted.push_back({role::storage, storage_group, options_.nodes});
  director_ = spawn_director(*system_, net_->id(net_->add("director")), sim::coordinator::of(*system_).unit(), d);
  listeners_["director"] = caf::actor_cast<caf::strong_actor_ptr>(director_);
  nodes_.resize(options_.nodes);
  for (uint32_t n = 0; n < options_.nodes; ++n) {
    auto& v = nodes_[n];
    v.index = net_->add(fmt::format("storage-{}", n));
    for (uint32_t k = 0; k < options_.disks; ++k)
      v.disks.push_back(std::make_unique<kv::memory_disk>(kv::memory_disk_options{
          .capacity_bytes = 1ull << 30, .seed = n * 100 + k + 1, .faults = {}, .crash = nullptr, .name = "memory"}));
    v.records = std::make_unique<kv::memory_db>();
    start(n);
  }
  client_node_ = net_->add("client");
  client_directory_ = sim::spawn_directory(*net_, client_node_, listeners_, *system_);
  run_for(std::chrono::milliseconds(1));  // an actor can be seen from elsewhere once it has run
  session_ = new_client(options_.client_scheme);
}

std::shared_ptr<store_session> storage_world::new_client(std::optional<kv::hash_scheme> scheme) {
  auto session = std::make_shared<store_session>();
  auto plane = wires_->make({});
  EXPECT_TRUE(plane);
  client_planes_.emplace_back(std::move(*plane));
  store_client_options c;
  c.directory = client_directory_;
  c.director =
      caf::actor_cast<director_actor>(net_->view(client_node_, caf::actor_cast<caf::strong_actor_ptr>(director_)));
  c.plane = client_planes_.back();
  c.compute = &client_work_;
  c.wall = &wall;
  c.scheme = scheme;
  c.client.seed = 77 + client_planes_.size();
  c.client.hedge_after = options_.hedge_after;
  c.staging_bytes = options_.staging_bytes;
  spawn_store_client(*system_, net_->id(client_node_), sim::coordinator::of(*system_).unit(), session, std::move(c));
  return session;
}

storage_world::~storage_world() {
  director_ = nullptr;
  client_directory_ = nullptr;
  listeners_.clear();
  for (auto& v : nodes_) {
    v.directory = nullptr;
    v.agent = nullptr;
    v.actor = nullptr;
    if (v.work) v.work->waiting.clear();
  }
  net_.reset();  // ends every actor
  agenda_.clear();
  system_.reset();
}

void storage_world::start(uint32_t n) {
  auto& v = nodes_[n];
  v.pid = ++next_pid_;
  v.work = std::make_shared<agenda_worker>(agenda_);
  const std::string name = net_->name(v.index);
  v.directory = sim::spawn_directory(*net_, v.index, listeners_, *system_);
  node_agent_options o;
  o.self = {"troupe", name, name, 1, v.pid, fmt::format("{}/{}", storage_group, n), {}};
  o.roles = std::make_shared<factory>(*this, n);
  o.directory = v.directory;
  v.agent = spawn_node_agent(*system_, net_->id(v.index), sim::coordinator::of(*system_).unit(), o);
  listeners_[name] = caf::actor_cast<caf::strong_actor_ptr>(v.agent);
}

void storage_world::crash(uint32_t n, sim::crash_kind kind) {
  auto& v = nodes_[n];
  std::string plane;
  if (auto l = v.open.lock()) plane = l->plane->address();
  net_->crash(v.index, kind);
  if (!plane.empty()) wires_->kill(plane);
  v.directory = nullptr;
  v.agent = nullptr;
  v.actor = nullptr;
  listeners_.erase(net_->name(v.index));
}

void storage_world::restart(uint32_t n) {
  net_->restart(nodes_[n].index);
  start(n);
}

void storage_world::stall(uint32_t n, bool on) {
  auto l = nodes_[n].open.lock();
  ASSERT_TRUE(l);
  wires_->stall(l->plane->address(), on);
}

bool storage_world::run_until(const std::function<bool()>& done, nanoseconds limit) {
  auto& c = sim::coordinator::of(*system_);
  const auto end = agenda_.now() + limit;
  agenda_.at(end, [] {});  // time moves on also where nothing else happens
  while (!done()) {
    if (c.has_job()) {
      c.run_job();
    } else if (wires_->step()) {
    } else if (!agenda_.empty() && agenda_.next() <= end) {
      agenda_.run_next();
    } else {
      return done();
    }
  }
  return true;
}

void storage_world::wait_ready() {
  size_t up = 0;
  for (int i = 0; i < 200 && up < options_.nodes; ++i) {
    run_for(std::chrono::milliseconds(100));
    auto n = call<size_t>([](store_state& s, auto back) {
      size_t there = 0;
      for (const auto& node : s.nodes) there += node.up ? 1 : 0;
      back(there);
    });
    up = n ? *n : 0;
  }
  std::string why;
  if (up < options_.nodes) {
    session_->when_ready(std::chrono::seconds(1), [&](result<void> r, store_state& s) {
      why = r ? "" : r.error().message;
      for (const auto& n : s.nodes) why += fmt::format("; node {}: {}", n.seat, n.up ? "up" : n.why);
    });
    run_for(std::chrono::seconds(2));
  }
  ASSERT_EQ(up, options_.nodes) << "the storage nodes did not get ready: " << why;
}

kv::scrub_report storage_world::scrub(bool repair) {
  kv::scrub_report sum;
  std::vector<scrubber_actor> all;
  auto got = call<bool>([&](store_state& s, auto back) {
    for (const auto& n : s.nodes)
      if (n.up) all.push_back(n.scrubber);
    back(true);
  });
  EXPECT_TRUE(got);
  for (const auto& scrubber : all) {
    auto s = ask_now<kv_scrub_state>(scrubber, kv_scrub{repair, false, false, 0});
    EXPECT_TRUE(s.outcome.ok()) << s.outcome.text;
    while (s.running) {
      run_for(std::chrono::milliseconds(100));
      s = ask_now<kv_scrub_state>(scrubber, kv_scrub_query{s.run, false});
    }
    EXPECT_TRUE(s.outcome.ok()) << s.outcome.text;
    const auto& r = s.report;
    sum.extents += r.extents;
    sum.missing += r.missing;
    sum.rotten += r.rotten;
    sum.orphans += r.orphans;
    sum.strays += r.strays;
    sum.lost += r.lost;
    sum.index_findings += r.index_findings;
    sum.unreplicated += r.unreplicated;
    sum.rebuilt += r.rebuilt;
    sum.waiting += r.waiting;
    sum.removed_orphans += r.removed_orphans;
    for (auto t : r.absent)
      if (std::find(sum.absent.begin(), sum.absent.end(), t) == sum.absent.end()) sum.absent.push_back(t);
    sum.notes.insert(sum.notes.end(), r.notes.begin(), r.notes.end());
  }
  return sum;
}

}  // namespace troupe::actors
