// lookup, extent, match, touch: how records are read and kept.
#include <algorithm>

#include "kv/index/index_impl.hpp"

namespace troupe::kv {

// An extent that is read says of all its blocks where they are, so per group and round only the first block that is not
// placed yet is looked up: one block record and one extent record for a full slot.
result<index_impl::resolved> index_impl::resolve(std::span<const block_hash> hashes, std::span<const size_t> ends,
                                                 int64_t now_s, bool stop_at_hole) {
  resolved out;
  out.places.resize(hashes.size());
  out.first_hole = hashes.size();
  struct group {
    size_t at, end;
  };
  std::vector<group> open;
  for (size_t i = 0; i < ends.size(); ++i)
    if (const size_t begin = i == 0 ? 0 : ends[i - 1]; begin < ends[i]) open.push_back({begin, ends[i]});
  std::vector<block_hash> heads;
  std::vector<extent_id> unread;
  while (!open.empty()) {
    heads.clear(), unread.clear();
    for (const auto& g : open) heads.push_back(hashes[g.at]);
    TROUPE_TRY(const auto blocks, read_blocks(heads));
    for (const auto& b : blocks)
      if (b && !out.extents.contains(b->place.extent)) unread.push_back(b->place.extent);
    std::sort(unread.begin(), unread.end());
    unread.erase(std::unique(unread.begin(), unread.end()), unread.end());
    TROUPE_TRY(auto records, read_extents(unread));
    for (auto& [id, r] : records)
      if (r.expiry_s >= now_s) out.extents.emplace(id, std::move(r));
    out.probes += static_cast<uint32_t>(heads.size() + unread.size());
    for (size_t i = 0; i < open.size(); ++i) {
      auto& g = open[i];
      const size_t before = g.at;
      if (const auto x = blocks[i] ? out.extents.find(blocks[i]->place.extent) : out.extents.end();
          x != out.extents.end()) {
        for (uint32_t j = blocks[i]->place.ordinal; g.at < g.end && owns(x->second, j, hashes[g.at]); ++j, ++g.at)
          out.places[g.at] = block_place{x->first, j};
      }
      if (g.at == before) out.first_hole = std::min(out.first_hole, g.at++);
    }
    std::erase_if(open, [&](const group& g) { return g.at == g.end || (stop_at_hole && g.at > out.first_hole); });
  }
  return out;
}

result<std::optional<block_place>> index_impl::find(const block_hash& hash, int64_t now_s) {
  const std::string key = block_key(hash);
  std::string value;
  TROUPE_TRY(const bool there, read(family::block, key, value));
  if (!there) return std::nullopt;
  const auto b = decode_block(key, value);
  if (!b) {
    damaged();
    return std::nullopt;
  }
  TROUPE_TRY(const auto x, read_extent(b->place.extent));
  if (!x || x->expiry_s < now_s || !owns(*x, b->place.ordinal, hash)) return std::nullopt;
  return b->place;
}

namespace {

// Ends of groups of 16.
std::vector<size_t> sixteens(size_t n) {
  std::vector<size_t> ends;
  for (size_t end = slot_blocks; end < n; end += slot_blocks) ends.push_back(end);
  if (n > 0) ends.push_back(n);
  return ends;
}

// Extents in the order in which they first appear, up to the first hole.
std::vector<extent_id> extents_of(std::span<const std::optional<block_place>> places) {
  std::vector<extent_id> out;
  std::unordered_map<extent_id, bool> seen;
  for (const auto& p : places) {
    if (!p) break;
    if (seen.emplace(p->extent, true).second) out.push_back(p->extent);
  }
  return out;
}

}  // namespace

result<std::vector<std::optional<block_place>>> index_impl::lookup(std::span<const block_hash> hashes, int64_t now_s) {
  TROUPE_TRY(auto found, resolve(hashes, sixteens(hashes.size()), now_s, false));
  return std::move(found.places);
}

result<block_index::extent_entry> index_impl::extent(const extent_id& id, int64_t now_s) {
  const std::string key = extent_key(id);
  std::string value;
  TROUPE_TRY(const bool there, db_.get(family::extent, key, value));
  if (!there) return fail(errc::not_found, "extent {} is not recorded", to_string(id));
  auto r = decode_extent(key, value);
  if (!r) {
    damaged();
    return fail(r.error());
  }
  if (r->expiry_s < now_s) return fail(errc::not_found, "extent {} expired at {}", to_string(id), r->expiry_s);
  return extent_entry{std::move(r->info), r->expiry_s, r->owned};
}

result<match_reply> index_impl::match(std::span<const match_slot> slots, uint64_t limit, bool runs, int64_t now_s) {
  // Blocks of each slot below the limit; slots past it do not count.
  std::vector<size_t> counts;
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& s = slots[i];
    if (s.hashes.empty() || s.hashes.size() > slot_blocks || s.number > UINT32_MAX)
      return fail(errc::invalid_argument, "slot {} has {} hashes, 1 to {} expected", s.number, s.hashes.size(),
                  slot_blocks);
    if (i > 0 && s.number <= slots[i - 1].number)
      return fail(errc::invalid_argument, "slot {} after slot {}: ascending order expected", s.number,
                  slots[i - 1].number);
    const uint64_t first = s.number * slot_blocks;
    if (first < limit) counts.push_back(std::min<uint64_t>(s.hashes.size(), limit - first));
  }
  match_reply out;
  if (counts.empty()) {
    out.first_missing = slots.empty() ? 0 : std::min(limit, slots.front().number * slot_blocks);
    return out;
  }
  const auto position = [&](size_t slot, size_t j) { return slots[slot].number * slot_blocks + j; };

  size_t low = 0, high = counts.size();  // slots below low end present, slot `high` does not (or is the end)
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    TROUPE_TRY(const auto last, find(slots[middle].hashes[counts[middle] - 1], now_s));
    out.probes += last ? 2 : 1;
    if (last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (!runs) {
    if (low == counts.size()) {
      out.first_missing = position(low - 1, counts[low - 1]);
      return out;
    }
    const auto scanned = std::span(slots[low].hashes).first(counts[low]);
    TROUPE_TRY(const auto found, resolve(scanned, sixteens(counts[low]), now_s, true));
    out.probes += found.probes;
    out.first_missing = position(low, found.first_hole);
    return out;
  }

  std::vector<block_hash> hashes;
  std::vector<size_t> ends;
  std::vector<uint64_t> positions;
  for (size_t i = 0; i < std::min(low + 1, counts.size()); ++i) {
    for (size_t j = 0; j < counts[i]; ++j) hashes.push_back(slots[i].hashes[j]), positions.push_back(position(i, j));
    ends.push_back(hashes.size());
  }
  TROUPE_TRY(const auto found, resolve(hashes, ends, now_s, true));
  out.probes += found.probes;
  const size_t hole = found.first_hole;
  out.first_missing = hole < positions.size() ? positions[hole] : positions.back() + 1;
  for (size_t i = 0; i < hole; ++i) {
    const auto& p = *found.places[i];
    auto* last = out.runs.empty() ? nullptr : &out.runs.back();
    if (last && last->extent == p.extent && last->first + last->count == positions[i] &&
        last->ordinal + last->count == p.ordinal) {
      ++last->count;
    } else {
      out.runs.push_back({p.extent, positions[i], p.ordinal, 1});
    }
  }
  return out;
}

result<touch_reply> index_impl::touch(std::span<const block_hash> chain, policies::ttl_touch touch,
                                      policies::traffic_class traffic, int64_t now_s) {
  TROUPE_TRY(const auto found, resolve(chain, sixteens(chain.size()), now_s, true));
  touch_reply out;
  out.visible = found.first_hole;
  if (touch == policies::ttl_touch::probe) return out;
  const auto ids = extents_of(found.places);
  // The plan over what is recorded now, for as much as is still there.
  const auto plan = [&](std::span<const std::optional<extent_record>> records) -> result<std::vector<int64_t>> {
    auto in = ttl_input_of(traffic, touch, now_s);
    for (const auto& r : records) {
      if (!r || r->expiry_s < now_s) break;
      in.expiry_s.push_back(r->expiry_s);
    }
    TROUPE_TRY(const auto p, policies::plan_ttl(in));
    std::vector<int64_t> wanted(records.size(), 0);
    for (const auto& c : p.changes) wanted[c.index] = c.expiry_s;
    return wanted;
  };
  for (size_t first = 0; first < ids.size(); first += put_extents_max) {  // ancestors first
    const auto part = std::span(ids).subspan(first, std::min(put_extents_max, ids.size() - first));
    std::vector<std::optional<extent_record>> seen;
    for (const auto& id : part) seen.push_back(found.extents.at(id));
    TROUPE_TRY(const auto before, plan(seen));  // most touches change nothing and take no lock
    if (std::all_of(before.begin(), before.end(), [](int64_t e) { return e == 0; })) continue;
    TROUPE_TRY(auto raised, raise(part, plan));
    for (auto& c : raised) out.changes.push_back(std::move(c));
  }
  return out;
}

result<std::vector<index_change>> index_impl::raise(
    std::span<const extent_id> ids,
    const std::function<result<std::vector<int64_t>>(std::span<const std::optional<extent_record>>)>& wanted) {
  std::vector<index_change> out;
  TROUPE_TRY(const auto seen, read_extents(ids));
  std::vector<block_hash> slots;
  for (const auto& [id, r] : seen) slots.push_back(r.info.slot_first);
  const auto guard = locks_.take(slots);
  TROUPE_TRY(const auto records, read_extents(ids));
  std::vector<std::optional<extent_record>> in_order;
  for (const auto& id : ids) {
    // One that came between the two reads is not locked: left alone, it is newer than what was asked for.
    const auto at = seen.contains(id) ? records.find(id) : records.end();
    in_order.push_back(at == records.end() ? std::nullopt : std::optional(at->second));
  }
  TROUPE_TRY(const auto expiries, wanted(in_order));
  changeset changes;
  std::unordered_map<extent_id, bool> done;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!in_order[i] || expiries[i] <= in_order[i]->expiry_s || !done.emplace(ids[i], true).second) continue;
    extent_record r = *in_order[i];
    r.expiry_s = expiries[i];
    changes.put(r, &*in_order[i]);
    index_change c{index_change::kind_t::raise, {}, 0, r.expiry_s};
    c.info.id = ids[i];
    out.push_back(std::move(c));
  }
  if (auto c = commit(changes, "index.raise"); !c) return fail(c.error());
  return out;
}

}  // namespace troupe::kv
