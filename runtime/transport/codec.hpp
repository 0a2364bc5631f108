// Length-prefixed little-endian fields with a checksum, for descriptors and address blobs.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace troupe::transport {

/// FNV-1a, 64 bit: guards small blobs against truncation and mix-ups, not against malice.
constexpr uint64_t blob_hash(std::string_view bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

/// Appends fields; `finish` adds the checksum.
class blob_writer {
 public:
  blob_writer& number(uint64_t v) {
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  blob_writer& text(std::string_view v) {
    number(v.size());
    out_.append(v);
    return *this;
  }
  std::string finish() {
    number(blob_hash(out_));
    return std::move(out_);
  }

 private:
  std::string out_;
};

/// Reads fields back; `ok` turns false, for good, at the first that does not fit.
class blob_reader {
 public:
  explicit blob_reader(std::string_view bytes) : in_(bytes) {
    uint64_t sum = 0;
    if (in_.size() < sizeof sum) {
      ok_ = false;
      return;
    }
    std::memcpy(&sum, in_.data() + in_.size() - sizeof sum, sizeof sum);
    in_.remove_suffix(sizeof sum);
    ok_ = sum == blob_hash(in_);
  }
  uint64_t number() {
    uint64_t v = 0;
    if (!ok_ || in_.size() < sizeof v) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&v, in_.data(), sizeof v);
    in_.remove_prefix(sizeof v);
    return v;
  }
  std::string text() {
    const uint64_t n = number();
    if (!ok_ || n > in_.size()) {
      ok_ = false;
      return {};
    }
    std::string v(in_.substr(0, n));
    in_.remove_prefix(n);
    return v;
  }
  /// All fields fitted and nothing is left.
  bool complete() const { return ok_ && in_.empty(); }

 private:
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace troupe::transport
