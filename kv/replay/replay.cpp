#include "kv/replay/replay.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "kv/extent/footer.hpp"
#include "kv/replay/lru.hpp"
#include "policies/ttl.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
result<replay_counts> replay_blocks(std::span<const trace_request> trace, const replay_limits& limits) {
  if (limits.ttl_ms < 0) return fail(errc::invalid_argument, "ttl {} ms: a positive time expected", limits.ttl_ms);
  if (limits.ttl_ms > 0 && limits.lru_blocks > 0)
    return fail(errc::invalid_argument, "a time to live and a capacity at once: choose one");
  replay_counts out;
  lru<uint64_t> stored(limits.lru_blocks);
  std::unordered_map<uint64_t, int64_t> expiry;
  std::unordered_set<uint64_t> unique;
  for (const auto& r : trace) {
    ++out.requests;
    out.blocks += r.ids.size();
    out.tokens += r.input_tokens;
    size_t hit = 0;
    if (limits.ttl_ms == 0) {
      while (hit < r.ids.size() && stored.contains(r.ids[hit])) ++hit;
      for (const uint64_t id : r.ids) stored.touch(id);
    } else {
      policies::ttl_input in;
      in.now_s = r.timestamp_ms;  // the policy's unit is a second; any other serves, and this one is the trace's
      in.chatbot_s = limits.ttl_ms;
      in.traffic = traffic_class::chatbot;
      in.touch = policies::ttl_touch::read;
      in.step_s = 1;
      for (const uint64_t id : r.ids) {
        const auto at = expiry.find(id);
        in.expiry_s.push_back(at == expiry.end() ? 0 : at->second);
      }
      TROUPE_TRY(const auto plan, policies::plan_ttl(in));
      hit = plan.visible;
      for (const uint64_t id : r.ids) expiry[id] = r.timestamp_ms + limits.ttl_ms;  // read or written anew
    }
    out.hit_blocks += hit;
    out.hit_tokens += std::min<uint64_t>(uint64_t{hit} * trace_block_tokens, r.input_tokens);
    unique.insert(r.ids.begin(), r.ids.end());
  }
  out.unique_blocks = unique.size();
  return out;
}

namespace {

// Stands for the hash of a block: the trace only tells that two are equal, by their ids.
block_hash hash_of(uint64_t id, uint32_t part, size_t position, uint32_t block_tokens) {
  const auto words = philox({static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), part, block_tokens}, {7, 7});
  block_hash h;
  std::memcpy(h.bytes.data(), words.data(), h.bytes.size());
  h.tokens = static_cast<uint32_t>((position + 1) * block_tokens);
  return h;
}

std::vector<block_hash> chain_of(const trace_request& r, uint32_t block_tokens) {
  const uint32_t parts = trace_block_tokens / block_tokens;
  std::vector<block_hash> out;
  for (size_t i = 0; i < r.input_tokens / block_tokens; ++i)
    out.push_back(hash_of(r.ids[i / parts], static_cast<uint32_t>(i % parts), i, block_tokens));
  return out;
}

std::vector<match_slot> slots_of(std::span<const block_hash> chain) {
  std::vector<match_slot> out;
  for (size_t i = 0; i < chain.size(); i += slot_blocks) {
    const auto part = chain.subspan(i, std::min<size_t>(slot_blocks, chain.size() - i));
    out.push_back({i / slot_blocks, {part.begin(), part.end()}});
  }
  return out;
}

}  // namespace

result<replay_index_counts> replay_index(std::span<const trace_request> trace, block_index& index,
                                         const replay_shape& shape, int64_t start_s) {
  if (shape.block_tokens == 0 || trace_block_tokens % shape.block_tokens != 0)
    return fail(errc::invalid_argument, "block_tokens {}: a divisor of {} expected", shape.block_tokens,
                trace_block_tokens);
  if (shape.data < 1 || shape.data > max_data_shards || shape.parity > max_parity_shards || shape.block_bytes < 1 ||
      shape.block_bytes > max_block_bytes)
    return fail(errc::invalid_argument,
                "{}+{} shards of blocks of {} bytes: 1 to {} data, up to {} parity, 1 to {} bytes", shape.data,
                shape.parity, shape.block_bytes, max_data_shards, max_parity_shards, max_block_bytes);
  replay_index_counts out;
  std::unordered_set<block_hash> seen;
  // Block by block, with the same limits: what per-block lookup would find.
  lru<block_hash> apart(shape.lru_blocks);
  std::unordered_map<block_hash, int64_t> expiry;
  extent_id next{1, 0};
  for (const auto& r : trace) {
    if (shape.stop && shape.stop())
      return fail(errc::cancelled, "stopped after {} of {} requests", out.requests, trace.size());
    const int64_t now_s = start_s + r.timestamp_ms / 1'000;
    const auto chain = chain_of(r, shape.block_tokens);
    ++out.requests;
    out.blocks += chain.size();
    out.tokens += r.input_tokens;
    const auto found_alone = [&](const block_hash& h) {
      if (shape.lru_blocks > 0) return apart.contains(h);
      if (shape.ttl_s <= 0) return seen.contains(h);
      const auto at = expiry.find(h);
      return at != expiry.end() && at->second >= now_s;
    };
    size_t alone = 0;
    while (alone < chain.size() && found_alone(chain[alone])) ++alone;
    out.per_block_hits += alone;
    for (const auto& h : chain) {
      if (shape.lru_blocks > 0) apart.touch(h);
      if (shape.ttl_s > 0) expiry[h] = now_s + shape.ttl_s;
    }
    seen.insert(chain.begin(), chain.end());
    if (chain.empty()) continue;

    TROUPE_TRY(const auto found, index.match(slots_of(chain), chain.size(), true, now_s));
    const size_t hit = found.first_missing;
    out.hit_blocks += hit;
    out.hit_tokens += uint64_t{hit} * shape.block_tokens;
    out.extent_reads += found.runs.size();
    if (hit > 0)
      if (auto t = index.touch(std::span(chain).first(hit), policies::ttl_touch::read, traffic_class::chatbot, now_s);
          !t)
        return fail(t.error());

    std::vector<extent_info> fresh;
    const auto put = [&]() -> result<void> {
      TROUPE_TRY(const auto done, index.put(fresh, now_s));
      for (size_t i = 0; i < fresh.size(); ++i) {
        if (!done.recorded[i]) continue;
        ++out.extents;
        out.payload_bytes += uint64_t{fresh[i].count} * shape.block_bytes;
        out.device_bytes += uint64_t{fresh[i].shards()} * runs_of(shard_bytes(fresh[i])) * run_bytes;
      }
      fresh.clear();
      return {};
    };
    for (size_t at = hit; at < chain.size();) {
      const size_t end = std::min(chain.size(), (at / slot_blocks + 1) * slot_blocks);
      extent_info e;
      e.id = {next.high, ++next.low};
      e.first = at, e.count = static_cast<uint32_t>(end - at), e.block_bytes = shape.block_bytes;
      e.hashes.assign(chain.begin() + static_cast<ptrdiff_t>(at), chain.begin() + static_cast<ptrdiff_t>(end));
      if (at > 0) e.parent = chain[at - 1];
      e.slot_first = chain[at / slot_blocks * slot_blocks];
      e.data = static_cast<uint8_t>(shape.data);
      e.parity = static_cast<uint8_t>(shape.parity);
      for (uint32_t i = 0; i < e.shards(); ++i) e.targets.push_back(target_id{i + 1});
      e.traffic = traffic_class::chatbot;
      e.written = now_s;
      e.block_crcs.assign(e.count, 0);
      fresh.push_back(std::move(e));
      at = end;
      if (fresh.size() == put_extents_max || at == chain.size())
        if (auto p = put(); !p) return fail(p.error());
    }
    if (shape.lru_blocks == 0) continue;
    const auto s = index.stats(now_s);
    if (s.blocks <= shape.lru_blocks) continue;
    TROUPE_TRY(const auto plan,
               index.evict((s.blocks - shape.lru_blocks) * shape.block_bytes, {INT64_MAX, 0}, 65'536, now_s, {}));
    if (auto gone = index.remove(plan.extents, remove_why::evicted, now_s, {}); !gone) return fail(gone.error());
  }
  out.unique_blocks = seen.size();
  return out;
}

}  // namespace troupe::kv
