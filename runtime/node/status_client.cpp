#include "runtime/node/status_client.hpp"

#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/node/directory.hpp"

namespace troupe::node {
namespace {

using namespace actors;

template <class Answer, class Handle, class Request>
result<Answer> ask_now(caf::scoped_actor& self, const Handle& to, nanoseconds limit, Request request) {
  result<Answer> out = fail(errc::timeout, "no answer in time");
  self->request(to, std::chrono::duration_cast<std::chrono::microseconds>(limit), std::move(request))
      .receive([&](Answer& a) { out = std::move(a); }, [&](caf::error& e) { out = fail(from_caf(e)); });
  return out;
}

template <class Handle, class Answer, class Request>
void ask_named(caf::scoped_actor& self, const door_actor& door, const std::string& name, nanoseconds limit,
               Request request, std::map<std::string, Answer>& into, const std::string& seat) {
  auto found = ask_now<lookup_reply>(self, door, limit, lookup_request{incarnation{}, name});
  if (!found || !found->outcome.ok() || !found->handle) return;
  auto answer = ask_now<Answer>(self, caf::actor_cast<Handle>(found->handle), limit, request);
  if (answer) into.emplace(seat, std::move(*answer));
}

std::string role_text(const node_entry& n) {
  std::string out;
  for (const auto& r : n.roles) out += (out.empty() ? "" : ",") + r.assignment.seat();
  return out.empty() ? "-" : out;
}

std::string state_text(const node_entry& n) {
  std::string out;
  for (const auto& r : n.roles)
    out += (out.empty() ? "" : ",") + std::string(to_string(r.state)) + (r.text.empty() ? "" : " (" + r.text + ")");
  return out.empty() ? (n.draining ? "draining" : "member") : out;
}

// What a scrub found that is not right.
uint64_t damage(const kv::scrub_report& r) {
  return r.missing + r.rotten + r.strays + r.orphans - r.young_orphans + r.index_findings + r.unreplicated;
}

std::string for_people(uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

std::string store_text(const storage_report& s) {
  std::string out = fmt::format("{} blocks in {} extents, {} of {} in use", s.index.blocks, s.index.extents,
                                for_people(s.usage.allocated), for_people(s.usage.capacity));
  if (s.snapshot_room > 0) out += fmt::format(", {} of {} window snapshots", s.snapshots, s.snapshot_room);
  if (s.absent > 0) out += fmt::format(", {} of {} disks absent", s.absent, s.targets);
  for (const auto& t : s.troubles) out += fmt::format(", A DISK FAILS: {}", t);
  if (s.scrubbing)
    out += fmt::format(", scrubbing: {} extents looked at, {} shards rebuilt", s.scrub.extents, s.scrub.rebuilt);
  else if (s.scrub.extents > 0)
    out += fmt::format(", the last scrub: {} extents, {} wrong, {} shards rebuilt, {} extents waiting", s.scrub.extents,
                       damage(s.scrub), s.scrub.rebuilt, s.scrub.waiting);
  return out;
}

std::string balancer_text(const std::string& role, const balancer_report& b, const cluster_view& view) {
  std::string out = fmt::format("{} balancer at {}: used by {} fronts, {} leases, {} placed, {} refused", role,
                                view.balancer.seat, b.fronts, b.leases, b.placed, b.refused);
  if (b.freed + b.expired > 0) out += fmt::format(", {} freed, {} expired", b.freed, b.expired);
  for (const auto& r : b.ranks)
    out += fmt::format("{} {} {}", &r == b.ranks.data() ? ";" : ",", r.target.name.substr(0, r.target.name.rfind('/')),
                       r.leases);
  return out + "\n";
}

// Versions of a group epoch begin at epoch * 2^32: people see the moves since then.
std::string experts_text(const eplb_report& e) {
  std::string out =
      fmt::format("experts of {}: placement {}.{}, {} moves, {} experts loaded, {} given up, {}, {} of {} steps",
                  e.group, e.placement.value >> 32, e.placement.value & UINT32_MAX, e.moves, e.loaded, e.abandoned,
                  e.phase, e.window, e.interval);
  if (e.looks > 0)
    out += fmt::format("; busiest rank over mean: measured {:.3f}, plan {:.3f} -> {:.3f}", e.lb_measured, e.lb_before,
                       e.lb_after);
  return out + (e.text.empty() ? "\n" : "\n  " + e.text + "\n");
}

bool cache_used(const prefix_counts& c) { return c.reads + c.writes + c.dropped > 0; }

std::string cache_text(const prefix_counts& c) {
  std::string out =
      fmt::format("{} cached blocks read, {} stored, {} writes under way", c.read_blocks, c.stored_blocks, c.writing);
  if (c.read_failed > 0) out += fmt::format(", {} reads failed ({} too slow)", c.read_failed, c.read_late);
  if (c.write_failed > 0) out += fmt::format(", {} writes failed", c.write_failed);
  if (c.dropped > 0) out += fmt::format(", {} blocks not written for want of room", c.dropped_blocks);
  return out;
}

// The tiers of a rank: its pages, its snapshot memory, and what its client of the store has under way.
std::string tiers_text(const rank_report& k) {
  std::string out = fmt::format("tiers: {} of {} pages in use", k.pages_owned, k.pages_total);
  if (const auto& s = k.snapshots; s.places > 0)
    out += fmt::format(", {} of {} snapshot places ({} taken, {} stored, {} used)", s.places - s.places_free, s.places,
                       s.taken, s.stored, s.used);
  const auto& c = k.store;
  return out + fmt::format(", store client: {} reads ({}), {} writes ({}), {} snapshots under way", c.reads,
                           for_people(c.read_bytes), c.writes, for_people(c.write_bytes), c.snapshots);
}

}  // namespace

result<cluster_picture> take_picture(actor_net& net, const config::address& director, nanoseconds limit) {
  TROUPE_TRY(auto handle, net.dial<director_actor>(director, limit));
  caf::scoped_actor self{net.system()};
  auto report = ask_now<status_report>(self, handle, limit, status_query{});
  if (!report)
    return fail(report.error().code, "the director at {} does not answer: {}", director.text(), report.error().message);
  cluster_picture p;
  p.cluster = std::move(*report);
  p.director = director.text();
  for (const node_entry& n : p.cluster.view.nodes) {
    if (n.roles.empty()) continue;
    auto door = net.dial<door_actor>({n.host, n.port}, limit);
    if (!door) continue;
    for (const auto& r : n.roles) {
      std::string seat = r.assignment.seat();
      if (r.assignment.what == role::front) {
        ask_named<entrypoint_actor>(self, *door, seat + "/entrypoint", limit, front_query{}, p.fronts, seat);
        if (n.node != p.cluster.view.balancer.node) continue;
        for (const std::string what : {"prefill", "decode"})
          ask_named<balancer_actor>(self, *door, seat + "/" + what + "_balancer", limit, balancer_query{}, p.balancers,
                                    what);
      } else if (r.assignment.what == role::storage) {
        ask_named<storage_node_actor>(self, *door, seat + "/storage", limit, storage_query{}, p.stores, seat);
      } else {
        ask_named<scheduler_actor>(self, *door, seat + "/scheduler", limit, scheduler_query{}, p.schedulers, seat);
        ask_named<rank_actor>(self, *door, seat + "/rank", limit, rank_query{}, p.ranks, seat);
        std::map<std::string, eplb_report> one;
        ask_named<eplb_rebalancer_actor>(self, *door, seat + "/eplb_rebalancer", limit, eplb_query{}, one, seat);
        if (!one.empty() && one.begin()->second.leads) p.experts[r.assignment.group] = std::move(one.begin()->second);
      }
    }
  }
  return p;
}

std::string as_table(const cluster_picture& p) {
  std::vector<std::vector<std::string>> rows{{"NODE", "NAME", "SEAT", "STATE", "PID", "ACTORS AT", "HTTP AT", "HEARD",
                                              "WAITING", "RUNNING", "PAGES FREE", "IN TRANSFER", "HANDED OVER"}};
  const auto& view = p.cluster.view;
  for (size_t i = 0; i < view.nodes.size(); ++i) {
    const node_entry& n = view.nodes[i];
    std::string waiting = "-", running = "-", pages = "-", serves = "-", moving = "-", handed = "-";
    for (const auto& r : n.roles) {
      if (auto s = p.schedulers.find(r.assignment.seat()); s != p.schedulers.end()) {
        waiting = std::to_string(s->second.waiting);
        running = std::to_string(s->second.running);
        pages = fmt::format("{}/{}", s->second.pages_free, s->second.pages_total);
        if (r.assignment.what == role::decode)
          handed = fmt::format("{} pulled, {} computed", s->second.fetched, s->second.recomputed);
      }
      if (auto k = p.ranks.find(r.assignment.seat()); k != p.ranks.end()) {
        moving = std::to_string(k->second.pages_transfer);
        if (r.assignment.what == role::prefill)
          handed = fmt::format("{} of {}", k->second.transfers.out_done, k->second.transfers.out);
      }
      if (auto f = p.fronts.find(r.assignment.seat()); f != p.fronts.end()) running = std::to_string(f->second.running);
      if (r.assignment.what == role::front && !r.ep_address.empty()) serves = r.ep_address;
    }
    std::string heard = i < p.cluster.heard_ms_ago.size() ? fmt::format("{} ms", p.cluster.heard_ms_ago[i]) : "-";
    // The director's process listens twice; who joins, or names the cluster, needs the director.
    const auto at = n.name == "director" ? p.director : fmt::format("{}:{}", n.host, n.port);
    rows.push_back({std::to_string(n.node.value), n.name, role_text(n), state_text(n), std::to_string(n.pid), at,
                    serves, heard, waiting, running, pages, moving, handed});
  }
  std::vector<size_t> width(rows[0].size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += fmt::format("{:<{}}", row[c], c + 1 < row.size() ? width[c] + 2 : 0);
    out += line + "\n";
  }
  for (const auto& [seat, k] : p.ranks)
    if (cache_used(k.prefix)) out += seat + ": " + cache_text(k.prefix) + "; " + tiers_text(k) + "\n";
  for (const auto& [seat, s] : p.stores) out += seat + ": " + store_text(s) + "\n";
  for (const auto& [role, b] : p.balancers) out += balancer_text(role, b, p.cluster.view);
  for (const auto& seat : p.cluster.empty_seats) out += fmt::format("empty seat: {}\n", seat.seat());
  for (const auto& [group, e] : p.experts) out += experts_text(e);
  return out;
}

std::string as_json(const cluster_picture& p) {
  using json = nlohmann::ordered_json;
  json j{{"complete", p.cluster.complete},
         {"epoch", p.cluster.view.epoch.value},
         {"view_version", p.cluster.view.version}};
  j["nodes"] = json::array();
  for (size_t i = 0; i < p.cluster.view.nodes.size(); ++i) {
    const node_entry& n = p.cluster.view.nodes[i];
    json roles = json::array();
    for (const auto& r : n.roles) {
      std::string seat = r.assignment.seat();
      json role{{"seat", seat},
                {"role", to_string(r.assignment.what)},
                {"state", to_string(r.state)},
                {"group_epoch", r.group.value}};
      if (!r.text.empty()) role["text"] = r.text;
      if (auto s = p.schedulers.find(seat); s != p.schedulers.end()) {
        const auto& x = s->second;
        role["waiting"] = x.waiting;
        role["running"] = x.running;
        role["pages"] = {
            {"total", x.pages_total}, {"free", x.pages_free}, {"reserved", x.pages_reserved}, {"held", x.pages_held}};
        role["fetching"] = x.fetching;
        role["leased"] = x.leased;
        role["fetched"] = x.fetched;
        role["recomputed"] = x.recomputed;
        role["steps"] = x.steps;
        role["tokens"] = x.tokens;
        role["prompt_rows"] = x.prompt_rows;
        role["cached_tokens"] = x.cached_tokens;
        role["reading"] = x.reading;
        role["drafted"] = x.drafted;
        role["accepted"] = x.accepted;
        role["finished"] = x.finished;
        role["cancelled"] = x.cancelled;
        role["failed"] = x.failed;
        role["preempted"] = x.preempted;
      }
      if (auto k = p.ranks.find(seat); k != p.ranks.end()) {
        role["rank"] = {{"pages_total", k->second.pages_total},
                        {"pages_free", k->second.pages_free},
                        {"pages_owned", k->second.pages_owned},
                        {"pages_request", k->second.pages_request},
                        {"pages_transfer", k->second.pages_transfer},
                        {"pages_write_back", k->second.pages_write_back},
                        {"slots_open", k->second.slots_open},
                        {"plans_open", k->second.plans_open},
                        {"steps", k->second.steps}};
        const auto& s = k->second.times;
        role["rank"]["ns"] = {{"total", s.total},
                              {"attention", s.attention},
                              {"dispatch", s.dispatch},
                              {"experts", s.experts},
                              {"combine", s.combine},
                              {"sampling", s.sampling},
                              {"waited_for_peers", s.idle_before}};
        const auto& g = k->second.gaps;
        role["rank"]["gap"] = {
            {"steps", g.steps}, {"gap_ns", g.gap}, {"waited_for_core_ns", g.waited}, {"steps_ns", g.busy}};
        const auto& c = k->second.prefix;
        role["cache"] = {{"reading", c.reading},
                         {"writing", c.writing},
                         {"reads", c.reads},
                         {"read_blocks", c.read_blocks},
                         {"read_failed", c.read_failed},
                         {"read_late", c.read_late},
                         {"read_dropped", c.read_dropped},
                         {"read_seconds", static_cast<double>(c.read_ns) / 1e9},
                         {"writes", c.writes},
                         {"write_blocks", c.write_blocks},
                         {"stored_blocks", c.stored_blocks},
                         {"write_failed", c.write_failed},
                         {"dropped", c.dropped},
                         {"dropped_blocks", c.dropped_blocks}};
        const auto& w = k->second.snapshots;
        role["snapshots"] = {{"places", w.places},
                             {"places_free", w.places_free},
                             {"reading", w.reading},
                             {"writing", w.writing},
                             {"taken", w.taken},
                             {"stored", w.stored},
                             {"write_failed", w.write_failed},
                             {"dropped", w.dropped},
                             {"reads", w.reads},
                             {"used", w.used},
                             {"read_failed", w.read_failed},
                             {"read_late", w.read_late},
                             {"bytes_in", w.bytes_in},
                             {"bytes_out", w.bytes_out}};
        const auto& l = k->second.store;
        role["store_client"] = {{"matches", l.matches},         {"reads", l.reads},
                                {"read_bytes", l.read_bytes},   {"writes", l.writes},
                                {"write_bytes", l.write_bytes}, {"snapshots", l.snapshots}};
        const auto& t = k->second.transfers;
        role["transfers"] = {
            {"offered", t.offered},         {"sending", t.sending},
            {"fetching", t.fetching},       {"places", t.places},
            {"places_free", t.places_free}, {"out", t.out},
            {"out_done", t.out_done},       {"out_expired", t.out_expired},
            {"out_dropped", t.out_dropped}, {"in", t.in},
            {"in_done", t.in_done},         {"in_failed", t.in_failed},
            {"in_dropped", t.in_dropped},   {"stale", t.stale},
            {"bytes_in", t.bytes_in},       {"seconds_in", static_cast<double>(t.nanoseconds_in) / 1e9}};
      }
      if (auto f = p.fronts.find(seat); f != p.fronts.end()) {
        const auto& x = f->second;
        role["http"] = r.ep_address;
        role["ready"] = x.ready;
        role["running"] = x.running;
        role["accepted_requests"] = x.accepted;
        role["finished"] = x.finished;
        role["cancelled"] = x.cancelled;
        role["failed"] = x.failed;
        role["tokens"] = x.tokens;
        role["placed_by_balancer"] = x.balanced;
        role["placed_alone"] = x.alone;
        role["cache"] = {{"matches", x.matches},
                         {"matches_failed", x.matches_failed},
                         {"matches_late", x.matches_late},
                         {"hit_tokens", x.hit_tokens},
                         {"miss_tokens", x.miss_tokens}};
      }
      if (auto s = p.stores.find(seat); s != p.stores.end()) {
        const auto& x = s->second;
        role["storage"] = {{"epoch", x.epoch.value},
                           {"targets", x.targets},
                           {"absent", x.absent},
                           {"troubles", x.troubles},
                           {"extents", x.index.extents},
                           {"blocks", x.index.blocks},
                           {"allocated_bytes", x.usage.allocated},
                           {"capacity_bytes", x.usage.capacity},
                           {"shards", x.usage.shards},
                           {"snapshots", x.snapshots},
                           {"snapshot_room", x.snapshot_room},
                           {"reclaimed_extents", x.reclaimed},
                           {"scrubbing", x.scrubbing},
                           {"scrubbed_extents", x.scrub.extents},
                           {"damage", damage(x.scrub)},
                           {"rebuilt_shards", x.scrub.rebuilt},
                           {"waiting_extents", x.scrub.waiting}};
      }
      roles.push_back(std::move(role));
    }
    json node{{"node", n.node.value}, {"incarnation", n.inc.value}, {"name", n.name}, {"pid", n.pid}, {"host", n.host},
              {"port", n.port}};
    if (i < p.cluster.heard_ms_ago.size()) node["heard_ms_ago"] = p.cluster.heard_ms_ago[i];
    node["roles"] = std::move(roles);
    j["nodes"].push_back(std::move(node));
  }
  j["empty_seats"] = json::array();
  for (const auto& seat : p.cluster.empty_seats) j["empty_seats"].push_back(seat.seat());
  j["balancers"] = json::array();
  for (const auto& [role, b] : p.balancers) {
    json ranks = json::array();
    for (const auto& r : b.ranks)
      ranks.push_back({{"seat", r.target.name.substr(0, r.target.name.rfind('/'))},
                       {"usable", r.usable},
                       {"leases", r.leases},
                       {"tokens", r.tokens}});
    j["balancers"].push_back({{"role", role},
                              {"seat", p.cluster.view.balancer.seat},
                              {"term", b.term.value},
                              {"fronts", b.fronts},
                              {"leases", b.leases},
                              {"placed", b.placed},
                              {"refused", b.refused},
                              {"stale", b.stale},
                              {"freed", b.freed},
                              {"expired", b.expired},
                              {"ranks", std::move(ranks)},
                              {"reasons", b.reasons}});
  }
  j["experts"] = json::array();
  for (const auto& [group, e] : p.experts)
    j["experts"].push_back({{"group", group},
                            {"view", e.view.value},
                            {"ranks", e.ranks},
                            {"placement", e.placement.value},
                            {"phase", e.phase},
                            {"steps_since_look", e.window},
                            {"interval", e.interval},
                            {"looks", e.looks},
                            {"moves", e.moves},
                            {"experts_loaded", e.loaded},
                            {"abandoned", e.abandoned},
                            {"lb_measured", e.lb_measured},
                            {"lb_before", e.lb_before},
                            {"lb_after", e.lb_after},
                            {"text", e.text}});
  j["events"] = p.cluster.events;
  return j.dump(2) + "\n";
}

}  // namespace troupe::node
