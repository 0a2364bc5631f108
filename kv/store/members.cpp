#include "kv/store/members.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/rng.hpp"

namespace troupe::kv {

bool takes_new(const members& m, target_id t) {
  return std::any_of(m.placing.begin(), m.placing.end(), [&](const auto& n) { return n.id == t.value; });
}

std::vector<owner*> owners_of(const members& m, const block_hash& first_of_slot) {
  std::array<uint32_t, 4> counter;
  static_assert(sizeof counter == sizeof first_of_slot.bytes);
  std::memcpy(counter.data(), first_of_slot.bytes.data(), sizeof counter);
  std::vector<std::pair<uint64_t, owner*>> draws;
  draws.reserve(m.owners.size());
  for (owner* o : m.owners) {
    const auto d = philox(counter, {o->id().value, first_of_slot.tokens});
    draws.emplace_back(uint64_t{d[0]} << 32 | d[1], o);
  }
  std::sort(draws.begin(), draws.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->id() < b.second->id();
  });
  std::vector<owner*> out;
  for (const auto& d : draws) {
    if (out.size() > m.replicas) break;
    out.push_back(d.second);
  }
  return out;
}

owner* primary_of(const members& m, const block_hash& first_of_slot) {
  for (owner* o : owners_of(m, first_of_slot)) {
    if (std::find(m.away.begin(), m.away.end(), o->id()) == m.away.end()) return o;
  }
  return nullptr;
}

result<std::vector<target_id>> place(const members& m, const extent_id& id, uint32_t data, uint32_t parity,
                                     const std::vector<target_id>& current, const std::vector<target_id>& without) {
  policies::shard_place_input in;
  in.key_high = id.high;
  in.key_low = id.low;
  in.data = data;
  in.parity = parity;
  for (const auto& n : m.placing) {
    const bool left_out = std::any_of(without.begin(), without.end(), [&](target_id t) { return t.value == n.id; });
    if (!left_out) in.nodes.push_back(n);
  }
  if (in.nodes.size() < data + parity)
    return fail(errc::unavailable, "{} storage targets can be written, {} are needed for {}+{}", in.nodes.size(),
                data + parity, data, parity);
  for (auto t : current) in.current.push_back(t.value);
  TROUPE_TRY(auto plan, policies::place_shards(in));
  std::vector<target_id> out;
  for (uint64_t n : plan.nodes) out.push_back(target_id{static_cast<uint32_t>(n)});
  return out;
}

}  // namespace troupe::kv
