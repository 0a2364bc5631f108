#include "kv/index/index_impl.hpp"

#include "kv/index/keys.hpp"

namespace troupe::kv {

void changeset::put(const extent_record& now, const extent_record* before) {
  const std::string key = extent_key(now.info.id);
  batch_.put(family::extent, key, encode(key, now));
  if (before && before->expiry_s == now.expiry_s && before->owned == now.owned) return;
  if (before) {
    lines_.push_back({false, before->expiry_s, expiry_record_of(*before)});
    if (before->expiry_s != now.expiry_s) batch_.erase(family::expiry, expiry_key(expiry_entry_of(*before)));
  }
  put_expiry(now);
}

void changeset::put_expiry(const extent_record& now) {
  const std::string key = expiry_key(expiry_entry_of(now));
  const expiry_record r = expiry_record_of(now);
  batch_.put(family::expiry, key, encode(key, r));
  lines_.push_back({true, now.expiry_s, r});
}

void changeset::erase(const extent_record& stored) {
  batch_.erase(family::extent, extent_key(stored.info.id));
  erase_expiry(expiry_key(expiry_entry_of(stored)), expiry_record_of(stored));
}

void changeset::erase_expiry(std::string_view key, const expiry_record& counted) {
  batch_.erase(family::expiry, key);
  if (const auto e = parse_expiry_key(key)) lines_.push_back({false, e->expiry_s, counted});
}

void changeset::put(const block_hash& hash, const block_record& r) {
  const std::string key = block_key(hash);
  batch_.put(family::block, key, encode(key, r));
}

void changeset::erase(const block_hash& hash) { batch_.erase(family::block, block_key(hash)); }

void changeset::count(record_counters& counters) const {
  for (const auto& l : lines_) {
    if (l.added) {
      counters.add(l.expiry_s, l.record);
    } else {
      counters.remove(l.expiry_s, l.record);
    }
  }
}

result<std::unique_ptr<block_index>> block_index::open(db& database, const index_options& options, int64_t now_s,
                                                       nanoseconds now) {
  if (options.step_s <= 0 || options.agent_ttl_s <= 0 || options.chatbot_ttl_s <= 0 || options.sweep_grace_s < 0)
    return fail(errc::invalid_argument,
                "step {} s, times to live {} and {} s, sweep grace {} s: positive times expected", options.step_s,
                options.agent_ttl_s, options.chatbot_ttl_s, options.sweep_grace_s);
  if (options.lease <= nanoseconds(0) || options.leases_max == 0)
    return fail(errc::invalid_argument, "lease {} ns, at most {} of them: both must be positive", options.lease.count(),
                options.leases_max);
  auto out = std::make_unique<index_impl>(database, options);
  if (auto r = out->count(now_s, now); !r) return fail(std::move(r.error()));
  return std::unique_ptr<block_index>(std::move(out));
}

result<void> index_impl::count(int64_t now_s, nanoseconds now) {
  TROUPE_TRY(auto at, db_.scan(family::expiry, expiry_bound(now_s - options_.sweep_grace_s)));
  for (; at->valid(); at->next()) {
    const auto entry = parse_expiry_key(at->key());
    if (!entry) {
      damaged();
      continue;
    }
    auto r = decode_expiry(at->key(), at->value());
    if (!r) {
      damaged();
      TROUPE_TRY(const auto x, read_extent(entry->id));
      if (!x || x->expiry_s != entry->expiry_s) continue;
      r = expiry_record_of(*x);
    }
    counters_.add(entry->expiry_s, *r);
  }
  if (auto s = at->status(); !s) return s;
  if (options_.hold_after_open && !counters_.empty()) hold_until_ = now + 2 * options_.lease;
  return {};
}

result<bool> index_impl::read(family f, std::string_view key, std::string& value) {
  auto r = db_.get(f, key, value);
  if (!r && r.error().code == errc::corrupt) {
    damaged();
    return false;
  }
  return r;
}

result<void> index_impl::read_many(family f, const std::vector<std::string>& keys,
                                   std::vector<std::optional<std::string>>& values) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const auto r = db_.multi_get(f, views, values);
  if (r || r.error().code != errc::corrupt) return r;
  // One of them is on a damaged part of the disk: the others are still good.
  values.assign(keys.size(), std::nullopt);
  for (size_t i = 0; i < keys.size(); ++i) {
    std::string v;
    TROUPE_TRY(const bool there, read(f, keys[i], v));
    if (there) values[i] = std::move(v);
  }
  return {};
}

result<std::optional<extent_record>> index_impl::read_extent(const extent_id& id) {
  const std::string key = extent_key(id);
  std::string value;
  TROUPE_TRY(const bool there, read(family::extent, key, value));
  if (!there) return std::nullopt;
  auto r = decode_extent(key, value);
  if (!r) {
    damaged();
    return std::nullopt;
  }
  return std::optional(std::move(*r));
}

result<index_impl::extent_map> index_impl::read_extents(std::span<const extent_id> ids) {
  extent_map out;
  if (ids.empty()) return out;
  std::vector<std::string> keys;
  keys.reserve(ids.size());
  for (const auto& id : ids) keys.push_back(extent_key(id));
  std::vector<std::optional<std::string>> values;
  if (auto r = read_many(family::extent, keys, values); !r) return fail(r.error());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!values[i]) continue;
    auto r = decode_extent(keys[i], *values[i]);
    if (r) {
      out.emplace(ids[i], std::move(*r));
    } else {
      damaged();
    }
  }
  return out;
}

result<std::vector<std::optional<block_record>>> index_impl::read_blocks(std::span<const block_hash> hashes) {
  std::vector<std::optional<block_record>> out(hashes.size());
  if (hashes.empty()) return out;
  std::vector<std::string> keys;
  keys.reserve(hashes.size());
  for (const auto& h : hashes) keys.push_back(block_key(h));
  std::vector<std::optional<std::string>> values;
  if (auto r = read_many(family::block, keys, values); !r) return fail(r.error());
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (!values[i]) continue;
    if (auto r = decode_block(keys[i], *values[i])) {
      out[i] = *r;
    } else {
      damaged();
    }
  }
  return out;
}

result<void> index_impl::commit(const changeset& changes, const char* point) {
  if (changes.empty()) return {};
  const std::string name(point);
  crash_point(options_.hook, name + ".before");
  if (auto r = db_.write(changes.batch(), options_.sync); !r) return r;
  crash_point(options_.hook, name + ".written");
  changes.count(counters_);
  return {};
}

policies::ttl_input index_impl::ttl_input_of(traffic_class traffic, policies::ttl_touch touch, int64_t now_s) const {
  policies::ttl_input in;
  in.now_s = now_s;
  in.traffic = traffic;
  in.touch = touch;
  in.agent_s = options_.agent_ttl_s;
  in.chatbot_s = options_.chatbot_ttl_s;
  in.step_s = options_.step_s;
  return in;
}

result<int64_t> index_impl::expiry_of_write(traffic_class traffic, int64_t current, int64_t now_s) const {
  auto in = ttl_input_of(traffic, policies::ttl_touch::write, now_s);
  in.expiry_s = {current};
  TROUPE_TRY(const auto plan, policies::plan_ttl(in));
  return plan.changes.empty() ? current : plan.changes[0].expiry_s;
}

result<lease_grant> index_impl::lease(std::span<const extent_id> extents, int64_t now_s, nanoseconds now) {
  std::shared_lock lock(reclaim_);  // between the look at the records and the lease nothing is removed
  TROUPE_TRY(const auto records, read_extents(extents));
  lease_grant out;
  std::vector<extent_id> held;
  for (const auto& id : extents) {
    const auto at = records.find(id);
    const bool there = at != records.end() && at->second.expiry_s >= now_s;
    out.held.push_back(there);
    if (there) held.push_back(id);
  }
  TROUPE_TRY(out.token, leases_.take(held, now));
  out.deadline = now + leases_.length();
  return out;
}

index_stats index_impl::stats(int64_t now_s) {
  index_stats out;
  counters_.sum(now_s, options_.sweep_grace_s, out);
  out.leases = leases_.size();
  out.corrupt = corrupt_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace troupe::kv
