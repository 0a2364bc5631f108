#include "kv/store/scrub.hpp"

#include <algorithm>

#include "kv/store/extent_write.hpp"
#include "kv/store/scrub_state.hpp"

namespace troupe::kv {

bool scrub_report::clean() const {
  return missing == 0 && rotten == 0 && orphans == young_orphans && strays == 0 && lost == 0 && index_findings == 0 &&
         unreplicated == 0 && absent.empty() && !stopped;
}

bool scrub_report::repaired() const { return waiting == 0 && lost == dropped && absent.empty() && !stopped; }

namespace detail {
namespace {

constexpr size_t damage_batch = 64;

// The members in which a shard's footer and the index may differ: the index knows moves and extensions.
bool same_extent(const extent_info& footer, const extent_info& record) {
  extent_info a = footer;
  a.targets = record.targets;
  a.epoch = record.epoch;
  a.expiry = record.expiry;
  a.traffic = record.traffic;
  return a == record;
}

struct counting {
  size_t left = 1;
  std::function<void()> then;
  void done() {
    if (--left == 0) then();
  }
};

// Frees shards one by one where they were found.
void remove_found(const std::shared_ptr<scrubbing>& s, const std::vector<std::pair<target_id, shard_key>>& which,
                  std::function<void()> done) {
  auto c = std::make_shared<counting>();
  c->then = std::move(done);
  for (const auto& [t, key] : which) {
    ++c->left;
    s->who.targets.at(t)->remove({key}, [c](result<void>) { c->done(); });
  }
  s->home.post([c] { c->done(); });
}

flow check_index(std::shared_ptr<scrubbing> s, reply<void> done) {
  bool told = false;
  for (owner* o : s->who.owners) {
    if (s->options.primary ? o->id() != *s->options.primary : s->away(o->id())) continue;
    index_cursor at;
    while (!at.done && !s->stop()) {
      using page = std::pair<std::vector<index_finding>, index_cursor>;
      auto r = co_await answer_of<page>([&](reply<page> back) { o->check(at, 1024, false, back); });
      if (r && !r->first.empty() && s->options.repair) {
        const auto ready = told || !s->options.before_index_repair ? result<void>{} : s->options.before_index_repair();
        told = true;
        if (!ready)
          r = fail(ready.error());
        else
          r = co_await answer_of<page>([&](reply<page> back) { o->check(at, 1024, true, back); });
      }
      if (!r) {
        done(fail(r.error()));
        co_return;
      }
      for (const auto& f : r->first) {
        ++s->out.index_findings;
        s->note(fmt::format("index owner {}: {}", o->id().value, f.what));
        // The blocks of a record that had to go are still on the targets.
        s->restore |= s->options.repair;
      }
      at = r->second;
    }
  }
  done({});
}

flow run(std::shared_ptr<scrubbing> s, reply<scrub_report> done) {
  s->restore = s->options.restore;
  auto index = co_await answer_of<void>([&](reply<void> back) { check_index(s, back); });
  if (!index) {
    done(fail(index.error()));
    co_return;
  }
  s->walk = std::make_shared<extent_walk>(s->who, s->home);
  while (!s->stop()) {
    using next = std::optional<found_extent>;
    auto r = co_await answer_of<next>([&](reply<next> back) { s->walk->next(back); });
    if (!r) {
      co_await s->group;
      done(fail(r.error()));
      co_return;
    }
    if (!*r) break;
    found_extent found = std::move(**r);
    if (s->options.primary) {
      const owner* first = primary_of(s->who, found.records.empty() ? found.shards.front().second.extent.slot_first
                                                                    : found.records.begin()->second.info.slot_first);
      if (!first || first->id() != *s->options.primary) continue;
    }
    uint64_t bytes = 0;
    for (const auto& [t, f] : found.shards) bytes += f.payload_bytes;
    s->group.add();
    co_await entry_of(s->gate, s->home, bytes);
    if (s->options.bytes_per_s > 0 && bytes > 0) {
      // Each extent takes its share of time from when the one before had its.
      s->due = std::max(s->due, s->home.now()) +
               nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(bytes) /
                                                static_cast<double>(s->options.bytes_per_s)));
      const nanoseconds wait = s->due - s->home.now();
      co_await signal_of([&](std::function<void()> back) { s->home.post_after(wait, back); });
    }
    inspect(s, std::move(found), bytes);
    if (s->damaged.size() >= damage_batch) {
      co_await s->group;
      co_await signal_of([&](std::function<void()> back) { repair_all(s, back); });
    }
  }
  co_await s->group;
  co_await signal_of([&](std::function<void()> back) { repair_all(s, back); });
  s->out.stopped = s->stop();
  s->out.absent.assign(s->walk->absent().begin(), s->walk->absent().end());
  if (!s->duplicates.empty()) {
    const auto& out = s->out;
    if (out.lost == out.dropped && out.waiting == 0 && out.absent.empty() && s->who.away.empty() && !out.stopped) {
      co_await signal_of([&](std::function<void()> back) { remove_found(s, s->duplicates, back); });
      s->out.removed_orphans += s->duplicates.size();
    } else {
      s->out.kept_orphans += s->duplicates.size();
    }
  }
  done(s->out);
}

}  // namespace

void tell_moved(const std::shared_ptr<scrubbing>& s, const std::vector<owner*>& owners, index_change record,
                std::function<void()> done) {
  auto c = std::make_shared<counting>();
  c->then = std::move(done);
  for (owner* o : owners) {
    ++c->left;
    o->apply({record}, [c](result<void>) { c->done(); });
  }
  s->home.post([c] { c->done(); });
}

flow inspect(std::shared_ptr<scrubbing> s, found_extent found, uint64_t gate_bytes) {
  scrub_report& out = s->out;
  const bool repair = s->options.repair;
  bool unsure = false;  // an owner did not answer
  if (found.records.empty() && s->restore && repair && !found.shards.empty()) {
    // Bring the record back if enough shards are there; where they are now is what counts, not what footers say.
    extent_info info = found.shards.front().second.extent;
    std::set<uint32_t> have;
    for (const auto& [t, f] : found.shards) {
      if (!same_extent(f.extent, info)) continue;
      info.targets[f.shard] = t;
      have.insert(f.shard);
    }
    if (have.size() >= info.data) {
      for (owner* o : owners_of(s->who, info.slot_first)) {
        auto r = co_await answer_of<std::vector<extent_id>>(
            [&](reply<std::vector<extent_id>> back) { o->restore({info}, back); });
        unsure |= !r.has_value();
        if (!r || !r->empty()) continue;
        crash_point(s->options.crash, "scrub.restored");
        lookup_request ask;
        ask.hashes = info.hashes;
        auto back_in = co_await answer_of<lookup_reply>([&](reply<lookup_reply> back) { o->lookup(ask, back); });
        unsure |= !back_in.has_value();
        if (!back_in) continue;
        for (const auto& e : back_in->extents) {
          if (e.info.id != found.id) continue;
          index_change change;
          change.info = e.info;
          change.expiry_s = e.expiry_s;
          change.owned = e.owned;
          found.records[o->id()] = change;
        }
      }
      if (!found.records.empty()) ++out.restored;
    }
  }
  std::vector<std::pair<target_id, shard_key>> unwanted;
  if (found.records.empty()) {
    std::set<uint32_t> have;
    for (const auto& [t, f] : found.shards) {
      ++out.orphans;
      const bool young = f.extent.written + s->options.orphan_grace_s >= s->wall.now() && s->options.orphan_grace_s > 0;
      if (same_extent(f.extent, found.shards.front().second.extent)) have.insert(f.shard);
      if (young)
        ++out.young_orphans;
      else
        unwanted.emplace_back(t, shard_key{f.extent.id, f.shard});
    }
    bool remove = repair && !unwanted.empty();
    if (!unwanted.empty() && s->restore) {
      // Nobody knows whether it was acknowledged. What it lacks may be on a target that is away, or come back.
      const extent_info& info = found.shards.front().second.extent;
      const bool away = !s->walk->absent().empty() || !s->who.away.empty();
      if (have.size() < info.data) {
        ++out.lost;
        out.lost_blocks += info.count;
        s->note(fmt::format("extent {}: has no record in the index, and {} of its {} shards are there, {} are needed",
                            to_string(found.id), have.size(), info.shards(), uint32_t{info.data}));
        remove = repair && s->options.drop_lost && !away;
        if (remove) ++out.dropped;
        if (repair && !remove) ++out.waiting, out.kept_orphans += unwanted.size();
      } else if (unsure) {
        remove = false;
        ++out.waiting;
        out.kept_orphans += unwanted.size();
      } else if (repair) {
        // Its blocks are another extent's, which may turn out to be lost.
        remove = false;
        for (const auto& one : unwanted) {
          if (s->duplicates.size() < scrubbing::duplicates_max)
            s->duplicates.push_back(one);
          else
            ++out.kept_orphans;
        }
      }
    } else if (!unwanted.empty()) {
      s->note(fmt::format("extent {}: {} shards without a record", to_string(found.id), unwanted.size()));
    }
    if (remove && !s->who.away.empty()) {  // an owner that is away may know it
      remove = false;
      out.kept_orphans += unwanted.size();
    }
    if (remove) {
      co_await signal_of([&](std::function<void()> back) { remove_found(s, unwanted, back); });
      crash_point(s->options.crash, "scrub.orphans_removed");
      out.removed_orphans += unwanted.size();
    }
    s->gate.leave(gate_bytes);
    if (s->options.progress) s->options.progress(out);
    s->group.done();
    co_return;
  }

  damage d;
  d.record = found.records.begin()->second;
  const extent_info info = d.record.info;
  ++out.extents;
  out.blocks += info.count;
  for (uint32_t b = 0; b < info.count; ++b) out.block_bytes += info.length(b);
  for (owner* o : s->who.owners) {
    if (found.records.contains(o->id())) d.owners.push_back(o);
  }
  std::vector<owner*> lacking;
  for (owner* o : owners_of(s->who, info.slot_first)) {
    if (!found.records.contains(o->id()) && !s->away(o->id())) lacking.push_back(o);
  }
  if (!lacking.empty()) {
    out.unreplicated += lacking.size();
    s->note(fmt::format("extent {}: {} index owners lack its record", to_string(found.id), lacking.size()));
    if (repair) co_await signal_of([&](std::function<void()> back) { tell_moved(s, lacking, d.record, back); });
  }

  // Every shard that was found is read; then the index's places are filled, strays where they are needed.
  std::vector<uint8_t> good(found.shards.size(), 0);
  {
    wait_group checks(s->home);
    for (size_t i = 0; i < found.shards.size(); ++i) {
      const auto& [t, f] = found.shards[i];
      if (!same_extent(f.extent, info)) continue;
      checks.add();
      ++out.shards;
      out.shard_bytes += f.payload_bytes;
      s->who.targets.at(t)->check({found.id, f.shard}, [&good, &checks, i](result<void> r) {
        good[i] = r ? 1 : 0;
        checks.done();
      });
    }
    co_await checks;
  }
  if (static_cast<uint32_t>(std::count(good.begin(), good.end(), 1)) < info.shards()) {
    // It may have been reclaimed since the lists were read: then nothing is wrong.
    using infos = std::vector<extent_info>;
    auto still = co_await answer_of<infos>([&](reply<infos> back) { d.owners.front()->describe({found.id}, back); });
    if (still && still->empty()) {
      s->gate.leave(gate_bytes);
      s->group.done();
      co_return;
    }
  }
  std::vector<bool> used(found.shards.size(), false);
  std::set<target_id> held;  // targets that have a good shard where it belongs, or one that is adopted
  for (size_t i = 0; i < found.shards.size(); ++i) {
    const auto& [t, f] = found.shards[i];
    if (good[i] && f.shard < info.shards() && info.targets[f.shard] == t) held.insert(t);
  }
  auto updated = info;
  bool moved = false, absent = false;
  for (uint32_t shard = 0; shard < info.shards(); ++shard) {
    const target_id where = info.targets[shard];
    size_t at = SIZE_MAX, other = SIZE_MAX;
    for (size_t i = 0; i < found.shards.size(); ++i) {
      const auto& [t, f] = found.shards[i];
      if (f.shard != shard) continue;
      if (t == where)
        at = i;
      else if (good[i] && !held.contains(t))
        other = i;
    }
    if (at != SIZE_MAX) used[at] = true;
    if (at != SIZE_MAX && good[at]) {
      d.good.emplace_back(where, shard);
      continue;
    }
    if (at != SIZE_MAX) {
      ++out.rotten;
      d.rotten.emplace_back(where, shard);
      s->note(fmt::format("extent {}: shard {} on target {} does not hold its checksum", to_string(found.id), shard,
                          where.value));
    } else {
      ++out.missing;
      absent |= where != target_id{0} && (s->walk->absent().contains(where) || !s->who.targets.contains(where));
      s->note(fmt::format("extent {}: shard {} is missing on target {}", to_string(found.id), shard, where.value));
    }
    if (other != SIZE_MAX && repair) {  // a rebuild that was cut before the index knew of it
      used[other] = true;
      if (at != SIZE_MAX) used[at] = false;  // the rotten one is not needed any more
      updated.targets[shard] = found.shards[other].first;
      held.insert(updated.targets[shard]);
      d.good.emplace_back(updated.targets[shard], shard);
      moved = true;
      ++out.adopted;
      continue;
    }
    d.lost.push_back(shard);
  }
  for (size_t i = 0; i < found.shards.size(); ++i) {
    if (used[i]) continue;
    unwanted.emplace_back(found.shards[i].first, shard_key{found.id, found.shards[i].second.shard});
    s->note(fmt::format("extent {}: shard {} on target {}, where the index does not name it", to_string(found.id),
                        found.shards[i].second.shard, found.shards[i].first.value));
  }
  out.strays += unwanted.size();
  for (uint32_t shard : d.lost) {
    if (held.contains(updated.targets[shard])) updated.targets[shard] = target_id{0};  // another one lies there now
  }
  if (moved) {
    d.record.info = updated;
    index_change record = d.record;
    record.kind = index_change::kind_t::move;
    co_await signal_of([&](std::function<void()> back) { tell_moved(s, d.owners, record, back); });
    crash_point(s->options.crash, "scrub.adopted");
  }
  for (const auto& [t, shard] : d.good) {
    (void)shard;
    out.draining += takes_new(s->who, t) ? 0 : 1;
  }
  const size_t good_shards = d.good.size();
  if (good_shards < info.data) {
    ++out.lost;
    out.lost_blocks += info.count;
    s->note(fmt::format("extent {}: {} of {} shards are good, {} are needed: its {} blocks cannot be read",
                        to_string(found.id), d.good.size(), info.shards(), info.data, info.count));
    if (repair && s->options.drop_lost && !absent) {
      for (owner* o : d.owners) {
        co_await answer_of<remove_reply>(
            [&](reply<remove_reply> back) { o->remove({found.id}, remove_why::lost, back); });
      }
      crash_point(s->options.crash, "scrub.dropped");
      unwanted.clear();
      for (const auto& [t, f] : found.shards) unwanted.emplace_back(t, shard_key{found.id, f.shard});
      co_await signal_of([&](std::function<void()> back) { remove_found(s, unwanted, back); });
      out.removed_strays += unwanted.size();
      ++out.dropped;
    } else if (repair) {
      ++out.waiting;
    }
  }
  // Before anything is written: a new shard may come to where a stray one lies. While the extent lacks shards, whatever
  // there is of it may be of use.
  if (repair && !unwanted.empty() && good_shards >= info.data) {
    co_await signal_of([&](std::function<void()> back) { remove_found(s, unwanted, back); });
    crash_point(s->options.crash, "scrub.strays_removed");
    out.removed_strays += unwanted.size();
  }
  if (repair && good_shards >= info.data) {
    co_await signal_of([&](std::function<void()> back) { relocate(s, &d, back); });
    if (!d.lost.empty()) s->damaged.push_back(std::move(d));
  }
  s->gate.leave(gate_bytes);
  if (s->options.progress) s->options.progress(out);
  s->group.done();
}

}  // namespace detail

void scrub(members who, scrub_options options, executor& home, const unix_clock& wall, reply<scrub_report> done) {
  auto s = std::make_shared<detail::scrubbing>(std::move(who), std::move(options), home, wall);
  detail::run(std::move(s), std::move(done));
}

}  // namespace troupe::kv
