#include "kv/extent/footer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "footers are written as numbers lie in memory");

constexpr uint64_t footer_magic = 0x31544f4f46564b54u;  // "TKVFOOT1"
constexpr uint64_t header_magic = 0x314b4e4843564b54u;  // "TKVCHNK1"
constexpr size_t crc_bytes = 4;

class writer {
 public:
  template <class T>
  writer& number(T v) {
    static_assert(std::is_integral_v<T>);
    out.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  writer& raw(std::span<const uint8_t> bytes) {
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return *this;
  }
  std::string out;
};

// Turns not ok, for good, at the first member that does not fit.
class reader {
 public:
  explicit reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T number() {
    T v = 0;
    take(&v, sizeof v);
    return v;
  }
  void raw(std::span<uint8_t> to) { take(to.data(), to.size()); }
  /// `n` numbers; none where they do not fit, so that a wild count allocates nothing.
  template <class T>
  std::vector<T> numbers(size_t n) {
    if (!ok_ || in_.size() / sizeof(T) < n) {
      ok_ = false;
      return {};
    }
    std::vector<T> v(n);
    take(v.data(), n * sizeof(T));
    return v;
  }
  bool ok() const { return ok_; }
  bool complete() const { return ok_ && in_.empty(); }

 private:
  void take(void* to, size_t n) {
    if (!ok_ || in_.size() < n) {
      ok_ = false;
      return;
    }
    if (n) std::memcpy(to, in_.data(), n);
    in_ = in_.subspan(n);
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

template <class T>
T load(std::span<const std::byte> bytes, size_t at) {
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

// Bytes of a footer without its granule checksums.
size_t fixed_bytes(const extent_info& e) {
  return 161 + size_t{e.count} * (16 + 4) + 4 * e.lengths.size() + 4 * size_t{e.shards()};
}

uint64_t granules(uint64_t payload, uint8_t shift) {
  const uint64_t size = uint64_t{run_bytes} << shift;
  return (payload + size - 1) / size;
}

// What must hold between the members; the text says what does not.
const char* contradiction(const shard_footer& f) {
  if (f.shard >= f.extent.shards()) return "shard index past the extent's shards";
  if (f.payload_bytes != shard_bytes(f.extent)) return "payload size differs from the extent's shards";
  if (f.runs != runs_of(f.payload_bytes)) return "number of runs differs from the payload's";
  if (f.first_run == 0 || f.first_run > UINT32_MAX - f.runs) return "impossible first run";
  if (f.crc_shift != crc_shift_of(f.extent)) return "unexpected granule size";
  if (f.crcs.size() != granules(f.payload_bytes, f.crc_shift)) return "number of granules differs from the payload's";
  return nullptr;
}

}  // namespace

uint32_t runs_of(uint64_t payload_bytes) {
  TROUPE_CHECK(payload_bytes > 0, "a shard without payload");
  const uint64_t full = (payload_bytes + run_bytes - 1) / run_bytes;
  const uint64_t spare = full * run_bytes - payload_bytes;
  return static_cast<uint32_t>(full + (spare < footer_bytes ? 1 : 0));
}

uint8_t crc_shift_of(const extent_info& e) {
  const uint64_t payload = shard_bytes(e);
  const size_t room = (footer_bytes - fixed_bytes(e)) / sizeof(uint32_t);
  uint8_t shift = 0;
  while (granules(payload, shift) > room) ++shift;
  return shift;
}

std::vector<uint32_t> granule_crcs(std::span<const std::byte> payload, uint8_t crc_shift) {
  const uint64_t size = uint64_t{run_bytes} << crc_shift;
  std::vector<uint32_t> out;
  out.reserve(granules(payload.size(), crc_shift));
  for (uint64_t at = 0; at < payload.size(); at += size)
    out.push_back(crc32c(payload.subspan(at, std::min<uint64_t>(size, payload.size() - at))));
  return out;
}

std::string encode(const shard_footer& f) {
  const extent_info& e = f.extent;
  const auto valid = validate(e);
  TROUPE_CHECK(valid.has_value(), "footer of {}", valid.error().message);
  const char* wrong = contradiction(f);
  TROUPE_CHECK(wrong == nullptr, "footer of shard {} of {}: {}", f.shard, to_string(e.id), wrong);
  writer w;
  w.out.reserve(footer_bytes);
  w.number(footer_magic).number(footer_version).number(uint16_t{0});
  w.raw(f.device).number(f.chunk).number(f.first_run).number(f.runs).number(f.sequence);
  w.number(static_cast<uint8_t>(f.shard)).number(f.payload_bytes).number(f.crc_shift);
  w.number(static_cast<uint16_t>(f.crcs.size()));
  for (const uint32_t c : f.crcs) w.number(c);
  w.number(e.id.high).number(e.id.low).number(static_cast<uint32_t>(e.first)).number(static_cast<uint8_t>(e.count));
  w.number(e.block_bytes).number(static_cast<uint8_t>(e.lengths.size()));
  for (const uint32_t n : e.lengths) w.number(n);
  // The hashes' token counts are multiples of the block size; it alone is kept.
  w.number(static_cast<uint32_t>(e.hashes[0].tokens / (e.first + 1)));
  for (const block_hash& h : e.hashes) w.raw(h.bytes);
  w.raw(e.parent.bytes).raw(e.slot_first.bytes).number(e.data).number(e.parity);
  for (const target_id t : e.targets) w.number(t.value);
  w.number(static_cast<uint8_t>(e.traffic)).number(e.written).number(e.expiry).number(e.epoch.value).number(e.scheme);
  for (const uint32_t c : e.block_crcs) w.number(c);
  const auto length = static_cast<uint16_t>(w.out.size());
  std::memcpy(w.out.data() + 10, &length, sizeof length);
  w.number(crc32c(std::as_bytes(std::span(w.out))));
  TROUPE_CHECK(w.out.size() <= footer_bytes && length + crc_bytes == fixed_bytes(e) + 4 * f.crcs.size(),
               "footer of {} bytes, {} expected", w.out.size(), fixed_bytes(e) + 4 * f.crcs.size());
  return std::move(w.out);
}

result<shard_footer> decode_footer(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof footer_magic || load<uint64_t>(bytes, 0) != footer_magic)
    return fail(errc::not_found, "no shard footer");
  const auto bad = [](const char* what) { return fail(errc::corrupt, "shard footer: {}", what); };
  if (bytes.size() < 12 + crc_bytes || bytes.size() > footer_bytes) return bad("impossible size");
  const size_t length = load<uint16_t>(bytes, 10);
  if (length < 12 || length + crc_bytes > bytes.size()) return bad("length past its end");
  if (load<uint32_t>(bytes, length) != crc32c(bytes.first(length))) return bad("checksum differs");
  if (const auto version = load<uint16_t>(bytes, 8); version != footer_version)
    return fail(errc::corrupt, "shard footer of version {}, this build reads {}", version, footer_version);
  const auto rest = bytes.subspan(length + crc_bytes);
  if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; }))
    return bad("bytes after its end");

  reader r(bytes.subspan(12, length - 12));
  shard_footer f;
  extent_info& e = f.extent;
  r.raw(f.device);
  f.chunk = r.number<uint32_t>();
  f.first_run = r.number<uint32_t>();
  f.runs = r.number<uint32_t>();
  f.sequence = r.number<uint64_t>();
  f.shard = r.number<uint8_t>();
  f.payload_bytes = r.number<uint64_t>();
  f.crc_shift = r.number<uint8_t>();
  f.crcs = r.numbers<uint32_t>(r.number<uint16_t>());
  e.id.high = r.number<uint64_t>();
  e.id.low = r.number<uint64_t>();
  e.first = r.number<uint32_t>();
  e.count = r.number<uint8_t>();
  e.block_bytes = r.number<uint32_t>();
  e.lengths = r.numbers<uint32_t>(r.number<uint8_t>());
  const uint64_t size = r.number<uint32_t>();
  if (!r.ok() || e.count > slot_blocks || size * (e.first + e.count) > UINT32_MAX) return bad("impossible counts");
  for (uint32_t i = 0; i < e.count; ++i) {
    r.raw(e.hashes.emplace_back().bytes);
    e.hashes.back().tokens = static_cast<uint32_t>(size * (e.first + i + 1));
  }
  r.raw(e.parent.bytes);
  e.parent.tokens = static_cast<uint32_t>(size * e.first);
  r.raw(e.slot_first.bytes);
  e.slot_first.tokens = static_cast<uint32_t>(size * (e.slot() * slot_blocks + 1));
  e.data = r.number<uint8_t>();
  e.parity = r.number<uint8_t>();
  for (const uint32_t t : r.numbers<uint32_t>(e.shards())) e.targets.push_back(target_id{t});
  e.traffic = static_cast<traffic_class>(r.number<uint8_t>());
  e.written = r.number<int64_t>();
  e.expiry = r.number<int64_t>();
  e.epoch.value = r.number<uint64_t>();
  e.scheme = r.number<uint64_t>();
  e.block_crcs = r.numbers<uint32_t>(e.count);
  if (!r.complete()) return bad("members do not fill it");
  if (const auto valid = validate(e); !valid) return fail(errc::corrupt, "shard footer: {}", valid.error().message);
  if (const char* wrong = contradiction(f)) return bad(wrong);
  return f;
}

void encode(const chunk_header& h, std::span<std::byte, run_bytes> out) {
  writer w;
  w.number(header_magic).number(chunk_header_version).number(uint16_t{0});
  w.raw(h.device).number(h.number).number(h.bytes);
  w.number(crc32c(std::as_bytes(std::span(w.out))));
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data(), w.out.data(), w.out.size());
}

result<chunk_header> decode_chunk_header(std::span<const std::byte, run_bytes> bytes) {
  chunk_header h;
  reader r(bytes.subspan(12));
  r.raw(h.device);
  h.number = r.number<uint32_t>();
  h.bytes = r.number<uint64_t>();
  // What it should be is known from its members, so one comparison covers magic, version, checksum and zeros.
  std::array<std::byte, run_bytes> expected;
  encode(h, expected);
  if (!std::equal(expected.begin(), expected.end(), bytes.begin()))
    return fail(errc::corrupt, "chunk header does not hold");
  if (h.bytes < 2 * run_bytes || h.bytes % run_bytes)
    return fail(errc::corrupt, "chunk header: impossible size {}", h.bytes);
  return h;
}

}  // namespace troupe::kv
