#include "runtime/node/cluster_store.hpp"

#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <tuple>

#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/node/directory.hpp"
#include "runtime/transport/process_transport.hpp"

namespace troupe::node {

using namespace actors;

/// Counts what of the client is still alive.
struct cluster_store::latch {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;
};

namespace {

constexpr auto poll_every = std::chrono::milliseconds(100);  // of scrubs under way
constexpr auto patience = std::chrono::seconds(5);           // for one answer of a node

void add(kv::scrub_report& to, const kv::scrub_report& r) {
  to.extents += r.extents;
  to.blocks += r.blocks;
  to.block_bytes += r.block_bytes;
  to.shards += r.shards;
  to.shard_bytes += r.shard_bytes;
  to.missing += r.missing;
  to.rotten += r.rotten;
  to.orphans += r.orphans;
  to.young_orphans += r.young_orphans;
  to.strays += r.strays;
  to.lost += r.lost;
  to.lost_blocks += r.lost_blocks;
  to.index_findings += r.index_findings;
  to.unreplicated += r.unreplicated;
  to.rebuilt += r.rebuilt;
  to.adopted += r.adopted;
  to.removed_orphans += r.removed_orphans;
  to.removed_strays += r.removed_strays;
  to.restored += r.restored;
  to.dropped += r.dropped;
  to.waiting += r.waiting;
  to.draining += r.draining;
  to.relocated += r.relocated;
  to.kept_orphans += r.kept_orphans;
  to.stopped |= r.stopped;
  for (auto t : r.absent)
    if (std::find(to.absent.begin(), to.absent.end(), t) == to.absent.end()) to.absent.push_back(t);
  for (const auto& n : r.notes)
    if (to.notes.size() < 100) to.notes.push_back(n);
}

template <class Request>
result<kv_scrub_state> ask_scrubber(caf::scoped_actor& self, const scrubber_actor& to, Request request) {
  result<kv_scrub_state> out = fail(errc::timeout, "no answer in time");
  self->request(to, std::chrono::duration_cast<std::chrono::microseconds>(nanoseconds(patience)), request)
      .receive([&](kv_scrub_state& s) { out = std::move(s); }, [&](caf::error& e) { out = fail(from_caf(e)); });
  return out;
}

}  // namespace

cluster_store::cluster_store(const cluster_store_options& options)
    : options_(options), net_({}), users_(std::make_shared<latch>()) {}

result<std::unique_ptr<cluster_store>> cluster_store::open(const cluster_store_options& options) {
  std::unique_ptr<cluster_store> s(new cluster_store(options));
  if (auto connected = s->connect(); !connected) return fail(connected.error());
  return s;
}

result<void> cluster_store::connect() {
  TROUPE_TRY(auto director, net_.dial<director_actor>(options_.director, patience));
  pool_ = std::make_unique<kv::io_pool>(options_.threads, 65'536);
  transport::options t;
  t.shared_memory = options_.transport.shared_memory;
  t.deadline = options_.transport.peer_deadline;
  TROUPE_TRY(auto plane, transport::make_process_transport(t));
  plane_ = std::move(plane);
  directory_options d;
  d.director = options_.director;
  d.agent = std::make_shared<local_agent>();
  directory_ = spawn_directory(net_.system(), d);
  session_ = std::make_shared<store_session>();
  store_client_options c;
  ++users_->count;
  c.keep = std::shared_ptr<void>(this, [u = users_](void*) {
    std::lock_guard lock(u->mutex);
    --u->count;
    u->changed.notify_all();
  });
  c.directory = directory_;
  c.director = director;
  c.plane = plane_;
  c.compute = pool_.get();
  c.wall = &kv::system_unix_clock();
  c.client.seed = entropy_seed();
  c.client.hedge_after = options_.hedge_after;
  c.client.read_window = c.client.write_window = options_.window;
  c.staging_bytes = std::max<uint64_t>(options_.window, 64ull << 20);
  spawn_store_client(net_.system(), net_.system().node(), nullptr, session_, std::move(c));
  auto promise = std::make_shared<std::promise<result<kv::store_layout>>>();
  auto future = promise->get_future();
  session_->when_ready(options_.ready_within, [promise](result<void> ready, store_state& s) {
    if (!ready) return promise->set_value(fail(ready.error()));
    kv::store_layout l;
    l.data = s.data;
    l.parity = s.parity;
    l.targets = s.seats * s.disks;
    l.epoch = s.epoch;
    l.scheme = s.scheme;
    promise->set_value(l);
  });
  TROUPE_TRY(layout_, future.get());
  kv::hash_scheme wanted = layout_.scheme;
  if (options_.block_tokens) wanted.block_tokens = *options_.block_tokens;
  if (options_.fingerprint) wanted.fingerprint = *options_.fingerprint;
  return kv::check_same_scheme(wanted, layout_.scheme, "the store of " + dir());
}

cluster_store::~cluster_store() {
  if (session_) {
    auto idle = wait<bool>([](store_state& s, kv::reply<bool> back) { s.client->idle([back] { back(true); }); });
    (void)idle;
  }
  if (session_) session_->close();
  if (directory_) caf::anon_send_exit(caf::actor_cast<caf::actor>(directory_), caf::exit_reason::user_shutdown);
  {
    std::unique_lock lock(users_->mutex);
    users_->changed.wait(lock, [this] { return users_->count == 0; });
  }
  pool_.reset();
  plane_.reset();
}

std::vector<std::string> cluster_store::notes() {
  return snapshot<std::vector<std::string>>([](store_state& s) {
    std::vector<std::string> out;
    for (const auto& n : s.nodes) {
      if (!n.up) out.push_back(fmt::format("storage node {} is away: {}", n.seat, n.why));
      for (const auto& t : n.targets)
        if (n.up && !t.actor) out.push_back(fmt::format("target {} is absent: {}", t.id.value, t.text));
    }
    return out;
  });
}

std::vector<kv::target_id> cluster_store::absent() {
  return snapshot<std::vector<kv::target_id>>([](store_state& s) {
    std::vector<kv::target_id> out;
    for (uint32_t seat = 0; seat < s.seats; ++seat) {
      for (uint32_t d = 0; d < s.disks; ++d) {
        const kv::target_id id{seat * s.disks + d + 1};
        const auto& n = s.nodes[seat];
        const bool there = n.up && std::any_of(n.targets.begin(), n.targets.end(),
                                               [&](const auto& t) { return t.id == id && t.actor; });
        if (!there) out.push_back(id);
      }
    }
    return out;
  });
}

std::vector<std::string> cluster_store::disk_names() {
  return snapshot<std::vector<std::string>>([](store_state& s) {
    std::vector<std::string> out;
    for (const auto& n : s.nodes)
      for (const auto& t : n.targets)
        if (n.up && t.actor) out.push_back(t.text);
    return out;
  });
}

result<kv::put_chain_reply> cluster_store::put(kv::put_chain_request request) {
  auto shared = std::make_shared<kv::put_chain_request>(std::move(request));
  return wait<kv::put_chain_reply>(
      [shared](store_state& s, auto back) { s.client->put(std::move(*shared), std::move(back)); });
}

result<kv::get_chain_reply> cluster_store::get(kv::get_chain_request request) {
  auto shared = std::make_shared<kv::get_chain_request>(std::move(request));
  return wait<kv::get_chain_reply>(
      [shared](store_state& s, auto back) { s.client->get(std::move(*shared), std::move(back)); });
}

result<uint64_t> cluster_store::match(std::vector<kv::block_hash> chain) {
  return wait<uint64_t>(
      [chain = std::move(chain)](store_state& s, auto back) { s.client->match(chain, std::move(back)); });
}

result<kv::chain_match> cluster_store::find(std::vector<kv::block_hash> chain) {
  return wait<kv::chain_match>(
      [chain = std::move(chain)](store_state& s, auto back) { s.client->find(chain, std::move(back)); });
}

result<std::vector<uint32_t>> cluster_store::lengths(const std::vector<kv::block_hash>& chain) {
  return wait<std::vector<uint32_t>>([chain](store_state& s, auto back) { s.client->lengths(chain, std::move(back)); });
}

kv::shard_usage cluster_store::usage() {
  kv::shard_usage sum;
  auto ids = snapshot<std::vector<kv::target_id>>([](store_state& s) {
    std::vector<kv::target_id> out;
    for (const auto& [id, t] : s.client->who().targets) out.push_back(id);
    return out;
  });
  for (auto id : ids) {
    auto u = wait<kv::shard_usage>(
        [id](store_state& s, auto back) { s.client->who().targets.at(id)->usage(std::move(back)); });
    if (!u) continue;  // away
    sum.capacity += u->capacity;
    sum.allocated += u->allocated;
    sum.payload += u->payload;
    sum.shards += u->shards;
    sum.chunks += u->chunks;
    sum.largest_free = std::max(sum.largest_free, u->largest_free);
  }
  return sum;
}

std::vector<cluster_store::target_line> cluster_store::targets() {
  auto out = snapshot<std::vector<target_line>>([](store_state& s) {
    std::vector<target_line> lines;
    for (uint32_t seat = 0; seat < s.seats; ++seat) {
      for (uint32_t d = 0; d < s.disks; ++d) {
        const kv::target_id id{seat * s.disks + d + 1};
        target_line line{id, {}, fmt::format("storage node {}: {}", seat, s.nodes[seat].why)};
        for (const auto& t : s.nodes[seat].targets)
          if (s.nodes[seat].up && t.id == id) line.text = t.text;
        lines.push_back(std::move(line));
      }
    }
    return lines;
  });
  for (auto& line : out) {
    auto u = wait<kv::shard_usage>(
        [id = line.id](store_state& s, auto back) { s.client->who().targets.at(id)->usage(std::move(back)); });
    if (u) line.usage = *u;
  }
  return out;
}

kv::index_stats cluster_store::stats() {
  kv::index_stats sum;
  const auto owners = snapshot<size_t>([](store_state& s) { return s.client->who().owners.size(); });
  for (size_t i = 0; i < owners; ++i) {
    auto r =
        wait<kv::index_stats>([i](store_state& s, auto back) { s.client->who().owners[i]->stats(std::move(back)); });
    if (!r) continue;
    sum.extents += r->extents;
    sum.blocks += r->blocks;
    sum.bytes += r->bytes;
    sum.expired_extents += r->expired_extents;
    sum.expired_blocks += r->expired_blocks;
    sum.expired_bytes += r->expired_bytes;
    sum.leases += r->leases;
    sum.corrupt += r->corrupt;
  }
  const uint64_t copies = std::max<uint64_t>(1, std::min<uint64_t>(owners, uint64_t{layout_.parity} + 1));
  for (uint64_t* n :
       {&sum.extents, &sum.blocks, &sum.bytes, &sum.expired_extents, &sum.expired_blocks, &sum.expired_bytes})
    *n = (*n + copies - 1) / copies;
  // Without an owner its copies are missing from the sums: what is visible is counted one by one.
  if (snapshot<size_t>([](store_state& s) { return s.client->who().away.size(); }) == 0) return sum;
  kv::index_stats counted;
  const int64_t now = kv::system_unix_clock().now();
  const auto walked = each_extent([&](const kv::index_change& c) {
    if (c.expiry_s < now) return true;
    ++counted.extents;
    counted.blocks += static_cast<uint64_t>(std::popcount(c.owned));
    counted.bytes += uint64_t{c.info.count} * c.info.block_bytes;
    return true;
  });
  if (walked) std::tie(sum.extents, sum.blocks, sum.bytes) = std::tuple(counted.extents, counted.blocks, counted.bytes);
  return sum;
}

result<void> cluster_store::each_extent(const std::function<bool(const kv::index_change&)>& each) {
  using page = std::pair<std::vector<kv::index_change>, kv::index_cursor>;
  const auto owners = snapshot<size_t>([](store_state& s) { return s.client->who().owners.size(); });
  for (size_t i = 0; i < owners; ++i) {
    kv::index_cursor at;
    while (!at.done) {
      // Each extent by its primary owner only; an owner that is away has none.
      auto got = wait<page>([i, at](store_state& s, kv::reply<page> back) {
        const auto& who = s.client->who();
        kv::owner* o = who.owners[i];
        if (std::find(who.away.begin(), who.away.end(), o->id()) != who.away.end()) {
          kv::index_cursor end;
          end.done = true;
          return back(page{{}, end});
        }
        o->list(at, 256, [&s, o, back](result<page> r) {
          if (r)
            std::erase_if(r->first, [&](const kv::index_change& c) {
              return kv::primary_of(s.client->who(), c.info.slot_first) != o;
            });
          back(std::move(r));
        });
      });
      if (!got) return fail(got.error());
      for (const auto& c : got->first)
        if (!each(c)) return {};
      at = got->second;
    }
  }
  return {};
}

namespace {

// The run of one storage node.
struct scrub_part {
  uint32_t seat = 0;
  scrubber_actor to;
  uint64_t run = 0;
  uint32_t tries = 0;
  bool running = true;
  kv::scrub_report report;
  std::string failed;  // it does not answer: its targets count as absent

  void give_up(const std::string& why) {
    running = false;
    failed = fmt::format("storage node {} did not finish: {}", seat, why);
  }

  // A run of its own that is under way is let end, because it does the same.
  void begin(caf::scoped_actor& self, const kv_scrub& how, const kv::scrub_options& options) {
    for (++tries;; sleep_for(poll_every)) {
      auto s = ask_scrubber(self, to, how);
      if (!s) return give_up(s.error().message);
      if (s->outcome.ok()) {
        run = s->run;
        return;
      }
      if (options.stop && options.stop->load()) return give_up("stopped before it began");
    }
  }

  void look(caf::scoped_actor& self, const kv_scrub& how, const kv::scrub_options& options) {
    const bool stop = options.stop && options.stop->load();
    auto s = ask_scrubber(self, to, kv_scrub_query{run, stop});
    if (!s) return give_up(s.error().message);
    running = s->running;
    report = std::move(s->report);
    if (running || s->outcome.ok()) return;
    // Another node went away meanwhile: the next run knows that.
    if (tries > 3 || stop) return give_up(s->outcome.text);
    running = true;
    begin(self, how, options);
  }
};

}  // namespace

result<kv::scrub_report> cluster_store::scrub(const kv::scrub_options& options) {
  auto parts = snapshot<std::vector<scrub_part>>([](store_state& s) {
    std::vector<scrub_part> out;
    for (const auto& n : s.nodes)
      if (n.up) out.push_back({n.seat, n.scrubber, 0, 0, true, {}, {}});
    return out;
  });
  const auto disks = snapshot<uint32_t>([](store_state& s) { return s.disks; });
  if (parts.empty()) return fail(errc::unavailable, "no storage node answers");
  caf::scoped_actor self{net_.system()};
  const kv_scrub start{options.repair, options.restore, options.drop_lost, options.orphan_grace_s};
  for (auto& p : parts) p.begin(self, start, options);
  kv::scrub_report sum;
  for (bool running = true; running;) {
    running = false;
    sum = {};
    for (auto& p : parts) {
      if (p.running) p.look(self, start, options);
      running |= p.running;
      add(sum, p.report);
      if (p.failed.empty()) continue;
      kv::scrub_report lacks;
      for (uint32_t d = 0; d < disks; ++d) lacks.absent.push_back(kv::target_id{p.seat * disks + d + 1});
      lacks.notes.push_back(p.failed);
      add(sum, lacks);
    }
    if (options.progress) options.progress(sum);
    if (running) sleep_for(poll_every);
  }
  if (std::all_of(parts.begin(), parts.end(), [](const scrub_part& p) { return !p.failed.empty(); }))
    return fail(errc::unavailable, "{}", parts.front().failed);
  std::sort(sum.absent.begin(), sum.absent.end());
  return sum;
}

}  // namespace troupe::node
