#include "runtime/sim/events/invariants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/check.hpp"

namespace troupe::sim {
namespace {

constexpr const char* sentences[invariants] = {
    "free and owned pages of a pool add up to its total",
    "pages are owned for requests that are alive (or ended a moment ago)",
    "pages are not given back while somebody reads them",
    "an attempt of a request has at most one decode owner, and only the newest attempt's tokens are accepted",
    "a request ends exactly once, and nothing of it comes after its end",
    "tokens of a request are accepted in order, each once",
    "a block is served only if its checksum holds and its key is the one asked for",
    "no lease is honoured after it expired",
    "a group does not step while one of its logical experts has no live copy",
    "epochs only grow",
    "a cluster epoch has at most one leader",
    "no queue passes its bound",
    "an index entry is made only after all shards that it names are on disk",
    "after the last fault the cluster serves again within the stated time",
};

std::string seconds_text(int64_t ns) { return fmt::format("{}.{:09} s", ns / 1'000'000'000, ns % 1'000'000'000); }

}  // namespace

const char* sentence_of(invariant i) { return sentences[static_cast<size_t>(i)]; }

struct invariant_checker::state {
  struct pair_hash {
    size_t operator()(const std::pair<uint64_t, uint64_t>& p) const {
      return static_cast<size_t>((p.first * 0x9e3779b97f4a7c15u ^ p.second) * 0xff51afd7ed558ccdu);
    }
  };
  struct open_request {
    actor_number front = 0;
    int64_t submitted = 0;
    uint64_t attempt = 0, next_token = 0;
    // Ranks that have it in their batch, by attempt.
    std::vector<std::pair<uint64_t, actor_number>> owners;
  };
  struct pool {
    uint64_t total = 0, owned = 0;
    std::map<uint64_t, uint64_t> by_request;  // ascending, so that reports are the same in every build
    uint64_t accounts = 0;
  };
  struct transfer {
    actor_number rank = 0;
    uint64_t request = 0, pages = 0;
  };
  struct lease {
    actor_number giver = 0;
    int64_t expires = 0;
  };

  std::optional<violation> broken;
  nanoseconds owner_grace{0};
  std::unordered_map<uint64_t, open_request> open;
  std::unordered_map<uint64_t, int64_t> ended;  // when
  std::unordered_map<actor_number, pool> pools;
  std::unordered_map<uint64_t, transfer> transfers;
  // (rank, request) -> (transfer, pages). Several may read the same pages.
  std::unordered_map<std::pair<uint64_t, uint64_t>, std::vector<std::pair<uint64_t, uint64_t>>, pair_hash> readers;
  std::map<std::pair<actor_number, uint64_t>, lease> leases;  // numbers are the giver's
  std::map<uint64_t, uint64_t> without_copy;                  // group -> experts
  std::map<std::tuple<actor_number, uint64_t, uint64_t>, std::pair<uint64_t, uint64_t>> epochs;  // value, incarnation
  std::map<uint64_t, actor_number> leaders;  // cluster epoch -> director
  std::unordered_map<std::pair<uint64_t, uint64_t>, std::vector<uint64_t>, pair_hash> shards;  // extent -> written
  int64_t over_since = -1, deadline = 0;                                                       // after the last fault
  int64_t first_since = -1;  // when the first request after that was submitted
  bool served = false;       // one that came after it has finished; where none came, any

  // Each looks at the events that it knows and leaves the others alone.
  void about_requests(const event& e);
  void about_pages(const event& e);
  void about_the_cluster(const event& e);
  // The request of an event about one, or null after saying why.
  open_request* request_of(const event& e, const char* what);
  void fail(invariant i, const event& e, std::string what, std::vector<actor_number> also = {}) {
    also.insert(also.begin(), e.actor);
    broken = violation{i, e.at, std::move(what), std::move(also)};
  }
};

invariant_checker::invariant_checker(invariant_options options)
    : s_(std::make_unique<state>()), options_(std::move(options)) {
  s_->owner_grace = options_.owner_grace;
}
invariant_checker::~invariant_checker() = default;

const std::optional<violation>& invariant_checker::broken() const { return s_->broken; }

invariant_checker::state::open_request* invariant_checker::state::request_of(const event& e, const char* what) {
  const uint64_t id = e.v[0];
  const auto at = open.find(id);
  if (at != open.end()) return &at->second;
  const auto over = ended.find(id);
  fail(invariant::ends_once, e,
       over == ended.end() ? fmt::format("{} of request {}, which was never submitted", what, id)
                           : fmt::format("{} of request {}, which ended at {}", what, id, seconds_text(over->second)));
  return nullptr;
}

// Requests, their attempts and owners, and that all have ended at the end.
void invariant_checker::state::about_requests(const event& e) {
  const auto& v = e.v;
  switch (e.kind) {
    case event_kind::request_submitted:
      if (open.contains(v[0]) || ended.contains(v[0]))
        return fail(invariant::ends_once, e, fmt::format("request {} is submitted a second time", v[0]));
      open[v[0]] = {e.actor, e.at, 0, 0, {}};
      if (over_since >= 0 && first_since < 0) first_since = e.at, served = false;
      break;
    case event_kind::request_placed: {
      auto* r = request_of(e, "a placement");
      if (!r) return;
      if (v[1] < r->attempt)
        return fail(invariant::one_decode_owner, e,
                    fmt::format("request {} is placed for attempt {} after attempt {}", v[0], v[1], r->attempt));
      r->attempt = v[1], r->front = e.actor;
      break;
    }
    case event_kind::request_tokens: {
      auto* r = request_of(e, "tokens");
      if (!r) return;
      if (v[1] != r->attempt)
        return fail(
            invariant::one_decode_owner, e,
            fmt::format("tokens of attempt {} of request {} are accepted, the newest is {}", v[1], v[0], r->attempt));
      if (v[2] != r->next_token)
        return fail(invariant::tokens_in_order, e,
                    fmt::format("request {} gets tokens from position {} on, {} is next", v[0], v[2], r->next_token));
      r->next_token += v[3];
      break;
    }
    case event_kind::request_ended: {
      auto* r = request_of(e, "a second end");
      if (!r) return;
      if (v[2] != r->next_token)
        return fail(invariant::tokens_in_order, e,
                    fmt::format("request {} ends with {} tokens, {} were accepted", v[0], v[2], r->next_token));
      if (over_since >= 0 && v[1] == 0 && (first_since < 0 || r->submitted >= over_since)) served = true;
      open.erase(v[0]);
      ended[v[0]] = e.at;
      break;
    }
    case event_kind::decode_owned: {
      const auto at = open.find(v[0]);
      if (at == open.end()) break;  // it ended meanwhile; the rank will hear of it
      auto& owners = at->second.owners;
      for (const auto& [attempt, rank] : owners)
        if (attempt == v[1] && rank != e.actor)
          return fail(invariant::one_decode_owner, e,
                      fmt::format("attempt {} of request {} has a second decode owner", v[1], v[0]), {rank});
      if (std::find(owners.begin(), owners.end(), std::pair{v[1], e.actor}) == owners.end())
        owners.emplace_back(v[1], e.actor);
      break;
    }
    case event_kind::decode_dropped:
      if (const auto at = open.find(v[0]); at != open.end()) std::erase(at->second.owners, std::pair{v[1], e.actor});
      break;
    case event_kind::run_ended:
      if (v[0] == 0) break;
      if (!open.empty()) {
        const auto oldest =
            std::min_element(open.begin(), open.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        return fail(invariant::ends_once, e,
                    fmt::format("the run is over and {} requests have not ended; the first is {}, submitted at {}",
                                open.size(), oldest->first, seconds_text(oldest->second.submitted)),
                    {oldest->second.front});
      }
      break;
    default:
      break;
  }
}

// Pools, their pages and who reads them.
void invariant_checker::state::about_pages(const event& e) {
  const auto& v = e.v;
  switch (e.kind) {
    case event_kind::pool_opened:
      pools[e.actor] = {v[0], 0, {}, 0};
      // Readers of the old pool read memory that is gone; their transfers fail by themselves.
      for (auto t = transfers.begin(); t != transfers.end();)
        t = t->second.rank == e.actor ? transfers.erase(t) : std::next(t);
      std::erase_if(readers, [&](const auto& p) { return p.first.first == e.actor; });
      break;
    case event_kind::pages_taken: {
      auto& p = pools[e.actor];
      p.owned += v[1], p.by_request[v[0]] += v[1];
      if (p.owned > p.total)
        return fail(invariant::pages_add_up, e, fmt::format("{} pages are owned in a pool of {}", p.owned, p.total));
      break;
    }
    case event_kind::pages_given_back: {
      auto& p = pools[e.actor];
      const auto at = p.by_request.find(v[0]);
      const uint64_t held = at == p.by_request.end() ? 0 : at->second;
      if (v[1] > held)
        return fail(invariant::pages_add_up, e,
                    fmt::format("{} pages of request {} are given back, it has {}", v[1], v[0], held));
      uint64_t read = 0;  // by the reader of the most
      if (const auto r = readers.find({e.actor, v[0]}); r != readers.end())
        for (const auto& [transfer, pages] : r->second) read = std::max(read, pages);
      if (held - v[1] < read)
        return fail(invariant::transfers_keep_pages, e,
                    fmt::format("{} of {} pages of request {} are given back while {} of them are read", v[1], held,
                                v[0], read));
      p.owned -= v[1];
      if (held == v[1])
        p.by_request.erase(at);
      else
        at->second -= v[1];
      break;
    }
    case event_kind::page_account: {
      auto& p = pools[e.actor];
      if (p.total != v[1] || v[0] + p.owned != v[1])
        return fail(
            invariant::pages_add_up, e,
            fmt::format("{} free and {} owned pages in a pool of {} (opened with {})", v[0], p.owned, v[1], p.total));
      for (const auto& [request, pages] : p.by_request) {
        const auto over = ended.find(request);
        if (over == ended.end() ? !open.contains(request) : e.at > over->second + owner_grace.count())
          return fail(invariant::owners_live, e,
                      over == ended.end()
                          ? fmt::format("{} pages are owned for request {}, which was never submitted", pages, request)
                          : fmt::format("{} pages are still owned for request {}, which ended at {}", pages, request,
                                        seconds_text(over->second)));
      }
      break;
    }
    case event_kind::transfer_began:
      transfers[v[0]] = {e.actor, v[1], v[2]};
      readers[{e.actor, v[1]}].emplace_back(v[0], v[2]);
      if (const auto& p = pools[e.actor]; !p.by_request.contains(v[1]) || p.by_request.at(v[1]) < v[2])
        return fail(invariant::transfers_keep_pages, e,
                    fmt::format("{} pages of request {} are to be read, the rank has {}", v[2], v[1],
                                p.by_request.contains(v[1]) ? p.by_request.at(v[1]) : 0));
      break;
    case event_kind::transfer_ended:
      if (const auto at = transfers.find(v[0]); at != transfers.end()) {
        const auto r = readers.find({at->second.rank, at->second.request});
        std::erase_if(r->second, [&](const auto& t) { return t.first == v[0]; });
        if (r->second.empty()) readers.erase(r);
        transfers.erase(at);
      }
      break;
    default:
      break;
  }
}

// Leases, epochs, leaders, experts, queues, the store, and what ends the calm after faults.
void invariant_checker::state::about_the_cluster(const event& e) {
  const auto& v = e.v;
  switch (e.kind) {
    case event_kind::lease_granted:
      leases[{e.actor, v[0]}] = {e.actor, static_cast<int64_t>(v[2])};
      break;
    case event_kind::lease_renewed:
    case event_kind::lease_used: {
      const bool renewed = e.kind == event_kind::lease_renewed;
      const auto at = leases.find({e.actor, v[0]});
      if (at == leases.end())
        return fail(invariant::leases_unexpired, e,
                    fmt::format("lease {} is {}, which was never granted", v[0], renewed ? "renewed" : "used"));
      if (e.at > at->second.expires)
        return fail(invariant::leases_unexpired, e,
                    fmt::format("lease {} is {}, it expired at {}", v[0], renewed ? "renewed" : "used",
                                seconds_text(at->second.expires)));
      if (renewed) at->second.expires = std::max(at->second.expires, static_cast<int64_t>(v[1]));
      break;
    }
    case event_kind::epoch_seen: {
      auto& [value, life] = epochs[{e.actor, v[0], v[1]}];
      if (v[3] < life || (v[3] == life && v[2] < value))
        return fail(invariant::epochs_grow, e,
                    fmt::format("epoch {} of kind {} (of {}) in incarnation {} after epoch {} in incarnation {}", v[2],
                                v[0], v[1], v[3], value, life));
      value = v[2], life = v[3];
      break;
    }
    case event_kind::leader: {
      const auto [at, first] = leaders.emplace(v[0], e.actor);
      if (!first && at->second != e.actor)
        return fail(invariant::one_leader, e, fmt::format("cluster epoch {} has a second leader", v[0]), {at->second});
      if (first && at != std::prev(leaders.end()))
        return fail(invariant::epochs_grow, e,
                    fmt::format("a leader takes cluster epoch {} after epoch {}", v[0], leaders.rbegin()->first),
                    {leaders.rbegin()->second});
      break;
    }
    case event_kind::step:
      if (const auto at = without_copy.find(v[0]); at != without_copy.end() && at->second > 0)
        return fail(invariant::experts_live, e,
                    fmt::format("group {} steps while {} experts have no live copy", v[0], at->second));
      break;
    case event_kind::expert_account:
      without_copy[v[0]] = v[1];
      break;
    case event_kind::queue_length:
      if (v[1] > v[2])
        return fail(invariant::queues_bounded, e,
                    fmt::format("queue {} has {} entries, its bound is {}", v[0], v[1], v[2]));
      break;
    case event_kind::shard_written:
      shards[{v[0], v[1]}].push_back(v[2]);
      break;
    case event_kind::extent_indexed: {
      auto& written = shards[{v[0], v[1]}];
      std::sort(written.begin(), written.end());
      written.erase(std::unique(written.begin(), written.end()), written.end());
      if (written.size() < v[2])
        return fail(invariant::entries_have_shards, e,
                    fmt::format("extent {:016x}-{:016x} is indexed with {} shards, {} are on disk", v[0], v[1], v[2],
                                written.size()));
      break;
    }
    case event_kind::block_served:
      if (v[0] != v[1])
        return fail(invariant::blocks_true, e,
                    fmt::format("block {:016x} was asked for, {:016x} was served", v[0], v[1]));
      if (v[2] != v[3])
        return fail(invariant::blocks_true, e,
                    fmt::format("block {:016x} was served with checksum {:x}, stored was {:x}", v[0], v[3], v[2]));
      break;
    case event_kind::fault_began:
      over_since = -1;
      break;
    case event_kind::faults_over:
      over_since = e.at, deadline = static_cast<int64_t>(v[0]), first_since = -1, served = false;
      break;
    default:
      break;
  }
}

void invariant_checker::on(const event& e) {
  auto& s = *s_;
  if (s.broken) return;
  // A deadline passes by itself; the next event of any kind shows it. What counts are requests submitted since; where
  // none came, those that were open.
  if (s.over_since >= 0 && !s.served && !s.open.empty() &&
      e.at > (s.first_since >= 0 ? s.first_since : s.over_since) + s.deadline) {
    std::vector<actor_number> fronts;
    for (const auto& [id, r] : s.open) fronts.push_back(r.front);
    std::sort(fronts.begin(), fronts.end());
    fronts.erase(std::unique(fronts.begin(), fronts.end()), fronts.end());
    return s.fail(invariant::serves_again, e,
                  fmt::format("faults were over at {}, and no request {} has finished within {}; {} open",
                              seconds_text(s.over_since),
                              s.first_since >= 0 ? "submitted since (the first at " + seconds_text(s.first_since) + ")"
                                                 : std::string("of those open"),
                              seconds_text(s.deadline), s.open.size()),
                  fronts);
  }
  s.about_requests(e);
  if (!s.broken) s.about_pages(e);
  if (!s.broken) s.about_the_cluster(e);
}

std::string invariant_checker::report(const event_log& log) const {
  TROUPE_CHECK(s_->broken, "nothing is broken");
  const auto& b = *s_->broken;
  std::string out = fmt::format("VIOLATION at {} (seed {}): {}\n  {}\n", seconds_text(b.at), options_.seed,
                                sentence_of(b.broken), b.what);
  std::string who;
  for (const auto a : b.actors) who += (who.empty() ? "" : ", ") + log.name(a);
  out += fmt::format("  the last events of {}:\n", who);
  for (const auto& line : log.story(b.actors, 60)) out += "    " + line + "\n";
  if (!options_.command.empty()) out += "  again: " + options_.command + "\n";
  return out;
}

}  // namespace troupe::sim
