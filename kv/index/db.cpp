#include "kv/index/db.hpp"

#include "runtime/base/check.hpp"

namespace troupe::kv {

const char* to_string(family f) {
  switch (f) {
    case family::block:
      return "block";
    case family::extent:
      return "extent";
    case family::expiry:
      return "expiry";
    case family::shard:
      return "shard";
    case family::meta:
      return "meta";
  }
  return "unknown";
}

void write_batch::put(family f, std::string_view key, std::string_view value) {
  ops_.push_back({f, false, static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size()), data_.size()});
  data_.append(key).append(value);
}

void write_batch::erase(family f, std::string_view key) {
  ops_.push_back({f, true, static_cast<uint32_t>(key.size()), 0, data_.size()});
  data_.append(key);
}

void write_batch::clear() {
  data_.clear();
  ops_.clear();
}

write_batch::op write_batch::at(size_t i) const {
  TROUPE_CHECK(i < ops_.size(), "operation {} of {}", i, ops_.size());
  const auto& o = ops_[i];
  const std::string_view all = data_;
  return {o.in, o.erase, all.substr(o.offset, o.key_size), all.substr(o.offset + o.key_size, o.value_size)};
}

}  // namespace troupe::kv
