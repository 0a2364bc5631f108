// check: what the records say of each other, and how the derived ones are made anew.
#include <bit>

#include "kv/index/index_impl.hpp"

namespace troupe::kv {
namespace {

// One page of a family, read before anything is repaired.
struct page {
  std::vector<std::pair<std::string, std::string>> records;
  bool last = false;
};

result<page> read_page(const db& database, family f, std::string_view from, size_t limit) {
  page out;
  TROUPE_TRY(auto at, database.scan(f, from));
  for (; at->valid() && out.records.size() < limit; at->next()) out.records.emplace_back(at->key(), at->value());
  if (auto s = at->status(); !s) return fail(s.error());
  out.last = !at->valid();
  return out;
}

// To the least key after the last one of the page, or to the next family.
void advance(index_cursor& at, const page& p, family next, bool done) {
  if (p.last) {
    at = {next, "", done};
  } else {
    at.key = p.records.back().first + '\0';
  }
}

}  // namespace

result<std::vector<index_finding>> index_impl::check(index_cursor& at, size_t limit, bool repair, int64_t) {
  std::vector<index_finding> out;
  if (at.done || limit == 0) return out;
  result<void> r;
  switch (at.in) {
    case family::extent:
      r = check_extents(at, limit, repair, out);
      break;
    case family::block:
      r = check_blocks(at, limit, repair, out);
      break;
    case family::expiry:
      r = check_expiry(at, limit, repair, out);
      break;
    default:
      return fail(errc::invalid_argument, "check of family {}: not one of the index", to_string(at.in));
  }
  if (!r) return fail(r.error());
  return out;
}

// Extents first: their blocks and expiry entries can be derived from them.
result<void> index_impl::check_extents(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out) {
  TROUPE_TRY(const page p, read_page(db_, family::extent, at.key, limit));
  for (const auto& [key, value] : p.records) {
    const auto seen = decode_extent(key, value);
    if (!seen) {
      damaged();
      if (repair) {
        write_batch b;
        b.erase(family::extent, key);
        if (auto w = db_.write(b, options_.sync); !w) return w;
      }
      out.push_back({family::extent, key,
                     seen.error().message + "; its blocks are missing until it is restored from the shards", repair});
      continue;
    }
    const auto guard = locks_.take(std::span(&seen->info.slot_first, 1));
    TROUPE_TRY(auto now, read_extent(seen->info.id));
    if (!now) continue;  // removed meanwhile
    const extent_record before = *now;
    TROUPE_TRY(const auto blocks, read_blocks(before.info.hashes));
    changeset changes;
    for (uint32_t j = 0; j < before.info.count; ++j) {
      if ((before.owned >> j & 1) == 0) continue;
      const block_hash& h = before.info.hashes[j];
      const block_place here{before.info.id, j};
      if (blocks[j] && blocks[j]->place == here) continue;
      std::optional<extent_record> other;
      if (blocks[j]) {
        TROUPE_TRY(other, read_extent(blocks[j]->place.extent));
      }
      if (other && owns(*other, blocks[j]->place.ordinal, h)) {
        out.push_back({family::extent, key,
                       fmt::format("claims block {}, which is recorded in {}", j, to_string(blocks[j]->place.extent)),
                       repair});
        now->owned &= ~(1u << j);
      } else {
        out.push_back(
            {family::block, block_key(h), "damaged, missing or naming an extent that does not hold it", repair});
        changes.put(h, block_record{here, before.expiry_s});
      }
    }
    const std::string entry_key = expiry_key(expiry_entry_of(before));
    std::string entry;
    TROUPE_TRY(const bool there, read(family::expiry, entry_key, entry));
    const auto r = there ? decode_expiry(entry_key, entry) : fail(errc::not_found, "missing");
    if (!r || *r != expiry_record_of(before)) {
      if (!r && there) damaged();
      out.push_back({family::expiry, entry_key, r ? "disagrees with its extent" : r.error().message, repair});
      // Counted with what it says; a damaged one with what its extent says; a missing one not at all.
      if (r) {
        changes.erase_expiry(entry_key, *r);
      } else if (there) {
        changes.erase_expiry(entry_key, expiry_record_of(before));
      }
      changes.put_expiry(before);
    }
    if (now->owned != before.owned) changes.put(*now, &before);
    if (repair)
      if (auto c = commit(changes, "index.repair"); !c) return c;
  }
  advance(at, p, family::block, false);
  return {};
}

result<void> index_impl::check_blocks(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out) {
  TROUPE_TRY(const page p, read_page(db_, family::block, at.key, limit));
  std::vector<extent_id> ids;
  for (const auto& [key, value] : p.records)
    if (const auto r = decode_block(key, value)) ids.push_back(r->place.extent);
  TROUPE_TRY(const auto extents, read_extents(ids));
  for (const auto& [key, value] : p.records) {
    const auto hash = parse_block_key(key);
    const auto r = decode_block(key, value);
    std::string what;
    if (!hash) {
      what = "its key is not a block's";
    } else if (!r) {
      damaged();
      what = r.error().message;
    } else if (const auto x = extents.find(r->place.extent); x == extents.end()) {
      what = fmt::format("names extent {}, which is not recorded", to_string(r->place.extent));
    } else if (!owns(x->second, r->place.ordinal, *hash)) {
      what = fmt::format("names extent {}, which does not hold it", to_string(r->place.extent));
    }
    if (what.empty()) continue;
    if (repair) {
      const auto guard = locks_.take_all();
      std::string now;
      TROUPE_TRY(const bool there, read(family::block, key, now));
      if (there && now == value) {
        write_batch b;
        b.erase(family::block, key);
        if (auto w = db_.write(b, options_.sync); !w) return w;
      }
    }
    out.push_back({family::block, key, std::move(what), repair});
  }
  advance(at, p, family::expiry, false);
  return {};
}

result<void> index_impl::check_expiry(index_cursor& at, size_t limit, bool repair, std::vector<index_finding>& out) {
  TROUPE_TRY(const page p, read_page(db_, family::expiry, at.key, limit));
  for (const auto& [key, value] : p.records) {
    const auto entry = parse_expiry_key(key);
    std::string what;
    if (!entry) {
      what = "its key is not an expiry's";
    } else {
      TROUPE_TRY(const auto x, read_extent(entry->id));
      if (!x) {
        what = fmt::format("extent {} is not recorded", to_string(entry->id));
      } else if (expiry_key(expiry_entry_of(*x)) != key) {
        std::string now;  // raised meanwhile, or a leftover?
        TROUPE_TRY(const bool there, read(family::expiry, key, now));
        if (there) what = fmt::format("extent {} expires at {}", to_string(entry->id), x->expiry_s);
      }
    }
    if (what.empty()) continue;
    if (repair) {
      const auto guard = locks_.take_all();
      std::string now;
      TROUPE_TRY(const bool there, read(family::expiry, key, now));
      changeset changes;
      if (there && now == value) {
        const auto counted = decode_expiry(key, value);
        changes.erase_expiry(key, counted ? *counted : expiry_record{});
      }
      if (auto c = commit(changes, "index.repair"); !c) return c;
    }
    out.push_back({family::expiry, key, std::move(what), repair});
  }
  advance(at, p, family::expiry, true);
  return {};
}

}  // namespace troupe::kv
