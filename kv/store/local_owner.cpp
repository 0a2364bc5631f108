#include "kv/store/local_owner.hpp"

#include <memory>
#include <unordered_set>
#include <utility>

namespace troupe::kv {

template <class T, class F>
void local_owner::run(reply<T> done, F work) {
  auto shared = std::make_shared<reply<T>>(std::move(done));
  const bool taken = blocking_.submit([this, shared, work = std::move(work)]() mutable {
    auto outcome = std::make_shared<result<T>>(work());
    // Moved, not copied: what the answer holds is released on the executor, never here.
    home_.post([shared = std::move(shared), outcome = std::move(outcome)] { (*shared)(std::move(*outcome)); });
  });
  if (taken) return;
  home_.post([shared, id = id_] {
    (*shared)(fail(errc::exhausted, "index owner {}: its queue is full; send less at a time", id.value));
  });
}

result<lookup_reply> local_owner::lookup_now(const lookup_request& request, nanoseconds asked) {
  lookup_reply out;
  const int64_t now_s = wall_.now();
  TROUPE_TRY(out.blocks, index_.lookup(request.hashes, now_s));
  std::vector<extent_id> ids;
  std::unordered_set<extent_id> seen;
  for (const auto& b : out.blocks) {
    if (b && seen.insert(b->extent).second) ids.push_back(b->extent);
  }
  if (request.lease && !ids.empty()) {
    // Before the extents are read: what is then found cannot be reclaimed.
    TROUPE_TRY(auto grant, index_.lease(ids, now_s, asked));
    out.lease = grant.token;
    std::vector<extent_id> held;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (grant.held[i]) held.push_back(ids[i]);
    }
    ids = std::move(held);
  }
  for (const auto& id : ids) {
    auto e = index_.extent(id, now_s);
    if (e) {
      out.extents.push_back(std::move(*e));
    } else if (e.error().code != errc::not_found && e.error().code != errc::corrupt) {
      if (out.lease != 0) index_.release(out.lease);
      return fail(std::move(e.error()));
    }
  }
  return out;
}

void local_owner::lookup(lookup_request request, reply<lookup_reply> done) {
  // The reader counts its lease from the request on, and so does the owner.
  run<lookup_reply>(std::move(done),
                    [this, request = std::move(request), asked = home_.now()] { return lookup_now(request, asked); });
}

void local_owner::match(std::vector<match_slot> slots, uint64_t limit, reply<match_reply> done) {
  run<match_reply>(std::move(done),
                   [this, slots = std::move(slots), limit] { return index_.match(slots, limit, false, wall_.now()); });
}

void local_owner::put(std::vector<extent_info> extents, reply<put_reply> done) {
  run<put_reply>(std::move(done), [this, extents = std::move(extents)] { return index_.put(extents, wall_.now()); });
}

void local_owner::apply(std::vector<index_change> changes, reply<void> done) {
  run<void>(std::move(done), [this, changes = std::move(changes)] { return index_.apply(changes); });
}

void local_owner::touch(touch_request request, reply<std::vector<index_change>> done) {
  using changes = std::vector<index_change>;
  run<changes>(std::move(done), [this, request = std::move(request)]() -> result<changes> {
    changes all;
    for (const auto& run : request.runs) {
      TROUPE_TRY(auto r, index_.touch(run, request.touch, request.traffic, wall_.now()));
      all.insert(all.end(), std::make_move_iterator(r.changes.begin()), std::make_move_iterator(r.changes.end()));
      if (r.visible < run.size()) break;  // a hole ends the chain
    }
    return all;
  });
}

void local_owner::release(uint64_t lease) { index_.release(lease); }

void local_owner::is_live(uint64_t lease, reply<bool> done) {
  home_.post([done = std::move(done), live = index_.is_live(lease, home_.now())] { done(live); });
}

void local_owner::expired(size_t limit, reply<reclaim_plan> done) {
  run<reclaim_plan>(std::move(done), [this, limit] { return index_.expired(wall_.now(), limit); });
}

void local_owner::evict(uint64_t bytes, size_t limit, reply<reclaim_plan> done) {
  run<reclaim_plan>(std::move(done), [this, bytes, limit, now = home_.now()]() -> result<reclaim_plan> {
    TROUPE_TRY(auto cut, index_.cut_for(bytes));
    return index_.evict(bytes, cut, limit, wall_.now(), now);
  });
}

void local_owner::describe(std::vector<extent_id> extents, reply<std::vector<extent_info>> done) {
  using infos = std::vector<extent_info>;
  run<infos>(std::move(done), [this, extents = std::move(extents)]() -> result<infos> {
    infos out;
    for (const auto& id : extents) {
      auto e = index_.extent(id, 0);  // at the beginning of time nothing has expired
      if (e)
        out.push_back(std::move(e->info));
      else if (e.error().code != errc::not_found && e.error().code != errc::corrupt)
        return fail(std::move(e.error()));
    }
    return out;
  });
}

void local_owner::remove(std::vector<extent_id> extents, remove_why why, reply<remove_reply> done) {
  run<remove_reply>(std::move(done), [this, extents = std::move(extents), why, now = home_.now()] {
    return index_.remove(extents, why, wall_.now(), now);
  });
}

void local_owner::list(index_cursor at, size_t limit, reply<std::pair<std::vector<index_change>, index_cursor>> done) {
  using page = std::pair<std::vector<index_change>, index_cursor>;
  run<page>(std::move(done), [this, at = std::move(at), limit]() mutable -> result<page> {
    TROUPE_TRY(auto found, index_.export_extents(at, limit, [](const block_hash&) { return true; }));
    return page{std::move(found), std::move(at)};
  });
}

void local_owner::restore(std::vector<extent_info> extents, reply<std::vector<extent_id>> done) {
  run<std::vector<extent_id>>(std::move(done),
                              [this, extents = std::move(extents)] { return index_.restore(extents, wall_.now()); });
}

void local_owner::check(index_cursor at, size_t limit, bool repair,
                        reply<std::pair<std::vector<index_finding>, index_cursor>> done) {
  using page = std::pair<std::vector<index_finding>, index_cursor>;
  run<page>(std::move(done), [this, at = std::move(at), limit, repair]() mutable -> result<page> {
    TROUPE_TRY(auto found, index_.check(at, limit, repair, wall_.now()));
    return page{std::move(found), std::move(at)};
  });
}

void local_owner::stats(reply<index_stats> done) {
  run<index_stats>(std::move(done), [this]() -> result<index_stats> { return index_.stats(wall_.now()); });
}

}  // namespace troupe::kv
