#include "kv/store/shares.hpp"

#include <algorithm>

namespace troupe::kv {

std::vector<slot_share> shares_of(const members& who, std::span<const block_hash> chain, uint64_t from, uint64_t to) {
  std::vector<slot_share> out;
  for (uint64_t at = from; at < to;) {
    slot_share s;
    s.slot = at / slot_blocks;
    s.first = at;
    s.count = static_cast<uint32_t>(std::min<uint64_t>((s.slot + 1) * slot_blocks, to) - at);
    s.owners = owners_of(who, chain[s.slot * slot_blocks]);
    at += s.count;
    out.push_back(std::move(s));
  }
  return out;
}

void tell_replicas(const std::vector<slot_share>& shares, const std::vector<size_t>& which, const owner& primary,
                   const std::vector<index_change>& changes, std::function<void()> done) {
  std::map<owner_id, owner*> others;
  if (!changes.empty()) {
    for (size_t i : which) {
      for (owner* o : shares[i].owners) {
        if (o->id() != primary.id()) others[o->id()] = o;
      }
    }
  }
  if (others.empty()) return done();
  auto left = std::make_shared<size_t>(others.size());
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  for (auto& [id, o] : others) {
    (void)id;
    o->apply(changes, [left, shared](result<void>) {
      if (--*left == 0) (*shared)();
    });
  }
}

}  // namespace troupe::kv
