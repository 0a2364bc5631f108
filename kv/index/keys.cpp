#include "kv/index/keys.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

template <class Int>
void append_be(std::string& out, Int v) {
  for (int shift = 8 * (sizeof v - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(v >> shift));
}

template <class Int>
Int read_be(std::string_view in, size_t at) {
  Int v = 0;
  for (size_t i = 0; i < sizeof v; ++i) v = static_cast<Int>(v << 8) | static_cast<uint8_t>(in[at + i]);
  return v;
}

}  // namespace

std::string block_key(const block_hash& hash) {
  std::string out(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  append_be(out, hash.tokens);
  return out;
}

std::optional<block_hash> parse_block_key(std::string_view key) {
  if (key.size() != block_key_size) return std::nullopt;
  block_hash h;
  std::copy_n(key.begin(), h.bytes.size(), reinterpret_cast<char*>(h.bytes.data()));
  h.tokens = read_be<uint32_t>(key, 16);
  return h;
}

std::string extent_key(const extent_id& id) {
  std::string out;
  append_be(out, id.high);
  append_be(out, id.low);
  return out;
}

std::optional<extent_id> parse_extent_key(std::string_view key) {
  if (key.size() != extent_key_size) return std::nullopt;
  return extent_id{read_be<uint64_t>(key, 0), read_be<uint64_t>(key, 8)};
}

std::string expiry_key(const expiry_entry& e) {
  TROUPE_CHECK(e.expiry_s >= 0, "expiry {}", e.expiry_s);
  std::string out;
  out.reserve(expiry_key_size);
  append_be(out, static_cast<uint64_t>(e.expiry_s));
  append_be(out, ~e.first);
  append_be(out, e.id.high);
  append_be(out, e.id.low);
  return out;
}

std::optional<expiry_entry> parse_expiry_key(std::string_view key) {
  if (key.size() != expiry_key_size) return std::nullopt;
  const auto expiry = read_be<uint64_t>(key, 0);
  if (expiry > INT64_MAX) return std::nullopt;
  return expiry_entry{static_cast<int64_t>(expiry),
                      ~read_be<uint32_t>(key, 8),
                      {read_be<uint64_t>(key, 12), read_be<uint64_t>(key, 20)}};
}

std::string expiry_bound(int64_t now_s) {
  std::string out;
  append_be(out, static_cast<uint64_t>(std::max<int64_t>(now_s, 0)));
  return out;
}

}  // namespace troupe::kv
