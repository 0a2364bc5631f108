// Entry for libFuzzer (built with clang only): `footer_fuzzer -max_len=4096`. The first byte chooses the decoder.
#include <cstring>

#include "kv/extent/footer.hpp"
#include "runtime/base/check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe::kv;
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] & 1) {
    bytes.resize(run_bytes);
    (void)decode_chunk_header(std::span<const std::byte, run_bytes>(bytes.data(), run_bytes));
    return 0;
  }
  // Footers are sealed here: a fuzzer does not find checksums.
  uint16_t length = 0;
  if (bytes.size() >= 12) std::memcpy(&length, bytes.data() + 10, sizeof length);
  if (length >= 12 && length + sizeof(uint32_t) <= bytes.size()) {
    const uint32_t crc = crc32c(std::span(bytes).first(length));
    std::memcpy(bytes.data() + length, &crc, sizeof crc);
  }
  if (const auto f = decode_footer(bytes)) {
    const std::string image = encode(*f);
    TROUPE_CHECK(image.size() <= bytes.size() && std::memcmp(image.data(), bytes.data(), image.size()) == 0,
                 "a footer that reads differently from how it is written");
  }
  return 0;
}
