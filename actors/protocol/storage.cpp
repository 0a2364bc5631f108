#include "actors/protocol/storage.hpp"

#include <cstring>

namespace troupe::actors {
namespace {

constexpr size_t hash_bytes = 20;

}  // namespace

storage_epoch storage_epoch_of(const cluster_view& view) {
  for (const auto& g : view.groups)
    if (g.what == role::storage) return storage_epoch{view.epoch.value << 20 | g.epoch.value};
  return {};
}

void kv_fence::follow(const cluster_view& view) {
  if (view.version < version_) return;
  version_ = view.version;
  epoch_ = std::max(epoch_, storage_epoch_of(view));
  members_.clear();
  for (const auto& n : view.nodes) members_[n.node] = n.inc;
}

status kv_fence::check(const kv_origin& from) const {
  if (from.epoch < epoch_)
    return {errc::stale, fmt::format("storage epoch {} is over, {} is now", from.epoch.value, epoch_.value)};
  auto it = members_.find(from.node);
  if (from.node != node_number{} && it != members_.end() && from.inc < it->second)
    return {errc::stale, fmt::format("incarnation {} of node {} is over", from.inc.value, from.node.value)};
  return {};
}

packed_hashes pack(std::span<const kv::block_hash> hashes) {
  packed_hashes p;
  p.bytes.resize(hashes.size() * hash_bytes);
  char* to = p.bytes.data();
  for (const auto& h : hashes) {
    std::memcpy(to, h.bytes.data(), 16);
    for (int i = 0; i < 4; ++i) to[16 + i] = static_cast<char>(h.tokens >> (8 * i));
    to += hash_bytes;
  }
  return p;
}

result<std::vector<kv::block_hash>> unpack(const packed_hashes& p) {
  if (p.bytes.size() % hash_bytes != 0)
    return fail(errc::corrupt, "hashes of {} bytes in all: each has {}", p.bytes.size(), hash_bytes);
  std::vector<kv::block_hash> out(p.bytes.size() / hash_bytes);
  const char* from = p.bytes.data();
  for (auto& h : out) {
    std::memcpy(h.bytes.data(), from, 16);
    for (int i = 0; i < 4; ++i) h.tokens |= uint32_t{static_cast<uint8_t>(from[16 + i])} << (8 * i);
    from += hash_bytes;
  }
  return out;
}

}  // namespace troupe::actors
