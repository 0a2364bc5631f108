#include "policies/evict.hpp"

#include <fmt/format.h>

#include <queue>
#include <tuple>
#include <unordered_map>

namespace troupe::policies {

result<evict_plan> plan_evict(const evict_input& in) {
  const size_t n = in.entries.size();
  std::unordered_map<uint64_t, size_t> by_id;
  by_id.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t id = in.entries[i].id;
    if (id == 0) return fail(errc::invalid_argument, "entries[{}].id: 0 means none", i);
    if (!by_id.emplace(id, i).second) return fail(errc::invalid_argument, "entries[{}].id: {} is listed twice", i, id);
  }
  std::vector<size_t> parent(n, SIZE_MAX);
  std::vector<uint32_t> children(n, 0);
  for (size_t i = 0; i < n; ++i) {
    const auto at = by_id.find(in.entries[i].parent);
    if (in.entries[i].parent == 0 || at == by_id.end()) continue;
    parent[i] = at->second;
    ++children[at->second];
  }
  {  // a cycle: taking leaves away never ends with nothing
    auto left = children;
    std::vector<size_t> leaves;
    size_t gone = 0;
    for (size_t i = 0; i < n; ++i)
      if (left[i] == 0) leaves.push_back(i);
    while (!leaves.empty()) {
      const size_t i = leaves.back();
      leaves.pop_back();
      ++gone;
      if (parent[i] != SIZE_MAX && --left[parent[i]] == 0) leaves.push_back(parent[i]);
    }
    if (gone != n) return fail(errc::invalid_argument, "entries: {} of them are their own ancestors", n - gone);
  }
  using key = std::tuple<int64_t, int64_t, uint64_t, size_t>;
  std::priority_queue<key, std::vector<key>, std::greater<>> ready;
  const auto offer = [&](size_t i) {
    const auto& e = in.entries[i];
    if (!e.leased && children[i] == 0) ready.emplace(e.expiry_s, e.written_s, e.id, i);
  };
  for (size_t i = 0; i < n; ++i) offer(i);
  evict_plan out;
  size_t expired = 0;
  while (!ready.empty()) {
    const size_t i = std::get<3>(ready.top());
    const auto& e = in.entries[i];
    const bool dead = e.expiry_s < in.now_s;
    if (out.freed_bytes >= in.need_bytes && !(in.all_expired && dead)) break;
    ready.pop();
    out.ids.push_back(e.id);
    out.freed_bytes += e.bytes;
    expired += dead;
    if (parent[i] != SIZE_MAX) {
      --children[parent[i]];
      offer(parent[i]);
    }
  }
  out.short_bytes = in.need_bytes > out.freed_bytes ? in.need_bytes - out.freed_bytes : 0;
  out.reason = fmt::format("{} of {} entries, {} of them expired, {} of {} bytes", out.ids.size(), n, expired,
                           out.freed_bytes, in.need_bytes);
  return out;
}

}  // namespace troupe::policies
