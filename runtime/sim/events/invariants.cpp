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
  int64_t now = 0;
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
  bool served = false;  // a request that came after it has finished

  void fail(invariant i, const event& e, std::string what, std::vector<actor_number> also = {}) {
    also.insert(also.begin(), e.actor);
    broken = violation{i, e.at, std::move(what), std::move(also)};
  }
};

invariant_checker::invariant_checker(invariant_options options)
    : s_(std::make_unique<state>()), options_(std::move(options)) {}
invariant_checker::~invariant_checker() = default;

const std::optional<violation>& invariant_checker::broken() const { return s_->broken; }

void invariant_checker::on(const event& e) {
  auto& s = *s_;
  if (s.broken) return;
  s.now = e.at;
  const auto& v = e.v;
  // A deadline passes by itself; the next event of any kind shows it.
  if (s.over_since >= 0 && !s.served && e.at > s.over_since + s.deadline) {
    std::vector<actor_number> fronts;
    for (const auto& [id, r] : s.open) fronts.push_back(r.front);
    std::sort(fronts.begin(), fronts.end());
    fronts.erase(std::unique(fronts.begin(), fronts.end()), fronts.end());
    return s.fail(invariant::serves_again, e,
                  fmt::format("faults were over at {}, and no request submitted since has finished within {}; {} open",
                              seconds_text(s.over_since), seconds_text(s.deadline), s.open.size()),
                  fronts);
  }
  // The request of an event about one, or null after saying why.
  const auto request_of = [&](const char* what) -> state::open_request* {
    const auto at = s.open.find(v[0]);
    if (at != s.open.end()) return &at->second;
    const auto over = s.ended.find(v[0]);
    s.fail(invariant::ends_once, e,
           over == s.ended.end()
               ? fmt::format("{} of request {}, which was never submitted", what, v[0])
               : fmt::format("{} of request {}, which ended at {}", what, v[0], seconds_text(over->second)));
    return nullptr;
  };

  switch (e.kind) {
    case event_kind::request_submitted:
      if (s.open.contains(v[0]) || s.ended.contains(v[0]))
        return s.fail(invariant::ends_once, e, fmt::format("request {} is submitted a second time", v[0]));
      s.open[v[0]] = {e.actor, e.at, 0, 0, {}};
      break;
    case event_kind::request_placed: {
      auto* r = request_of("a placement");
      if (!r) return;
      if (v[1] < r->attempt)
        return s.fail(invariant::one_decode_owner, e,
                      fmt::format("request {} is placed for attempt {} after attempt {}", v[0], v[1], r->attempt));
      r->attempt = v[1], r->front = e.actor;
      break;
    }
    case event_kind::request_tokens: {
      auto* r = request_of("tokens");
      if (!r) return;
      if (v[1] != r->attempt)
        return s.fail(
            invariant::one_decode_owner, e,
            fmt::format("tokens of attempt {} of request {} are accepted, the newest is {}", v[1], v[0], r->attempt));
      if (v[2] != r->next_token)
        return s.fail(invariant::tokens_in_order, e,
                      fmt::format("request {} gets tokens from position {} on, {} is next", v[0], v[2], r->next_token));
      r->next_token += v[3];
      break;
    }
    case event_kind::request_ended: {
      auto* r = request_of("a second end");
      if (!r) return;
      if (v[2] != r->next_token)
        return s.fail(invariant::tokens_in_order, e,
                      fmt::format("request {} ends with {} tokens, {} were accepted", v[0], v[2], r->next_token));
      if (s.over_since >= 0 && r->submitted >= s.over_since && v[1] == 0) s.served = true;
      s.open.erase(v[0]);
      s.ended[v[0]] = e.at;
      break;
    }
    case event_kind::decode_owned: {
      const auto at = s.open.find(v[0]);
      if (at == s.open.end()) break;  // it ended meanwhile; the rank will hear of it
      auto& owners = at->second.owners;
      for (const auto& [attempt, rank] : owners)
        if (attempt == v[1] && rank != e.actor)
          return s.fail(invariant::one_decode_owner, e,
                        fmt::format("attempt {} of request {} has a second decode owner", v[1], v[0]), {rank});
      if (std::find(owners.begin(), owners.end(), std::pair{v[1], e.actor}) == owners.end())
        owners.emplace_back(v[1], e.actor);
      break;
    }
    case event_kind::decode_dropped:
      if (const auto at = s.open.find(v[0]); at != s.open.end())
        std::erase(at->second.owners, std::pair{v[1], e.actor});
      break;
    case event_kind::pool_opened:
      s.pools[e.actor] = {v[0], 0, {}, 0};
      // Readers of the old pool read memory that is gone; their transfers fail by themselves.
      for (auto t = s.transfers.begin(); t != s.transfers.end();)
        t = t->second.rank == e.actor ? s.transfers.erase(t) : std::next(t);
      std::erase_if(s.readers, [&](const auto& p) { return p.first.first == e.actor; });
      break;
    case event_kind::pages_taken: {
      auto& p = s.pools[e.actor];
      p.owned += v[1], p.by_request[v[0]] += v[1];
      if (p.owned > p.total)
        return s.fail(invariant::pages_add_up, e, fmt::format("{} pages are owned in a pool of {}", p.owned, p.total));
      break;
    }
    case event_kind::pages_given_back: {
      auto& p = s.pools[e.actor];
      const auto at = p.by_request.find(v[0]);
      const uint64_t held = at == p.by_request.end() ? 0 : at->second;
      if (v[1] > held)
        return s.fail(invariant::pages_add_up, e,
                      fmt::format("{} pages of request {} are given back, it has {}", v[1], v[0], held));
      uint64_t read = 0;  // by the reader of the most
      if (const auto r = s.readers.find({e.actor, v[0]}); r != s.readers.end())
        for (const auto& [transfer, pages] : r->second) read = std::max(read, pages);
      if (held - v[1] < read)
        return s.fail(invariant::transfers_keep_pages, e,
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
      auto& p = s.pools[e.actor];
      if (p.total != v[1] || v[0] + p.owned != v[1])
        return s.fail(
            invariant::pages_add_up, e,
            fmt::format("{} free and {} owned pages in a pool of {} (opened with {})", v[0], p.owned, v[1], p.total));
      for (const auto& [request, pages] : p.by_request) {
        const auto over = s.ended.find(request);
        if (over == s.ended.end() ? !s.open.contains(request) : e.at > over->second + options_.owner_grace.count())
          return s.fail(
              invariant::owners_live, e,
              over == s.ended.end()
                  ? fmt::format("{} pages are owned for request {}, which was never submitted", pages, request)
                  : fmt::format("{} pages are still owned for request {}, which ended at {}", pages, request,
                                seconds_text(over->second)));
      }
      break;
    }
    case event_kind::transfer_began:
      s.transfers[v[0]] = {e.actor, v[1], v[2]};
      s.readers[{e.actor, v[1]}].emplace_back(v[0], v[2]);
      if (const auto& p = s.pools[e.actor]; !p.by_request.contains(v[1]) || p.by_request.at(v[1]) < v[2])
        return s.fail(invariant::transfers_keep_pages, e,
                      fmt::format("{} pages of request {} are to be read, the rank has {}", v[2], v[1],
                                  p.by_request.contains(v[1]) ? p.by_request.at(v[1]) : 0));
      break;
    case event_kind::transfer_ended:
      if (const auto at = s.transfers.find(v[0]); at != s.transfers.end()) {
        const auto r = s.readers.find({at->second.rank, at->second.request});
        std::erase_if(r->second, [&](const auto& t) { return t.first == v[0]; });
        if (r->second.empty()) s.readers.erase(r);
        s.transfers.erase(at);
      }
      break;
    case event_kind::lease_granted:
      s.leases[{e.actor, v[0]}] = {e.actor, static_cast<int64_t>(v[2])};
      break;
    case event_kind::lease_renewed:
    case event_kind::lease_used: {
      const bool renewed = e.kind == event_kind::lease_renewed;
      const auto at = s.leases.find({e.actor, v[0]});
      if (at == s.leases.end())
        return s.fail(invariant::leases_unexpired, e,
                      fmt::format("lease {} is {}, which was never granted", v[0], renewed ? "renewed" : "used"));
      if (e.at > at->second.expires)
        return s.fail(invariant::leases_unexpired, e,
                      fmt::format("lease {} is {}, it expired at {}", v[0], renewed ? "renewed" : "used",
                                  seconds_text(at->second.expires)));
      if (renewed) at->second.expires = std::max(at->second.expires, static_cast<int64_t>(v[1]));
      break;
    }
    case event_kind::epoch_seen: {
      auto& [value, life] = s.epochs[{e.actor, v[0], v[1]}];
      if (v[3] < life || (v[3] == life && v[2] < value))
        return s.fail(invariant::epochs_grow, e,
                      fmt::format("epoch {} of kind {} (of {}) in incarnation {} after epoch {} in incarnation {}",
                                  v[2], v[0], v[1], v[3], value, life));
      value = v[2], life = v[3];
      break;
    }
    case event_kind::leader: {
      const auto [at, first] = s.leaders.emplace(v[0], e.actor);
      if (!first && at->second != e.actor)
        return s.fail(invariant::one_leader, e, fmt::format("cluster epoch {} has a second leader", v[0]),
                      {at->second});
      if (first && at != std::prev(s.leaders.end()))
        return s.fail(invariant::epochs_grow, e,
                      fmt::format("a leader takes cluster epoch {} after epoch {}", v[0], s.leaders.rbegin()->first),
                      {s.leaders.rbegin()->second});
      break;
    }
    case event_kind::step:
      if (const auto at = s.without_copy.find(v[0]); at != s.without_copy.end() && at->second > 0)
        return s.fail(invariant::experts_live, e,
                      fmt::format("group {} steps while {} experts have no live copy", v[0], at->second));
      break;
    case event_kind::expert_account:
      s.without_copy[v[0]] = v[1];
      break;
    case event_kind::queue_length:
      if (v[1] > v[2])
        return s.fail(invariant::queues_bounded, e,
                      fmt::format("queue {} has {} entries, its bound is {}", v[0], v[1], v[2]));
      break;
    case event_kind::shard_written:
      s.shards[{v[0], v[1]}].push_back(v[2]);
      break;
    case event_kind::extent_indexed: {
      auto& written = s.shards[{v[0], v[1]}];
      std::sort(written.begin(), written.end());
      written.erase(std::unique(written.begin(), written.end()), written.end());
      if (written.size() < v[2])
        return s.fail(invariant::entries_have_shards, e,
                      fmt::format("extent {:016x}-{:016x} is indexed with {} shards, {} are on disk", v[0], v[1], v[2],
                                  written.size()));
      break;
    }
    case event_kind::block_served:
      if (v[0] != v[1])
        return s.fail(invariant::blocks_true, e,
                      fmt::format("block {:016x} was asked for, {:016x} was served", v[0], v[1]));
      if (v[2] != v[3])
        return s.fail(invariant::blocks_true, e,
                      fmt::format("block {:016x} was served with checksum {:x}, stored was {:x}", v[0], v[3], v[2]));
      break;
    case event_kind::fault_began:
      s.over_since = -1;
      break;
    case event_kind::faults_over:
      s.over_since = e.at, s.deadline = static_cast<int64_t>(v[0]), s.served = false;
      break;
    case event_kind::run_ended:
      if (v[0] == 0) break;
      if (!s.open.empty()) {
        const auto oldest = std::min_element(s.open.begin(), s.open.end(),
                                             [](const auto& a, const auto& b) { return a.first < b.first; });
        return s.fail(invariant::ends_once, e,
                      fmt::format("the run is over and {} requests have not ended; the first is {}, submitted at {}",
                                  s.open.size(), oldest->first, seconds_text(oldest->second.submitted)),
                      {oldest->second.front});
      }
      break;
    default:
      break;
  }
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
