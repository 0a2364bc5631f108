#include "policies/shard_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_set>

#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

constexpr uint32_t most_weight = 1u << 24;

// -log2(u / 2^64) in units of 2^-30, rounded down, at least 1; u > 0. Bits of the logarithm by repeated squaring, so
// that it is the same integer everywhere. Below 2^37.
uint64_t minus_log2(uint64_t u) {
  const int lead = std::countl_zero(u);
  uint64_t m = (u << lead) >> 32;  // in [2^31, 2^32): 1.31 fixed point
  uint64_t fraction = 0;
  for (int i = 0; i < 30; ++i) {
    m = m * m >> 31;
    fraction <<= 1;
    if (m >= uint64_t{1} << 32) {
      fraction |= 1;
      m >>= 1;
    }
  }
  const uint64_t log = (uint64_t(63 - lead) << 30) + fraction;  // log2(u)
  return std::max<uint64_t>(1, (uint64_t{64} << 30) - log);
}

struct drawn {
  const shard_node* node;
  uint64_t log;  // smaller is better, as log / weight
};

}  // namespace

result<shard_place_plan> place_shards(const shard_place_input& in) {
  const uint64_t shards = uint64_t{in.data} + in.parity;
  if (in.data == 0 || shards > 255)
    return fail(errc::invalid_argument, "data {} + parity {}: 1 to 255 shards, at least one of data", in.data,
                in.parity);
  if (!in.current.empty() && in.current.size() != shards)
    return fail(errc::invalid_argument, "current: {} shards, expected {}", in.current.size(), shards);
  std::vector<drawn> order;
  std::map<uint64_t, uint32_t> left;  // domain -> usable nodes
  std::unordered_set<uint64_t> ids;
  for (size_t i = 0; i < in.nodes.size(); ++i) {
    const auto& n = in.nodes[i];
    if (n.id == 0 || !ids.insert(n.id).second)
      return fail(errc::invalid_argument, "nodes[{}].id: {} is 0 or listed twice", i, n.id);
    if (n.weight > most_weight)
      return fail(errc::invalid_argument, "nodes[{}].weight: {} is above {}", i, n.weight, most_weight);
    if (n.weight == 0) continue;
    const auto w =
        philox({uint32_t(in.key_low), uint32_t(in.key_low >> 32), uint32_t(in.key_high), uint32_t(in.key_high >> 32)},
               {uint32_t(n.id), uint32_t(n.id >> 32)});
    order.push_back({&n, minus_log2(std::max<uint64_t>(1, uint64_t{w[0]} << 32 | w[1]))});
    ++left[n.domain];
  }
  if (order.size() < shards)
    return fail(errc::exhausted, "nodes: {} usable ones for {} shards; add storage nodes or use a smaller code",
                order.size(), shards);
  // log_a / w_a < log_b / w_b, in integers below 2^61.
  std::sort(order.begin(), order.end(), [](const drawn& a, const drawn& b) {
    const uint64_t x = a.log * b.node->weight, y = b.log * a.node->weight;
    return x != y ? x < y : a.node->id < b.node->id;
  });
  // The least cap per domain under which all shards find a place.
  uint32_t cap = static_cast<uint32_t>((shards + left.size() - 1) / left.size());
  for (;; ++cap) {
    uint64_t room = 0;
    for (const auto& [domain, count] : left) room += std::min(cap, count);
    if (room >= shards) break;
  }
  std::map<uint64_t, uint32_t> used;
  std::vector<uint64_t> winners;
  for (const auto& d : order) {
    if (winners.size() == shards) break;
    if (auto& u = used[d.node->domain]; u < cap) {
      ++u;
      winners.push_back(d.node->id);
    }
  }
  shard_place_plan out;
  out.nodes.assign(shards, 0);
  std::unordered_set<uint64_t> open(winners.begin(), winners.end());
  for (size_t i = 0; i < in.current.size(); ++i)
    if (open.erase(in.current[i]) > 0) out.nodes[i] = in.current[i];
  size_t next = 0;
  for (auto& n : out.nodes) {
    if (n != 0) continue;
    while (!open.contains(winners[next])) ++next;
    n = winners[next++];
  }
  for (size_t i = 0; i < in.current.size(); ++i) out.moved += in.current[i] != out.nodes[i];
  for (const auto& [domain, u] : used) out.per_domain = std::max(out.per_domain, u);
  out.survives_domain = out.per_domain <= in.parity;
  out.reason = fmt::format("{} of {} nodes in {} domains, at most {} per domain, {} moved", shards, order.size(),
                           left.size(), out.per_domain, out.moved);
  return out;
}

}  // namespace troupe::policies
