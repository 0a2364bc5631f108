#include "kv/index/records.hpp"

#include <bit>
#include <cstring>
#include <msgpack.hpp>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

constexpr size_t header_bytes = 5;
constexpr size_t hash_bytes = 20;  // in a list: bytes, tokens (u32 little-endian)

// msgpack writes straight into the value.
struct sink {
  std::string& out;
  void write(const char* bytes, size_t n) { out.append(bytes, n); }
};
using packer = msgpack::packer<sink>;

std::span<const std::byte> bytes_of(std::string_view s) { return std::as_bytes(std::span(s.data(), s.size())); }

template <class F>
std::string seal(std::string_view key, size_t expected, F&& pack) {
  std::string out(header_bytes, '\0');
  out.reserve(header_bytes + expected);
  out[0] = static_cast<char>(record_version);
  sink s{out};
  packer p(s);
  pack(p);
  const uint32_t crc = record_checksum(key, out);
  std::memcpy(out.data() + 1, &crc, sizeof crc);
  return out;
}

void pack_bytes(packer& p, std::string_view bytes) {
  p.pack_bin(static_cast<uint32_t>(bytes.size()));
  p.pack_bin_body(bytes.data(), static_cast<uint32_t>(bytes.size()));
}

void append_hash(std::string& out, const block_hash& h) {
  out.append(reinterpret_cast<const char*>(h.bytes.data()), h.bytes.size());
  out.append(reinterpret_cast<const char*>(&h.tokens), sizeof h.tokens);
}

block_hash read_hash(const char* at) {
  block_hash h;
  std::memcpy(h.bytes.data(), at, h.bytes.size());
  std::memcpy(&h.tokens, at + h.bytes.size(), sizeof h.tokens);
  return h;
}

// Walks a parsed array; `ok` turns false, for good, at the first member that does not fit.
class reader {
 public:
  explicit reader(const msgpack::object& o) : array_(o.type == msgpack::type::ARRAY ? &o.via.array : nullptr) {}
  bool ok() const { return ok_ && array_; }
  bool complete() const { return ok() && next_ == array_->size; }
  template <class Int>
  Int number(uint64_t most) {
    const auto* o = take(msgpack::type::POSITIVE_INTEGER);
    if (!o || o->via.u64 > most) return ok_ = false, Int{};
    return static_cast<Int>(o->via.u64);
  }
  std::string_view bytes() {
    const auto* o = take(msgpack::type::BIN);
    return o ? std::string_view(o->via.bin.ptr, o->via.bin.size) : std::string_view();
  }
  // A list of u32 as little-endian bytes.
  std::vector<uint32_t> words(size_t most) {
    const auto b = bytes();
    if (b.size() % 4 != 0 || b.size() / 4 > most) return ok_ = false, std::vector<uint32_t>();
    std::vector<uint32_t> out(b.size() / 4);
    if (!b.empty()) std::memcpy(out.data(), b.data(), b.size());
    return out;
  }
  std::vector<block_hash> hashes(size_t most) {
    const auto b = bytes();
    if (b.size() % hash_bytes != 0 || b.size() / hash_bytes > most) return ok_ = false, std::vector<block_hash>();
    std::vector<block_hash> out;
    for (size_t i = 0; i < b.size(); i += hash_bytes) out.push_back(read_hash(b.data() + i));
    return out;
  }

 private:
  const msgpack::object* take(msgpack::type::object_type type) {
    if (!ok() || next_ >= array_->size || array_->ptr[next_].type != type) return ok_ = false, nullptr;
    return &array_->ptr[next_++];
  }
  const msgpack::object_array* array_;
  uint32_t next_ = 0;
  bool ok_ = true;
};

// Checks the envelope and parses the payload. The limits keep a forged length from allocating.
result<msgpack::object_handle> open(family f, std::string_view key, std::string_view value) {
  if (value.size() <= header_bytes) return fail(errc::corrupt, "{} record of {} bytes", to_string(f), value.size());
  uint32_t crc = 0;
  std::memcpy(&crc, value.data() + 1, sizeof crc);
  if (crc != record_checksum(key, value))
    return fail(errc::corrupt, "{} record: its checksum does not hold", to_string(f));
  if (static_cast<uint8_t>(value[0]) != record_version)
    return fail(errc::unsupported, "{} record of version {}, this program reads {}; use the version that wrote it",
                to_string(f), static_cast<int>(static_cast<uint8_t>(value[0])), record_version);
  try {
    size_t at = header_bytes;
    auto handle = msgpack::unpack(
        value.data(), value.size(), at, [](msgpack::type::object_type, size_t, void*) { return true; }, nullptr,
        msgpack::unpack_limit(32, 0, 0, 4096, 0, 2));
    if (at == value.size()) return handle;
  } catch (const std::exception&) {
    // said below: whatever msgpack objects to, the record is not ours
  }
  return fail(errc::corrupt, "{} record: its payload is not what was written", to_string(f));
}

tl::unexpected<error> nonsense(family f) {
  return fail(errc::corrupt, "{} record: its members make no sense", to_string(f));
}

}  // namespace

uint32_t record_checksum(std::string_view key, std::string_view value) {
  const uint32_t head = crc32c(bytes_of(key), crc32c(bytes_of(value.substr(0, 1))));
  return crc32c(bytes_of(value.substr(header_bytes)), head);
}

std::string encode(std::string_view key, const block_record& r) {
  return seal(key, 32, [&](packer& p) {
    p.pack_array(4);
    p.pack(r.place.extent.high).pack(r.place.extent.low).pack(r.place.ordinal).pack(r.expiry_s);
  });
}

std::string encode(std::string_view key, const extent_record& r) {
  const extent_info& e = r.info;
  std::string hashes, words;
  hashes.reserve(hash_bytes * e.hashes.size());
  for (const auto& h : e.hashes) append_hash(hashes, h);
  std::string around;
  append_hash(around, e.parent);
  append_hash(around, e.slot_first);
  const auto pack_words = [&](packer& p, const auto& list) {
    words.clear();
    for (const auto& v : list) {
      uint32_t word = 0;
      if constexpr (requires { v.value; }) {
        word = v.value;
      } else {
        word = v;
      }
      words.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    pack_bytes(p, words);
  };
  return seal(
      key, 128 + hashes.size() + 4 * (e.targets.size() + e.lengths.size() + e.block_crcs.size()), [&](packer& p) {
        p.pack_array(19);
        p.pack(r.expiry_s).pack(r.owned);
        p.pack(e.id.high).pack(e.id.low).pack(e.first).pack(e.count).pack(e.block_bytes);
        pack_words(p, e.lengths);
        pack_bytes(p, hashes);
        pack_bytes(p, around);
        p.pack(e.data).pack(e.parity);
        pack_words(p, e.targets);
        p.pack(static_cast<uint8_t>(e.traffic)).pack(e.written).pack(e.expiry).pack(e.epoch.value).pack(e.scheme);
        pack_words(p, e.block_crcs);
      });
}

std::string encode(std::string_view key, const expiry_record& r) {
  return seal(key, 16, [&](packer& p) {
    p.pack_array(2);
    p.pack(r.blocks).pack(r.bytes);
  });
}

result<block_record> decode_block(std::string_view key, std::string_view value) {
  TROUPE_TRY(auto handle, open(family::block, key, value));
  reader in(handle.get());
  block_record r;
  r.place.extent.high = in.number<uint64_t>(UINT64_MAX);
  r.place.extent.low = in.number<uint64_t>(UINT64_MAX);
  r.place.ordinal = in.number<uint32_t>(slot_blocks - 1);
  r.expiry_s = in.number<int64_t>(INT64_MAX);
  if (!in.complete() || key.size() != block_key_size) return nonsense(family::block);
  return r;
}

result<extent_record> decode_extent(std::string_view key, std::string_view value) {
  TROUPE_TRY(auto handle, open(family::extent, key, value));
  reader in(handle.get());
  extent_record r;
  extent_info& e = r.info;
  r.expiry_s = in.number<int64_t>(INT64_MAX);
  r.owned = in.number<uint32_t>((1u << slot_blocks) - 1);
  e.id.high = in.number<uint64_t>(UINT64_MAX);
  e.id.low = in.number<uint64_t>(UINT64_MAX);
  e.first = in.number<uint64_t>(UINT64_MAX);
  e.count = in.number<uint32_t>(slot_blocks);
  e.block_bytes = in.number<uint32_t>(UINT32_MAX);
  e.lengths = in.words(slot_blocks);
  e.hashes = in.hashes(slot_blocks);
  const auto around = in.hashes(2);
  e.data = in.number<uint8_t>(UINT8_MAX);
  e.parity = in.number<uint8_t>(UINT8_MAX);
  for (const uint32_t t : in.words(max_data_shards + max_parity_shards)) e.targets.push_back(target_id{t});
  e.traffic = in.number<traffic_class>(UINT8_MAX);
  e.written = in.number<int64_t>(INT64_MAX);
  e.expiry = in.number<int64_t>(INT64_MAX);
  e.epoch.value = in.number<uint64_t>(UINT64_MAX);
  e.scheme = in.number<uint64_t>(UINT64_MAX);
  e.block_crcs = in.words(slot_blocks);
  if (!in.complete() || around.size() != 2) return nonsense(family::extent);
  e.parent = around[0], e.slot_first = around[1];
  if (extent_key(e.id) != key || r.owned >> e.count != 0 || !validate(e)) return nonsense(family::extent);
  return r;
}

result<expiry_record> decode_expiry(std::string_view key, std::string_view value) {
  TROUPE_TRY(auto handle, open(family::expiry, key, value));
  reader in(handle.get());
  expiry_record r;
  r.blocks = in.number<uint32_t>(slot_blocks);
  r.bytes = in.number<uint64_t>(uint64_t{slot_blocks} * max_block_bytes);
  if (!in.complete() || !parse_expiry_key(key)) return nonsense(family::expiry);
  return r;
}

expiry_entry expiry_entry_of(const extent_record& r) {
  return {r.expiry_s, static_cast<uint32_t>(r.info.first), r.info.id};
}

expiry_record expiry_record_of(const extent_record& r) {
  return {static_cast<uint32_t>(std::popcount(r.owned)), uint64_t{r.info.count} * r.info.block_bytes};
}

}  // namespace troupe::kv
