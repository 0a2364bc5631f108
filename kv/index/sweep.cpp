#include "kv/index/sweep.hpp"

#include "kv/index/records.hpp"

namespace troupe::kv {
namespace {

class index_sweeper final : public sweeper {
 public:
  explicit index_sweeper(int64_t grace_s) : grace_s_(grace_s) {}

  bool drop(family f, std::string_view key, std::string_view value, int64_t now_s, const db& reader) const override {
    const int64_t before = now_s - grace_s_;
    switch (f) {
      case family::extent: {
        const auto r = decode_extent(key, value);
        return r && r->expiry_s < before;
      }
      case family::expiry: {
        const auto e = parse_expiry_key(key);
        return e && e->expiry_s < before;
      }
      case family::block: {
        const auto r = decode_block(key, value);
        // Most blocks are younger than that; only an old one, whose extent may have been extended, costs a read.
        if (!r || r->expiry_s >= before) return false;
        const std::string at = extent_key(r->place.extent);
        std::string bytes;
        const auto found = reader.get(family::extent, at, bytes);
        if (!found) return false;
        if (!*found) return true;
        const auto x = decode_extent(at, bytes);
        return x && x->expiry_s < before;
      }
      case family::shard:
      case family::meta:
        return false;
    }
    return false;
  }

 private:
  const int64_t grace_s_;
};

}  // namespace

std::shared_ptr<const sweeper> make_index_sweeper(int64_t grace_s) { return std::make_shared<index_sweeper>(grace_s); }

}  // namespace troupe::kv
