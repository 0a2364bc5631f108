// expired, evict, remove: how records go.
#include <algorithm>
#include <numeric>

#include "kv/index/index_impl.hpp"
#include "policies/evict.hpp"

namespace troupe::kv {
namespace {

// Whether an entry lies under the cut.
bool below(const expiry_entry& e, const evict_cut& cut) {
  return e.expiry_s < cut.expiry_s || (e.expiry_s == cut.expiry_s && e.first >= cut.depth);
}

}  // namespace

result<reclaim_plan> index_impl::expired(int64_t now_s, size_t limit) {
  reclaim_plan out;
  std::vector<std::pair<std::string, expiry_entry>> entries;
  std::vector<extent_id> ids;
  const std::string end = expiry_bound(now_s);
  TROUPE_TRY(auto at, db_.scan(family::expiry, ""));
  for (; at->valid() && at->key() < end && entries.size() < limit; at->next()) {
    const auto e = parse_expiry_key(at->key());
    entries.emplace_back(at->key(), e.value_or(expiry_entry{}));
    if (e) ids.push_back(e->id);
  }
  if (auto s = at->status(); !s) return fail(s.error());
  TROUPE_TRY(const auto records, read_extents(ids));
  std::vector<std::string> dangling;
  for (const auto& [key, e] : entries) {
    const auto r = records.find(e.id);
    if (r == records.end()) {
      dangling.push_back(key);
    } else if (expiry_key(expiry_entry_of(r->second)) == key) {
      out.extents.push_back(e.id);
      out.bytes += expiry_record_of(r->second).bytes;
    }
  }
  if (auto d = drop_dangling(dangling); !d) return fail(d.error());
  out.reason = fmt::format("{} extents expired before {}", out.extents.size(), now_s);
  return out;
}

// Entries whose extent was swept or is damaged: they go, or they would stand at the head of every answer.
result<void> index_impl::drop_dangling(const std::vector<std::string>& keys) {
  if (keys.empty()) return {};
  const auto guard = locks_.take_all();
  changeset changes;
  for (const auto& key : keys) {
    if (const auto e = parse_expiry_key(key)) {
      TROUPE_TRY(const auto x, read_extent(e->id));
      if (x && expiry_key(expiry_entry_of(*x)) == key) continue;
    }
    std::string value;
    TROUPE_TRY(const bool there, read(family::expiry, key, value));
    if (!there) continue;
    const auto counted = decode_expiry(key, value);
    changes.erase_expiry(key, counted ? *counted : expiry_record{});
  }
  return commit(changes, "index.dangling");
}

result<evict_cut> index_impl::cut_for(uint64_t need_bytes) {
  uint64_t sum = 0;
  TROUPE_TRY(auto at, db_.scan(family::expiry, ""));
  for (; at->valid(); at->next()) {
    const auto e = parse_expiry_key(at->key());
    const auto r = decode_expiry(at->key(), at->value());
    if (!e || !r) continue;
    sum += r->bytes;
    if (sum >= need_bytes) return evict_cut{e->expiry_s, e->first};
  }
  if (auto s = at->status(); !s) return fail(s.error());
  return evict_cut{INT64_MAX, 0};
}

// The first entries of the expiry family hold every child of each of them: a child expires no later than its parent,
// and lies deeper where they expire together. So the policy sees whole subtrees in any prefix.
result<reclaim_plan> index_impl::evict(uint64_t need_bytes, const evict_cut& cut, size_t limit, int64_t now_s,
                                       nanoseconds now) {
  std::vector<extent_id> ids;
  std::vector<bool> leased;
  uint64_t free_bytes = 0;
  {
    TROUPE_TRY(auto at, db_.scan(family::expiry, ""));
    for (; at->valid() && ids.size() < limit && free_bytes < need_bytes; at->next()) {
      const auto e = parse_expiry_key(at->key());
      const auto r = decode_expiry(at->key(), at->value());
      if (!e || !r) continue;
      if (!below(*e, cut)) break;
      ids.push_back(e->id);
      leased.push_back(leases_.protects(e->id, now));
      if (!leased.back()) free_bytes += r->bytes;
    }
    if (auto s = at->status(); !s) return fail(s.error());
  }
  TROUPE_TRY(const auto records, read_extents(ids));
  std::vector<block_hash> parents;
  for (const auto& id : ids)
    if (const auto r = records.find(id); r != records.end()) parents.push_back(r->second.info.parent);
  TROUPE_TRY(const auto blocks, read_blocks(parents));
  std::unordered_map<extent_id, uint64_t> number;
  for (size_t i = 0; i < ids.size(); ++i) number.emplace(ids[i], i + 1);
  policies::evict_input in;
  in.now_s = now_s;
  in.need_bytes = need_bytes;
  for (size_t i = 0, parent = 0; i < ids.size(); ++i) {
    const auto r = records.find(ids[i]);
    if (r == records.end()) continue;
    policies::evict_entry e;
    e.id = i + 1;
    if (const auto& b = blocks[parent++])
      if (const auto p = number.find(b->place.extent); p != number.end() && p->second != e.id) e.parent = p->second;
    e.expiry_s = r->second.expiry_s;
    e.written_s = r->second.info.written;
    e.bytes = expiry_record_of(r->second).bytes;
    e.leased = leased[i];
    in.entries.push_back(e);
  }
  TROUPE_TRY(const auto plan, policies::plan_evict(in));
  reclaim_plan out;
  for (const uint64_t n : plan.ids) out.extents.push_back(ids[n - 1]);
  out.bytes = plan.freed_bytes;
  out.short_bytes = plan.short_bytes;
  out.reason = plan.reason;
  return out;
}

result<remove_reply> index_impl::remove(std::span<const extent_id> extents, remove_why why, int64_t now_s,
                                        nanoseconds now) {
  remove_reply out;
  for (size_t first = 0; first < extents.size(); first += put_extents_max) {
    const auto part = extents.subspan(first, std::min(put_extents_max, extents.size() - first));
    TROUPE_TRY(auto r, remove_some(part, why, false, now_s, now));
    std::move(r.removed.begin(), r.removed.end(), std::back_inserter(out.removed));
    std::move(r.kept.begin(), r.kept.end(), std::back_inserter(out.kept));
    std::move(r.changes.begin(), r.changes.end(), std::back_inserter(out.changes));
  }
  return out;
}

result<remove_reply> index_impl::remove_some(std::span<const extent_id> ids, remove_why why, bool follow, int64_t now_s,
                                             nanoseconds now) {
  remove_reply out;
  TROUPE_TRY(const auto seen, read_extents(ids));
  std::vector<block_hash> slots;
  for (const auto& [id, r] : seen) slots.push_back(r.info.slot_first);
  const auto guard = locks_.take(slots);
  std::unique_lock no_leases(reclaim_);
  TROUPE_TRY(const auto records, read_extents(ids));
  const bool forced = follow || why == remove_why::replaced;
  std::vector<const extent_record*> going;
  std::unordered_map<extent_id, bool> done;
  for (const auto& id : ids) {
    const auto r = records.find(id);
    if (r == records.end() || !done.emplace(id, true).second) continue;
    const bool early = now < hold_until_ && (why == remove_why::expired || why == remove_why::evicted);
    const bool alive = why == remove_why::expired && r->second.expiry_s >= now_s;
    if (!seen.contains(id) || (!forced && (early || alive || leases_.protects(id, now)))) {
      out.kept.push_back(id);
    } else {
      going.push_back(&r->second);
    }
  }
  // Only block records that name the extent go: a block that it lost belongs to another now.
  std::vector<block_hash> hashes;
  for (const auto* r : going) hashes.insert(hashes.end(), r->info.hashes.begin(), r->info.hashes.end());
  TROUPE_TRY(const auto blocks, read_blocks(hashes));
  changeset changes;
  size_t at = 0;
  for (const auto* r : going) {
    for (uint32_t j = 0; j < r->info.count; ++j, ++at)
      if (blocks[at] && blocks[at]->place == block_place{r->info.id, j}) changes.erase(r->info.hashes[j]);
    changes.erase(*r);
    index_change c{index_change::kind_t::remove, {}, 0, 0};
    c.info.id = r->info.id;
    out.changes.push_back(std::move(c));
    out.removed.push_back(r->info);
  }
  if (auto c = commit(changes, "index.remove"); !c) return fail(c.error());
  return out;
}

}  // namespace troupe::kv
