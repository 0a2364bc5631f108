// put, restore and apply: how records come in.
#include <algorithm>
#include <unordered_set>

#include "kv/index/index_impl.hpp"

namespace troupe::kv {

result<put_reply> index_impl::put(std::span<const extent_info> extents, int64_t now_s) {
  std::vector<put_item> items;
  for (const auto& e : extents) items.push_back({&e});
  return put_all(items, put_mode::write, now_s);
}

result<put_reply> index_impl::put_all(std::span<const put_item> items, put_mode mode, int64_t now_s) {
  if (items.size() > put_extents_max)
    return fail(errc::invalid_argument, "{} extents in one put, the limit is {}", items.size(), put_extents_max);
  std::vector<block_hash> slots, hashes;
  std::vector<extent_id> ids;
  for (const auto& item : items) {
    if (auto v = validate(*item.info); !v) return fail(v.error());
    slots.push_back(item.info->slot_first);
    ids.push_back(item.info->id);
    hashes.insert(hashes.end(), item.info->hashes.begin(), item.info->hashes.end());
  }
  const auto guard = locks_.take(slots);

  // The state that the decision needs: who holds these blocks now, and the extents that are in play.
  TROUPE_TRY(const auto blocks, read_blocks(hashes));
  std::unordered_map<block_hash, block_place> winner;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (!blocks[i]) continue;
    winner.emplace(hashes[i], blocks[i]->place);
    ids.push_back(blocks[i]->place.extent);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  TROUPE_TRY(const extent_map stored, read_extents(ids));
  std::map<extent_id, extent_record> now;  // as it will be; in order of ids, so that a run is the same every time
  for (const auto& [id, r] : stored) now.emplace(id, r);

  put_reply out;
  changeset changes;
  std::vector<std::pair<extent_id, traffic_class>>
      raised;  // holders of blocks that were there, and who wrote them again
  for (const auto& item : items) {
    const extent_info& e = *item.info;
    auto& places = out.winners.emplace_back();
    const auto mine = now.find(e.id);
    const bool known = mine != now.end();
    // A repair moves shards: only the primary's word (follow) may change where an extent lies.
    extent_info before = known ? mine->second.info : e;
    if (mode == put_mode::follow) before.targets = e.targets, before.epoch = e.epoch;
    if (known && before != e)
      return fail(errc::invalid_argument, "extent {} is recorded with other contents; ids are never used twice",
                  to_string(e.id));
    extent_record r{e, known ? mine->second.expiry_s : 0, known ? mine->second.owned : 0};
    if (mode == put_mode::write) {
      TROUPE_TRY(r.expiry_s, expiry_of_write(e.traffic, r.expiry_s, now_s));
    } else if (mode == put_mode::follow) {
      r.expiry_s = std::max(r.expiry_s, item.expiry_s);
    } else {
      const int64_t soonest = now_s + 3'600;
      r.expiry_s =
          std::max({r.expiry_s, e.expiry, (soonest + options_.step_s - 1) / options_.step_s * options_.step_s});
    }
    for (uint32_t j = 0; j < e.count; ++j) {
      const block_hash& h = e.hashes[j];
      const auto at = winner.find(h);
      const auto holder = at == winner.end() ? now.end() : now.find(at->second.extent);
      const bool held = holder != now.end() && owns(holder->second, at->second.ordinal, h);
      if (held && holder->first == e.id && at->second.ordinal == j) {
        places.push_back(at->second);
        continue;
      }
      const bool take =
          mode == put_mode::follow ? (item.owned >> j & 1) != 0 : !held || holder->second.expiry_s < now_s;
      if (!take) {
        places.push_back(at == winner.end() ? block_place{} : at->second);
        if (mode == put_mode::write) raised.emplace_back(at->second.extent, e.traffic);
        continue;
      }
      if (held) holder->second.owned &= ~(1u << at->second.ordinal);
      r.owned |= 1u << j;
      winner[h] = {e.id, j};
      places.push_back({e.id, j});
      changes.put(h, block_record{{e.id, j}, r.expiry_s});
    }
    if (mode == put_mode::follow) {
      for (uint32_t j = 0; j < e.count; ++j)  // lost since the last change that was applied
        if ((r.owned & ~item.owned) >> j & 1) changes.erase(e.hashes[j]);
      r.owned = item.owned;
    }
    out.recorded.push_back(r.owned != 0 || known || mode == put_mode::follow);
    if (out.recorded.back()) now.insert_or_assign(e.id, r);
  }
  for (const auto& [id, traffic] : raised) {
    auto& r = now.at(id);
    TROUPE_TRY(r.expiry_s, expiry_of_write(traffic, r.expiry_s, now_s));
  }

  for (const auto& [id, r] : now) {
    const auto before = stored.find(id);
    if (before != stored.end() && before->second == r) continue;
    changes.put(r, before == stored.end() ? nullptr : &before->second);
  }
  if (auto c = commit(changes, mode == put_mode::write ? "index.put" : "index.follow"); !c) return fail(c.error());

  if (mode != put_mode::write) return out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!out.recorded[i]) continue;
    const auto& r = now.at(items[i].info->id);
    out.changes.push_back({index_change::kind_t::put, r.info, r.owned, r.expiry_s});
  }
  for (const auto& [id, r] : now) {
    const auto before = stored.find(id);
    if (before == stored.end() || before->second.expiry_s == r.expiry_s) continue;
    index_change c{index_change::kind_t::raise, {}, 0, r.expiry_s};
    c.info.id = id;
    out.changes.push_back(std::move(c));
  }
  return out;
}

result<std::vector<extent_id>> index_impl::restore(std::span<const extent_info> extents, int64_t now_s) {
  std::vector<extent_id> orphans;
  std::unordered_set<extent_id> met;  // every shard of an extent tells of it
  for (size_t first = 0; first < extents.size(); first += put_extents_max) {
    const auto part = extents.subspan(first, std::min(put_extents_max, extents.size() - first));
    std::vector<extent_id> ids;
    for (const auto& e : part) ids.push_back(e.id);
    TROUPE_TRY(const auto known, read_extents(ids));
    std::vector<put_item> items;
    for (const auto& e : part)
      if (!known.contains(e.id) && met.insert(e.id).second) items.push_back({&e});
    TROUPE_TRY(const auto r, put_all(items, put_mode::restore, now_s));
    for (size_t i = 0; i < items.size(); ++i)
      if (!r.recorded[i]) orphans.push_back(items[i].info->id);
  }
  return orphans;
}

result<void> index_impl::apply(std::span<const index_change> changes) {
  // Runs of one kind, so that their order stays what it was.
  for (size_t first = 0, end; first < changes.size(); first = end) {
    const auto kind = changes[first].kind;
    for (end = first; end < changes.size() && changes[end].kind == kind && end - first < put_extents_max;) ++end;
    const auto part = changes.subspan(first, end - first);
    std::vector<extent_id> ids;
    for (const auto& c : part) ids.push_back(c.info.id);
    switch (kind) {
      case index_change::kind_t::put: {
        std::vector<put_item> items;
        for (const auto& c : part) {
          if (c.expiry_s < 0 || c.info.count > slot_blocks || c.owned >> c.info.count != 0)
            return fail(errc::invalid_argument, "change of extent {}: expiry {}, owned {:x}", to_string(c.info.id),
                        c.expiry_s, c.owned);
          items.push_back({&c.info, c.expiry_s, c.owned});
        }
        if (auto r = put_all(items, put_mode::follow, 0); !r) return fail(r.error());
        break;
      }
      case index_change::kind_t::raise: {
        const auto wanted = [&](std::span<const std::optional<extent_record>>) -> result<std::vector<int64_t>> {
          std::vector<int64_t> out;
          for (const auto& c : part) out.push_back(c.expiry_s);
          return out;
        };
        if (auto r = raise(ids, wanted); !r) return fail(r.error());
        break;
      }
      case index_change::kind_t::move:
        if (auto r = move(part); !r) return r;
        break;
      case index_change::kind_t::remove:
        if (auto r = remove_some(ids, remove_why::replaced, true, 0, {}); !r) return fail(r.error());
        break;
      default:
        return fail(errc::invalid_argument, "change of an unknown kind {}", static_cast<int>(kind));
    }
  }
  return {};
}

result<void> index_impl::move(std::span<const index_change> changes) {
  std::vector<extent_id> ids;
  for (const auto& c : changes) ids.push_back(c.info.id);
  TROUPE_TRY(const auto seen, read_extents(ids));
  std::vector<block_hash> slots;
  for (const auto& [id, r] : seen) slots.push_back(r.info.slot_first);
  const auto guard = locks_.take(slots);
  TROUPE_TRY(const auto stored, read_extents(ids));
  std::map<extent_id, extent_record> now;
  for (const auto& c : changes) {
    const auto before = seen.contains(c.info.id) ? stored.find(c.info.id) : stored.end();
    if (before == stored.end()) continue;
    if (c.info.targets.size() != before->second.info.shards())
      return fail(errc::invalid_argument, "extent {} moves to {} targets, it has {} shards", to_string(c.info.id),
                  c.info.targets.size(), before->second.info.shards());
    auto& r = now.emplace(c.info.id, before->second).first->second;
    r.info.targets = c.info.targets;
    r.info.epoch = c.info.epoch;
  }
  changeset out;
  for (const auto& [id, r] : now)
    if (const auto& before = stored.at(id); before != r) out.put(r, &before);
  return commit(out, "index.move");
}

result<std::vector<index_change>> index_impl::export_extents(index_cursor& at, size_t limit,
                                                             const std::function<bool(const block_hash&)>& wanted) {
  std::vector<index_change> out;
  if (at.done) return out;
  TROUPE_TRY(auto walk, db_.scan(family::extent, at.key));
  size_t seen = 0;
  for (; walk->valid() && out.size() < limit && seen < 64 * limit; walk->next(), ++seen) {
    const std::string_view key = walk->key();
    auto r = decode_extent(key, walk->value());
    if (!r) {
      damaged();
    } else if (wanted(r->info.slot_first)) {
      out.push_back({index_change::kind_t::put, std::move(r->info), r->owned, r->expiry_s});
    }
    at.key.assign(key).push_back('\0');  // the least key after this one
  }
  if (auto s = walk->status(); !s) return fail(s.error());
  at.done = !walk->valid();
  return out;
}

}  // namespace troupe::kv
