#include "kv/store/reclaim.hpp"

#include <algorithm>
#include <memory>

#include "kv/store/extent_write.hpp"
#include "kv/store/flow.hpp"

namespace troupe::kv {
namespace {

struct work {
  members who;
  reclaim_options options;
  executor& home;
  reclaim_report out;
};

// Calls `then` with an error or nothing, once `ids` are out of the index and their shards are gone.
flow take_out(std::shared_ptr<work> w, owner* from, std::vector<extent_id> ids, remove_why why, reply<size_t> then) {
  auto removed = co_await answer_of<remove_reply>([&](reply<remove_reply> back) { from->remove(ids, why, back); });
  if (!removed) {
    then(fail(removed.error()));
    co_return;
  }
  crash_point(w->options.crash, "reclaim.unindexed");
  for (size_t i = 0; i < w->who.owners.size() && !removed->changes.empty(); ++i) {
    owner* other = w->who.owners[i];
    if (other == from) continue;
    // An owner that is away is brought up to date by scrub.
    co_await answer_of<void>([&](reply<void> back) { other->apply(removed->changes, back); });
  }
  crash_point(w->options.crash, "reclaim.replicated");
  wait_group group(w->home);
  for (const auto& info : removed->removed) {
    w->out.bytes += uint64_t{info.count} * info.block_bytes;
    group.add();
    remove_shards(info, w->who, w->home, [&group, w] {
      crash_point(w->options.crash, "reclaim.shards_removed");
      group.done();
    });
  }
  co_await group;
  then(removed->removed.size());
}

// Whether extents are taken from this owner.
bool takes_from(const work& w, const owner& o) {
  if (w.options.only) return o.id() == *w.options.only;
  return std::find(w.who.away.begin(), w.who.away.end(), o.id()) == w.who.away.end();
}

// Of `ids` those whose primary owner this is, in their order.
flow own_part(std::shared_ptr<work> w, owner* of, std::vector<extent_id> ids, reply<std::vector<extent_id>> then) {
  if (w->who.owners.size() == 1) {
    then(std::move(ids));
    co_return;
  }
  using infos = std::vector<extent_info>;
  auto known = co_await answer_of<infos>([&](reply<infos> back) { of->describe(ids, back); });
  if (!known) {
    then(fail(known.error()));
    co_return;
  }
  std::vector<extent_id> out;
  for (const auto& info : *known) {
    if (primary_of(w->who, info.slot_first) == of) out.push_back(info.id);
  }
  then(std::move(out));
}

flow run_expired(std::shared_ptr<work> w, reply<reclaim_report> done) {
  using ids = std::vector<extent_id>;
  for (owner* o : w->who.owners) {
    if (!takes_from(*w, *o)) continue;
    size_t limit = w->options.batch;
    for (;;) {
      auto plan = co_await answer_of<reclaim_plan>([&](reply<reclaim_plan> back) { o->expired(limit, back); });
      if (!plan) {
        done(fail(plan.error()));
        co_return;
      }
      if (plan->extents.empty()) break;
      auto own = co_await answer_of<ids>([&](reply<ids> back) { own_part(w, o, plan->extents, back); });
      if (!own) {
        done(fail(own.error()));
        co_return;
      }
      size_t went = 0;
      if (!own->empty()) {
        auto n =
            co_await answer_of<size_t>([&](reply<size_t> back) { take_out(w, o, *own, remove_why::expired, back); });
        if (!n) {
          done(fail(n.error()));
          co_return;
        }
        went = *n;
      }
      w->out.expired += went;
      if (went > 0) continue;
      // All of these are leased or other owners'; perhaps not the ones behind them.
      if (plan->extents.size() < limit || limit >= 65'536) break;
      limit *= 4;
    }
  }
  done(w->out);
}

// Bytes of block data that must go so that every target is at its low mark; 0: none is above its high mark.
flow pressure(std::shared_ptr<work> w, double high, reply<uint64_t> done) {
  bool above = false;
  double over = 0, allocated = 0, blocks = 0;
  for (auto& [id, t] : w->who.targets) {
    (void)id;
    target* one = t;
    auto u = co_await answer_of<shard_usage>([&](reply<shard_usage> back) { one->usage(back); });
    if (!u || u->capacity == 0) continue;  // a target that is away fills nothing
    allocated += static_cast<double>(u->allocated);
    above |= static_cast<double>(u->allocated) > high * static_cast<double>(u->capacity);
    over = std::max(over, static_cast<double>(u->allocated) - w->options.low * static_cast<double>(u->capacity));
  }
  for (owner* o : w->who.owners) {
    auto i = co_await answer_of<index_stats>([&](reply<index_stats> back) { o->stats(back); });
    if (i) blocks += static_cast<double>(i->bytes + i->expired_bytes);
  }
  blocks /= static_cast<double>(std::min<size_t>(w->who.owners.size(), w->who.replicas + 1));
  // Shards are spread evenly, so what goes takes the same share from each target; parity and padding go with it.
  const double bytes = over * static_cast<double>(w->who.targets.size()) * blocks / std::max(allocated, 1.0);
  done(above ? static_cast<uint64_t>(std::max(bytes, 1.0)) : uint64_t{0});
}

flow run_evict(std::shared_ptr<work> w, reply<reclaim_report> done) {
  using ids = std::vector<extent_id>;
  double high = w->options.high;
  uint64_t widen = 1;
  for (;;) {
    auto need = co_await answer_of<uint64_t>([&](reply<uint64_t> back) { pressure(w, high, back); });
    high = w->options.low;  // once above the high mark, the low mark is what counts
    if (!need || *need == 0) break;
    uint64_t went = 0;
    for (owner* o : w->who.owners) {
      if (!takes_from(*w, *o)) continue;
      const uint64_t share = widen * (*need / w->who.owners.size() + 1);
      auto plan =
          co_await answer_of<reclaim_plan>([&](reply<reclaim_plan> back) { o->evict(share, w->options.batch, back); });
      if (!plan) {
        done(fail(plan.error()));
        co_return;
      }
      auto own = co_await answer_of<ids>([&](reply<ids> back) { own_part(w, o, plan->extents, back); });
      if (!own) {
        done(fail(own.error()));
        co_return;
      }
      if (own->empty()) continue;
      auto n = co_await answer_of<size_t>([&](reply<size_t> back) { take_out(w, o, *own, remove_why::evicted, back); });
      if (!n) {
        done(fail(n.error()));
        co_return;
      }
      went += *n;
    }
    w->out.evicted += went;
    if (went > 0) continue;
    if (widen >= 64 || w->who.owners.size() == 1) {
      w->out.short_bytes = *need;
      break;
    }
    widen *= 4;  // what each owner offered belongs to the others
  }
  done(w->out);
}

}  // namespace

void reclaim_expired(members who, reclaim_options options, executor& home, reply<reclaim_report> done) {
  run_expired(std::shared_ptr<work>(new work{std::move(who), options, home, {}}), std::move(done));
}

void evict_above_mark(members who, reclaim_options options, executor& home, reply<reclaim_report> done) {
  run_evict(std::shared_ptr<work>(new work{std::move(who), options, home, {}}), std::move(done));
}

}  // namespace troupe::kv
